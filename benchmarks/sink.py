"""Batches to a Kafka topic: `KafkaSink` exactly once and at least once, and Spark's own sink.

The real broker, a driver, its JVM and its Python workers share the machine. What is measured is
the sink: each batch is the same Parquet file, read from the page cache, and is given to the handler
as `foreach_batch` would, in a context with a real checkpoint, without a stream. The tasks read that
file by themselves, and a small batch is written by the driver; one contender writes a DataFrame
that a `transform` has made, whose rows come from Spark. Spark's own sink,
which is at least once, gets the same DataFrame with `df.write.format("kafka")`; it comes in jars of
exactly Spark's version, which Spark downloads, and ours are measured without it where there are
none. All of them wait for the broker's confirmation, do not compress, and hash keys as Kafka does.

Each contender has a process and a JVM of its own, which are warm when the first round begins; the
contenders take turns, and the others are idle while one runs.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
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
    from collections.abc import Sequence

    from benchmarks.harness import Row

__all__ = ("PARTITIONS", "TOPICS", "create_topics", "prepare_batch", "run")

EXACTLY_ONCE, AT_LEAST_ONCE, PEER = "exactly_once", "at_least_once", "Spark's own sink"
TRANSFORMED: Final = "exactly_once, of a DataFrame"
OURS: Final = (EXACTLY_ONCE, AT_LEAST_ONCE, TRANSFORMED)
# Each writes to a topic of its own, so that none finds what another has left to be deleted.
TOPICS: Final = {
    EXACTLY_ONCE: "exactly",
    AT_LEAST_ONCE: "at-least",
    TRANSFORMED: "transformed",
    PEER: "spark",
}
PARTITIONS: Final = 4
# The bytes of a record, and how many a batch has.
BATCHES: Final = ((1024, 50_000), (100, 50_000), (1024, 5_000), (100, 5_000))
BRIEF_BATCHES: Final = BATCHES[:1]
SMALL_BATCH: Final = 10_000
# Records that each contender writes after the first batches.
RECORDS: Final = 1_000_000
# As many pieces as there are cores to read them.
_PIECES: Final = 4
_KEYS: Final = 10_000
# A topic keeps so little that what was written before is not written out to the disk at leisure.
_KEPT: Final = {"segment.bytes": str(32 << 20), "retention.bytes": str(64 << 20)}


def run(
    rounds: int,
    batches: Sequence[tuple[int, int]] = BATCHES,
    records: int = RECORDS,
    *,
    brief: bool = False,
) -> Report:
    """Measure the contenders with each kind of batch; ours alone where Spark's has no jars.

    Args:
        rounds: How often each is run; the rate is the median.
        batches: The bytes of a record's value, and the records of a batch.
        records: How many are counted in a run; a tenth with batches of less than 10,000.
        brief: As for `compare`.
    """
    report = Report(scenario="sink", rows=[], ratios={})
    for size, count in batches:
        counted = records if count >= SMALL_BATCH else records // 10
        with tempfile.TemporaryDirectory() as directory, KafkaBroker(fast=True) as broker:
            batch = prepare_batch(Path(directory), size, count)
            create_topics(broker)
            measured = partial(
                compare,
                "sink",
                f"{broker.bootstrap_servers} {batch}",
                PARTITIONS,
                record_bytes=size,
                rounds=rounds,
                job="benchmarks.sink_job",
                brief=brief,
            )
            try:
                rows = measured(records=dict.fromkeys((PEER, *OURS), counted))
            except ChildProcessError as error:
                tell(f"Spark's own Kafka sink is left out: {error}")
                rows = measured(records=dict.fromkeys(OURS, counted))
        report.ratios.update(_ratios(f"sink/kafka/{size}/{count}", rows))
        report.rows.extend(replace(row, name=f"{row.name}, {count:,} a batch") for row in rows)
    return report


def _ratios(name: str, rows: Sequence[Row]) -> dict[str, float]:
    rates = {row.name: row.records_per_second for row in rows}
    exactly = rates[EXACTLY_ONCE]
    ratios = {f"{name}/exactly_vs_at_least_once": exactly / rates[AT_LEAST_ONCE]}
    if PEER in rates:
        ratios[f"{name}/exactly_vs_spark_jvm"] = exactly / rates[PEER]
        ratios[f"{name}/exactly_of_a_dataframe_vs_spark_jvm"] = rates[TRANSFORMED] / rates[PEER]
    return ratios


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
