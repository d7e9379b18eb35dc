"""A stored stream to a count: `fanout.open` against KCL 3 and Flink, all with enhanced fan-out.

The replaying server of the other scenarios speaks HTTP/1.1 alone, so all read from the embedded
Kinesis, in a process of its own on the same cores: it encodes each event for each reader, and takes
its part of every rate. CPU seconds are the reader's own. The clock starts after the first records.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aioboto3
import boto3

import fanout
from benchmarks.harness import Measurement, Report, measure, median_row, run_apart
from benchmarks.turns import take_turns
from fanout.kinesis import KinesisSource
from fanout.spark.hadoop.session_checks import require_java
from fanout.testing.kinesis.process import KinesisProcess
from fanout.testing.kinesis.rules import KinesisRules
from tests.jars.fetch import jar_set

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    import pyarrow as pa

    from benchmarks.harness import Row

__all__ = ("run",)

FANOUT, KCL, FLINK = "fanout", "KCL 3", "Flink"
SHARDS: Final = 4
# By bytes of data in a record.
RECORDS: Final = {1024: 400_000, 100: 1_000_000}
# One reader follows the other at once.
_RULES: Final = KinesisRules(takeover_after=0, call_interval=0)
_PUT_RECORDS = 10_000
_PROGRAMS: Final = {KCL: ("kcl", "KclCounter"), FLINK: ("flink", "FlinkCounter")}
# Flink 1.19 looks into classes of Java 17, as the scripts that start it allow it to.
_OPENED: Final = ("lang", "net", "nio", "util", "util.concurrent")


def run(rounds: int, records: Mapping[int, int] = RECORDS) -> Report:
    """Measure the three with each size of records.

    Args:
        rounds: How often each is run; the rate is the median.
        records: By bytes of data in a record, how many are read.
    """
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    for size, count in records.items():
        ours, *theirs = _compare(size, count, rounds)
        rows += [ours, *theirs]
        for peer in theirs:
            jars, _ = _PROGRAMS[peer.name]
            ratio = ours.records_per_second / peer.records_per_second
            ratios[f"consume/kinesis-java/{size}/vs_{jars}"] = ratio
    return Report(scenario="consume", rows=rows, ratios=ratios)


def _compare(record_bytes: int, records: int, rounds: int) -> list[Row]:
    with KinesisProcess(_RULES) as server, tempfile.TemporaryDirectory() as classes:
        consumer = _stored_stream(server, record_bytes, records)
        contenders: dict[str, Callable[[], Measurement]] = {
            FANOUT: partial(run_apart, partial(_read, server.client_options, consumer, records))
        }
        for name, (jars, program) in _PROGRAMS.items():
            command = [*_compiled(jars, program, Path(classes) / jars), "orders", consumer]
            environment = os.environ | server.environment
            contenders[name] = partial(_count, [*command, str(records)], environment)
        readings = take_turns(f"consume in Java, {record_bytes} B", contenders, rounds)
    return [
        median_row(name, taken, record_bytes=record_bytes, shards=SHARDS)
        for name, taken in readings.items()
    ]


def _stored_stream(server: KinesisProcess, record_bytes: int, records: int) -> str:
    """Fill a stream, and return the ARN of its consumer."""
    arn = server.create_stream("orders", SHARDS)
    data = random.Random(record_bytes).randbytes(record_bytes)  # noqa: S311 - not secret
    for first in range(0, records, _PUT_RECORDS):
        numbers = range(first, min(first + _PUT_RECORDS, records))
        server.put_records("orders", [(f"user-{number}", data) for number in numbers])
    with closing(boto3.client("kinesis", **server.client_options)) as client:
        answer = client.register_stream_consumer(StreamARN=arn, ConsumerName="benchmark")
    return str(answer["Consumer"]["ConsumerARN"])


def _read(options: Mapping[str, str], consumer: str, records: int) -> Measurement:
    return asyncio.run(measure(_batches(options, consumer), records))


async def _batches(
    options: Mapping[str, str], consumer: str
) -> AsyncGenerator[pa.RecordBatch, None]:
    credentials = {name: value for name, value in options.items() if name != "endpoint_url"}
    source = KinesisSource(
        stream="orders",
        consumer=consumer,
        start="TRIM_HORIZON",
        endpoint_url=options["endpoint_url"],
        session=aioboto3.Session(**credentials),
    )
    async with fanout.open(source) as stream:
        async for batch in stream:
            yield batch.records


def _compiled(jars: str, program: str, classes: Path) -> list[str]:
    """Compile a program, and return the command that runs it."""
    java = str(require_java())
    sources = Path(__file__).parent / "java"
    libraries = os.pathsep.join(map(str, jar_set(jars)))
    compiler = [java, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn"]
    files = [str(sources / f"{name}.java") for name in ("Counter", program)]
    subprocess.run(  # noqa: S603 - our own programs
        [*compiler, "-cp", libraries, "-d", str(classes), *files], check=True
    )
    opened = [f"--add-opens=java.base/java.{each}=ALL-UNNAMED" for each in _OPENED]
    logs = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
    return [java, "-Xmx1g", logs, *opened, "-cp", f"{classes}{os.pathsep}{libraries}", program]


def _count(command: list[str], environment: Mapping[str, str]) -> Measurement:
    with subprocess.Popen(  # noqa: S603 - our own programs
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        figures = program.stdout.readline()
        if not figures:
            raise ChildProcessError(f"{command[-4]} has failed; see its output above")
        # Its standard input is closed now, and it ends.
    return Measurement(**json.loads(figures))
