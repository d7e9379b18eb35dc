"""Run contenders on Spark, each in a process and a JVM of its own.

Both ends are here: `compare` starts the processes and runs them in turn, and `answer` is what the
job in such a process does. A job prints a line when it is warm, then a `Measurement` as JSON for
each number of records that it reads from standard input.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from benchmarks.harness import Measurement, median_row, own_cpu_seconds
from benchmarks.turns import check_time, take_turns, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from benchmarks.harness import Row

__all__ = (
    "BRIEF_FACTOR",
    "answer",
    "compare",
    "cpu_seconds",
    "reason",
    "session",
    "started",
    "warm_up_batches",
)


BRIEF_FACTOR: Final = 10
"""By how much less a brief run does."""


def compare(
    source: str,
    address: str,
    shards: int,
    *,
    record_bytes: int,
    records: Mapping[str, int],
    rounds: int,
    job: str = "benchmarks.spark_job",
    brief: bool = False,
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
        brief: Warm up with a tenth of the batches, and count a tenth of the records.

    Raises:
        ChildProcessError: If the job of a contender fails as it starts.
        OutOfTimeError: As `take_turns`.
    """
    scenario = job.removeprefix("benchmarks.").removesuffix("_job")
    if brief:
        records = {name: count // BRIEF_FACTOR for name, count in records.items()}
    what = scenario if scenario == source else f"{scenario} {source}"
    with ExitStack() as stack:
        jobs = {}
        for name in records:
            check_time()
            tell(f"{what}: {name} warms up")
            arguments = [f"{source}/{name}", address, str(shards)]
            if brief:
                arguments.append("brief")
            jobs[name] = stack.enter_context(started(job, arguments))
        contenders = {name: partial(jobs[name], records[name]) for name in records}
        readings = take_turns(f"{what}, {record_bytes} B", contenders, rounds)
    return [
        median_row(name, taken, record_bytes=record_bytes, shards=shards)
        for name, taken in readings.items()
    ]


@contextmanager
def started(module: str, arguments: Sequence[str]) -> Iterator[Callable[[int], Measurement]]:
    """Start a contender's process, wait until it is warm, and end it after the block.

    Args:
        module: The module of its job.
        arguments: Those of its command line.

    Yields:
        What runs the job with a number of records.

    Raises:
        ChildProcessError: If the job ends before it is warm, or while it runs.
    """
    with (
        TemporaryFile("w+") as log,
        subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as job,
    ):
        stdin, stdout = job.stdin, job.stdout
        assert stdin is not None
        assert stdout is not None

        def line() -> str:
            if answered := stdout.readline():
                return answered
            log.seek(0)
            raise ChildProcessError(reason(log.read()))

        def run(records: int) -> Measurement:
            with suppress(BrokenPipeError):  # a job that has ended answers nothing
                print(records, file=stdin, flush=True)
            return Measurement(**json.loads(line()))

        try:
            line()
            yield run
        finally:
            with suppress(BrokenPipeError):
                stdin.close()


def reason(log: str) -> str:
    """Return in one line why a job has failed.

    Args:
        log: What it has written to standard error.
    """
    if missing := re.findall(r"unresolved dependency: ([^\s:]+)#([^;\s]+);(\S+?):? not found", log):
        jars = ", ".join(dict.fromkeys(":".join(parts) for parts in missing))
        return f"its jars are not to be had: {jars}"
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "its job ended without a word"


def warm_up_batches(usual: int) -> int:
    """Return how many batches a job warms up with.

    Args:
        usual: How many, unless the job is to be brief.
    """
    return usual // BRIEF_FACTOR if sys.argv[4:] == ["brief"] else usual


def session(packages: str = "", settings: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """Start Spark on two cores.

    Args:
        packages: Jars that it needs, by their Maven coordinates.
        settings: More of its settings.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - for the contender's process alone

    os.environ["PYSPARK_PYTHON"] = sys.executable  # by default workers use python3 of the PATH
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.shuffle.partitions", "2")
        # Over TCP a task of Python waits 40 ms for its input; see docs/install.md.
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.jars.packages", packages)
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def cpu_seconds(spark: SparkSession) -> float:
    """Return the CPU seconds of this process, of its JVM and of the JVM's Python workers."""
    assert spark.sparkContext._jvm is not None  # noqa: SLF001 - no public way to it
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current()  # noqa: SLF001
    spent = [process.info().totalCpuDuration() for process in (jvm, *jvm.descendants().toArray())]
    # A worker may have just ended.
    milliseconds: int = sum(one.get().toMillis() for one in spent if one.isPresent())
    return own_cpu_seconds() + milliseconds / 1000


def answer(run: Callable[[int], Measurement]) -> None:
    """Print that it is warm, and run once for each number of records that standard input has.

    Args:
        run: Runs, and returns what is printed as a line of JSON.
    """
    print("warm", flush=True)  # noqa: T201 - the caller waits for it
    for line in sys.stdin:
        print(json.dumps(asdict(run(int(line)))), flush=True)  # noqa: T201 - the caller reads it
