"""The whole path, from SubscribeToShard to a foreachBatch handler, against the job by hand.

A server, a driver and Spark's JVM share the machine. Each contender has a
process and a JVM of its own, which are warm when the first round begins; the contenders take turns,
and one is idle while the other runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from benchmarks.harness import Report
from benchmarks.reading import Reading, median_row
from benchmarks.replay import Replay, serving

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.harness import Row

__all__ = ("compare", "run")

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
        records = {name: RECORDS[name][size] for name in (FANOUT, PEER)}
        with serving(Replay(size, EVENTS[size], SHARDS)) as port:
            ours, theirs = compare(
                "kinesis", str(port), SHARDS, record_bytes=size, records=records, rounds=rounds
            )
        rows += [ours, theirs]
        ratio = ours.records_per_second / theirs.records_per_second
        ratios[f"spark/kinesis/{size}/vs_create_data_frame"] = ratio
    return Report(scenario="spark", rows=rows, ratios=ratios)


def compare(
    source: str,
    address: str,
    shards: int,
    *,
    record_bytes: int,
    records: Mapping[str, int],
    rounds: int,
    job: str = "benchmarks.spark_job",
) -> list[Row]:
    """Run the jobs of contenders in turn, and return a row for each.

    Args:
        source: What they read from, or what they do: the names of their jobs begin with it.
        address: Where it is.
        shards: How many of its shards or partitions there are.
        record_bytes: Bytes of data in a record.
        records: How many records each contender counts.
        rounds: How often each is run.
        job: The module of the jobs.

    Raises:
        ChildProcessError: If the job of a contender fails as it starts.
    """
    readings: dict[str, list[Reading]] = {name: [] for name in records}
    with ExitStack() as stack:
        jobs = {
            name: stack.enter_context(_started(job, f"{source}/{name}", address, shards))
            for name in records
        }
        for _ in range(rounds):
            for name, taken in readings.items():
                taken.append(_run_once(jobs[name], records[name]))
    return [
        median_row(name, taken, record_bytes=record_bytes, shards=shards)
        for name, taken in readings.items()
    ]


@contextmanager
def _started(module: str, name: str, address: str, shards: int) -> Iterator[subprocess.Popen[str]]:
    """Start a contender's process, wait until it is warm, and end it after the block."""
    with subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", module, name, address, str(shards)],
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


def _run_once(job: subprocess.Popen[str], records: int) -> Reading:
    assert job.stdin is not None
    assert job.stdout is not None
    print(records, file=job.stdin, flush=True)
    return Reading(**json.loads(job.stdout.readline()))
