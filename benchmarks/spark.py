"""The whole path, from SubscribeToShard to a foreachBatch handler, against the job by hand.

A server that replays events, a driver and Spark's JVM share the machine. Each contender has a
process and a JVM of its own, which are warm when the first round begins; the contenders take turns,
and one is idle while the other runs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Report, Row
from benchmarks.replay import Replay, serving

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ("run",)

# By name, so that this module does not load Spark.
FANOUT, PEER = "fanout", "aioboto3 + createDataFrame"
SHARDS = 16
# Of each shard: enough for the batches that warm up, and for those that are counted.
EVENTS = {1024: 128, 100: 32}
# Records that are counted; the peer counts fewer, as its rate is steady.
RECORDS = {FANOUT: {1024: 1_500_000, 100: 4_000_000}, PEER: {1024: 200_000, 100: 400_000}}


def run(rounds: int, sizes: Sequence[int] = (1024, 100)) -> Report:
    """Measure both contenders with each size of records.

    Args:
        rounds: How often each is run; the rate is the median.
        sizes: Bytes of data in a record.
    """
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    for size in sizes:
        results: dict[str, list[dict[str, Any]]] = {FANOUT: [], PEER: []}
        with ExitStack() as stack:
            port = stack.enter_context(serving(Replay(size, EVENTS[size], SHARDS)))
            jobs = {name: stack.enter_context(_started(name, port)) for name in results}
            for _ in range(rounds):
                for name, taken in results.items():
                    taken.append(_run_once(jobs[name], RECORDS[name][size]))
        rates = {
            name: statistics.median(result["records_per_second"] for result in taken)
            for name, taken in results.items()
        }
        rows += [
            Row(
                name=name,
                record_bytes=size,
                shards=SHARDS,
                records_per_second=rate,
                bytes_per_second=rate * size,
                cpu_seconds_per_million=statistics.median(
                    result["cpu_seconds_per_million"] for result in results[name]
                ),
                peak_rss_bytes=max(result["peak_rss_bytes"] for result in results[name]),
            )
            for name, rate in rates.items()
        ]
        ratios[f"spark/kinesis/{size}/vs_create_data_frame"] = rates[FANOUT] / rates[PEER]
    return Report(scenario="spark", rows=rows, ratios=ratios)


@contextmanager
def _started(name: str, port: int) -> Iterator[subprocess.Popen[str]]:
    """Start a contender's process, wait until it is warm, and end it after the block."""
    with subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", "benchmarks.spark_job", name, str(port), str(SHARDS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        try:
            if not job.stdout.readline():
                raise ChildProcessError(f"the job of {name} has failed; see its output above")
            yield job
        finally:
            job.stdin.close()


def _run_once(job: subprocess.Popen[str], records: int) -> dict[str, Any]:
    assert job.stdin is not None
    assert job.stdout is not None
    print(records, file=job.stdin, flush=True)
    result: dict[str, Any] = json.loads(job.stdout.readline())
    return result
