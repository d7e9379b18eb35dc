"""Whether a job holds as much after hours as after minutes: `python -m benchmarks soak`.

A Spark driver reads a stream of the embedded Kinesis and a topic of the real broker at a steady
rate. Subscriptions end every few seconds, as the service ends them every five minutes, and shards
are split and merged all the time. What the driver and its JVM hold is sampled; after a warm-up no
figure may grow steadily by more than its limit for an hour.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.growth import BLOCKS, Growth, growth
from benchmarks.harness import describe_machine
from benchmarks.kafka_topic import PARTITIONS, TOPIC
from benchmarks.paced import STREAM
from benchmarks.turns import tell
from fanout.testing.kafka.broker import KafkaBroker
from fanout.testing.kinesis.process import KinesisProcess
from fanout.testing.kinesis.rules import KinesisRules

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ("LIMITS", "evaluate", "main", "soak")

MINUTES: Final = 30.0
# The part of the time in which the JVM compiles itself and caches fill.
WARM_UP: Final = 0.3
# What each figure may gain in an hour: a job that runs for a month must not outgrow its machine.
# Allocators and the compiler of the JVM take what they give back late, or never.
LIMITS: Final = {
    "driver RSS": 16 * 2**20,
    "JVM RSS": 32 * 2**20,
    "JVM heap": 4 * 2**20,
    "checkpoint bytes": 2**20,
}
_RATE: Final = 200
_TICK: Final = 0.1
_RESHARD_SECONDS: Final = 20.0
_RULES: Final = replace(KinesisRules.fast(), subscription_life=15.0)


def soak(minutes: float, sample_seconds: float) -> list[dict[str, float]]:
    """Run the job, and return the samples.

    Args:
        minutes: How long it runs.
        sample_seconds: The time between two samples.

    Raises:
        ChildProcessError: If the job ends early; its error is on standard error.
    """
    samples: list[dict[str, float]] = []
    with ExitStack() as stack:
        server = stack.enter_context(KinesisProcess(_RULES))
        server.create_stream(STREAM, 2)
        broker = stack.enter_context(KafkaBroker(fast=True))
        broker.create_topic(TOPIC, PARTITIONS)
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(_writing(server, broker))
        job = stack.enter_context(
            _job(server.endpoint_url, broker.bootstrap_servers, directory, str(sample_seconds))
        )
        columns = (
            BarColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[last]}"),
        )
        progress = stack.enter_context(
            Progress(*columns, console=Console(stderr=True), transient=True)
        )
        bar = progress.add_task("", total=minutes * 60, last="")
        assert job.stdout is not None
        while not samples or samples[-1]["seconds"] < minutes * 60:
            line = job.stdout.readline()
            if not line:
                raise ChildProcessError("the job of the soak has ended; see its output above")
            samples.append(json.loads(line))
            progress.update(bar, completed=samples[-1]["seconds"], last=_in_short(samples[-1]))
            if len(samples) % BLOCKS == 0:
                tell(
                    f"soak, {samples[-1]['seconds']:.0f} s: {_in_short(samples[-1])}",
                    progress.console,
                )
    return samples


def evaluate(samples: Sequence[dict[str, float]]) -> dict[str, Growth]:
    """Return how each figure has grown after the warm-up.

    Args:
        samples: Figures by name, in order; `seconds` is when they were taken.

    Raises:
        ValueError: If there are too few.
    """
    until = samples[-1]["seconds"] * WARM_UP
    warm = [sample for sample in samples if sample["seconds"] >= until]
    seconds = [sample["seconds"] for sample in warm]
    counted = ("seconds", "kinesis", "kafka")
    return {
        name: growth(seconds, [sample[name] for sample in warm], LIMITS.get(name, 0))
        for name in samples[0]
        if name not in counted
    }


def main(arguments: Sequence[str]) -> int:
    """Soak, and print a table; with --json also an object on the last line.

    Returns:
        The exit code: 1 if a figure grows.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help=f"how long (default {MINUTES:g})"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as a line of JSON")
    options = parser.parse_args(arguments)
    if not options.minutes >= 1:
        parser.error("--minutes must be at least 1")
    samples = soak(options.minutes, sample_seconds=min(10.0, options.minutes))
    grown = evaluate(samples)
    Console(stderr=options.json).print(_table(grown, samples))
    if options.json:
        report: dict[str, Any] = {
            "scenario": "soak",
            "minutes": options.minutes,
            "records": samples[-1]["kinesis"] + samples[-1]["kafka"],
            "flat": all(each.flat for each in grown.values()),
            "growth": {name: asdict(each) | {"flat": each.flat} for name, each in grown.items()},
            "samples": samples,
            "machine": describe_machine(),
        }
        print(json.dumps(report), flush=True)  # noqa: T201  # rich would wrap it
    return 0 if all(each.flat for each in grown.values()) else 1


@contextmanager
def _job(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the job while the block runs."""
    with subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", "benchmarks.soak_job", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdin is not None
        try:
            yield job
        finally:
            job.stdin.close()


@contextmanager
def _writing(server: KinesisProcess, broker: KafkaBroker) -> Iterator[None]:
    """Write to both, and split and merge shards, while the block runs."""
    ended = threading.Event()
    threads = [
        threading.Thread(target=_put, args=(server, broker, ended)),
        threading.Thread(target=_reshard, args=(server, ended)),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _put(server: KinesisProcess, broker: KafkaBroker, ended: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    number, due = 0, time.monotonic()
    while not ended.wait(max(0.0, due - time.monotonic())):
        some = range(number, number + round(_RATE * _TICK))
        server.put_records(STREAM, [(f"user-{one}", b"%d" % one) for one in some])
        for one in some:
            producer.produce(TOPIC, b"%d" % one, b"user-%d" % one, one % PARTITIONS)
        producer.poll(0)
        number, due = some.stop, due + _TICK
    producer.flush()


def _reshard(server: KinesisProcess, ended: threading.Event) -> None:
    """Split a shard and merge its children, again and again."""
    shard = "shardId-000000000000"
    while not ended.wait(_RESHARD_SECONDS):
        children = server.split_shard(STREAM, shard)
        if ended.wait(_RESHARD_SECONDS):
            return
        shard = server.merge_shards(STREAM, *children)


def _in_short(sample: dict[str, float]) -> str:
    driver, jvm = (sample[f"{name} RSS"] / 2**20 for name in ("driver", "JVM"))
    return (
        f"{sample['kinesis'] + sample['kafka']:,.0f} records, driver {driver:,.0f} MiB, "
        f"JVM {jvm:,.0f} MiB, {sample['checkpoint files']:,.0f} files"
    )


def _table(grown: dict[str, Growth], samples: Sequence[dict[str, float]]) -> Table:
    last = samples[-1]
    caption = (
        f"{last['seconds'] / 60:.0f} minutes, {last['kinesis']:,.0f} records of Kinesis and "
        f"{last['kafka']:,.0f} of Kafka"
    )
    table = Table(title="soak", caption=caption)
    for heading in ("figure", "level", "an hour", "limit", "chance", ""):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    for name, each in grown.items():
        table.add_row(
            name,
            f"{each.level:,.0f}",
            f"{each.per_hour:+,.0f}",
            f"{each.limit:+,.0f}",
            f"{each.chance:.3f}",
            "flat" if each.flat else "grows",
        )
    return table
