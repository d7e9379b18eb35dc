"""The whole path, from SubscribeToShard to a foreachBatch handler, against the job by hand.

The handler gets the batches of `foreach_batch`, or those of a streaming DataFrame whose query lands
the stream, or those of Spark's own file source over a landing that the driver fills.

A server, a driver and Spark's JVM share the machine. Each contender has a
process and a JVM of its own, which are warm when the first round begins; the contenders take turns,
and one is idle while the other runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.harness import Report
from benchmarks.kinesis_replay import Replay, replay_server
from benchmarks.spark_contender import compare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.harness import Row

__all__ = ("run",)

# By name, so that this module does not load Spark.
FANOUT, DATA_FRAME = "fanout", "fanout, DataFrame"
FILES, PEER = "fanout.land + Spark's files", "aioboto3 + createDataFrame"
SHARDS = 16
# Of each shard: enough for the batches that warm up, and for those that are counted.
EVENTS = {1024: 128, 100: 32}
# Records that are counted; the peer counts fewer, as its rate is steady.
RECORDS = {
    FANOUT: {1024: 1_500_000, 100: 4_000_000},
    DATA_FRAME: {1024: 1_500_000, 100: 4_000_000},
    FILES: {1024: 1_500_000, 100: 4_000_000},
    PEER: {1024: 200_000, 100: 400_000},
}


def run(rounds: int, sizes: Sequence[int] = (1024, 100), *, brief: bool = False) -> Report:
    """Measure the contenders with each size of records.

    Args:
        rounds: How often each is run; the rate is the median.
        sizes: Bytes of data in a record.
        brief: As for `compare`.
    """
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    for size in sizes:
        records = {name: RECORDS[name][size] for name in RECORDS}
        with replay_server(Replay(size, EVENTS[size], SHARDS)) as port:
            measured = compare(
                "kinesis",
                str(port),
                SHARDS,
                record_bytes=size,
                records=records,
                rounds=rounds,
                brief=brief,
            )
        rows += measured
        ours, frames, files, theirs = (row.records_per_second for row in measured)
        ratios[f"spark/kinesis/{size}/vs_create_data_frame"] = ours / theirs
        ratios[f"spark/kinesis/{size}/dataframe_vs_foreach_batch"] = frames / ours
        ratios[f"spark/kinesis/{size}/dataframe_vs_files"] = frames / files
    return Report(scenario="spark", rows=rows, ratios=ratios)
