"""A DataFrame to a Kafka topic: `KafkaSink` exactly once and at least once, and Spark's own sink.

The real broker, a driver, its JVM and its Python workers share the machine. What is measured is
the sink: each batch is the same Parquet file, read from the page cache, and is given to the handler
as `foreach_batch` would, in a context with a real checkpoint, without a stream. Spark's own sink,
which is at least once, gets the same DataFrame with `df.write.format("kafka")`; it comes in jars of
exactly Spark's version, which Spark downloads, and ours are measured without it where there are
none. All of them wait for the broker's confirmation, do not compress, and hash keys as Kafka does.

Each contender has a process and a JVM of its own, which are warm when the first round begins; the
contenders take turns, and the others are idle while one runs.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import Report
from benchmarks.spark_contender import compare
from benchmarks.turns import tell
from fanout.testing.kafka.broker import KafkaBroker

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("PARTITIONS", "TOPICS", "create_topics", "prepare_batch", "run")

EXACTLY_ONCE, AT_LEAST_ONCE, PEER = "exactly_once", "at_least_once", "Spark's own sink"
OURS: Final = (EXACTLY_ONCE, AT_LEAST_ONCE)
# Each writes to a topic of its own, so that none finds what another has left to be deleted.
TOPICS: Final = {EXACTLY_ONCE: "exactly", AT_LEAST_ONCE: "at-least", PEER: "spark"}
PARTITIONS: Final = 4
BATCH_RECORDS: Final = {1024: 50_000}
# Records that each contender writes after the first batches.
RECORDS: Final = 1_000_000
# As many pieces as there are cores to read them.
_PIECES: Final = 4
_KEYS: Final = 10_000
# A topic keeps so little that what was written before is not written out to the disk at leisure.
_KEPT: Final = {"segment.bytes": str(32 << 20), "retention.bytes": str(64 << 20)}


def run(
    rounds: int,
    batch_records: Mapping[int, int] = BATCH_RECORDS,
    records: int = RECORDS,
    *,
    brief: bool = False,
) -> Report:
    """Measure the contenders with each size of records; ours alone where Spark's has no jars.

    Args:
        rounds: How often each is run; the rate is the median.
        batch_records: For each size of a record's value how many a batch has.
        records: How many are counted in a run.
        brief: As for `compare`.
    """
    report = Report(scenario="sink", rows=[], ratios={})
    for size, count in batch_records.items():
        with tempfile.TemporaryDirectory() as directory, KafkaBroker(fast=True) as broker:
            batch = prepare_batch(Path(directory), size, count)
            create_topics(broker)
            address = f"{broker.bootstrap_servers} {batch}"
            measured = partial(
                compare,
                "sink",
                address,
                PARTITIONS,
                record_bytes=size,
                rounds=rounds,
                job="benchmarks.sink_job",
                brief=brief,
            )
            try:
                rows = measured(records=dict.fromkeys((PEER, *OURS), records))
            except ChildProcessError as error:
                tell(f"Spark's own Kafka sink is left out: {error}")
                rows = measured(records=dict.fromkeys(OURS, records))
        report.rows.extend(rows)
        *peers, exactly, at_least = (row.records_per_second for row in rows)
        report.ratios[f"sink/kafka/{size}/exactly_vs_at_least_once"] = exactly / at_least
        for peer in peers:
            report.ratios[f"sink/kafka/{size}/vs_spark_jvm"] = exactly / peer
    return report


def create_topics(broker: KafkaBroker) -> None:
    """Create a topic for each contender."""
    for topic in TOPICS.values():
        broker.create_topic(topic, PARTITIONS, _KEPT)


def prepare_batch(directory: Path, record_bytes: int, records: int) -> Path:
    """Store a batch of random records as Parquet, and return where it is.

    Args:
        directory: Where to store it.
        record_bytes: Bytes of a record's value.
        records: How many there are.
    """
    random = Random(record_bytes)  # noqa: S311 - reproducible, not secret
    table = pa.table(
        {
            "key": pa.array([b"user-%d" % random.randrange(_KEYS) for _ in range(records)]),
            "value": pa.array([random.randbytes(record_bytes) for _ in range(records)]),
        }
    )
    path = directory / "batch.parquet"
    pq.write_table(table, path, compression="none", row_group_size=-(-records // _PIECES))
    return path
