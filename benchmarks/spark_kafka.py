"""The whole path, from a Kafka topic to a foreachBatch handler, against Spark's own Kafka source.

The real broker, a driver and Spark's JVM share the machine. Both read committed records in batches
of the same size; `benchmarks.spark_kinesis` describes the rest. Spark's source needs jars of
exactly Spark's version, which Spark downloads. If Maven's central repository does not have them,
fanout is measured alone.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Report
from benchmarks.kafka_topic import PARTITIONS, filled_broker
from benchmarks.spark_contender import compare
from benchmarks.turns import tell

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("run",)

FANOUT, DATA_FRAME, PEER = "fanout", "fanout, DataFrame", "Spark's own source"
# Records of the topic, and those that each contender counts after the first batches.
TOPIC_RECORDS = {1024: 1_600_000}
# The peer comes first, as it is the one that may be unable to start.
RECORDS = {PEER: 600_000, FANOUT: 1_200_000, DATA_FRAME: 1_200_000}


def run(
    rounds: int, topic_records: Mapping[int, int] = TOPIC_RECORDS, *, brief: bool = False
) -> Report:
    """Measure the contenders with each size of records; ours alone where Spark's has no jars.

    Args:
        rounds: How often each is run; the rate is the median.
        topic_records: For each size of a record's value how many the topic has.
        brief: As for `compare`.
    """
    report = Report(scenario="spark", rows=[], ratios={})
    for size, count in topic_records.items():
        with filled_broker(size, count) as servers:
            measured = partial(
                compare,
                "kafka",
                servers,
                PARTITIONS,
                record_bytes=size,
                rounds=rounds,
                brief=brief,
            )
            try:
                rows = measured(records=RECORDS)
            except ChildProcessError as error:
                tell(f"Spark's own Kafka source is left out: {error}")
                rows = measured(records={name: RECORDS[name] for name in (FANOUT, DATA_FRAME)})
        report.rows.extend(rows)
        *theirs, ours, frames = (row.records_per_second for row in rows)
        report.ratios[f"spark/kafka/{size}/dataframe_vs_foreach_batch"] = frames / ours
        if theirs:
            report.ratios[f"spark/kafka/{size}/vs_spark_jvm"] = ours / theirs[0]
            report.ratios[f"spark/kafka/{size}/dataframe_vs_spark_jvm"] = frames / theirs[0]
    return report
