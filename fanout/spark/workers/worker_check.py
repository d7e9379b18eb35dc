"""Check that Spark's Python workers can run the tasks of a query, before it relies on them."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, final
from uuid import uuid4
from weakref import WeakKeyDictionary

import msgspec
from pyspark.errors import PySparkException

from fanout.errors import SetupError
from fanout.spark.hadoop.jvm import JAVA_ERRORS, first_line, has_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from fanout.kafka.writing.write_options import WriteOptions

log = logging.getLogger(__name__)

_DISTRIBUTION: Final = "fanout-streams"
# The modules of fanout that tasks import; all others that they need are imported by these.
_MODULES: Final = (
    "fanout.spark.sinks.kafka.partitioned_rows",
    "fanout.spark.sinks.kafka.shuffle_frames",
    "fanout.spark.sinks.kafka.worker_task",
)
# The library of these codecs, without which aiokafka can be imported.
_CODEC_LIBRARY: Final = {"lz4": "cramjam", "snappy": "cramjam", "zstd": "cramjam"}

# Seconds for the job of the check, until an executor has run its task.
_LONGEST: Final = 60.0

_OTHER_PYTHON: Final = re.compile(r"different version:? \(?(\d+)[.,] ?(\d+)")
_NOT_STARTED: Final = re.compile(r"Cannot run program .*error=\d+, (.*)")
_PYTHON_ERROR: Final = re.compile(r"^\s*(\w+(?:Error|Exception|Exit): .*)$", re.MULTILINE)
_WORKER_ERROR: Final = re.compile(
    r"(Python worker (?:exited|failed) .*?)(?:\. Consider .*)?$", re.MULTILINE
)
_IMPORT_ERROR: Final = re.compile(r"^\s*((?:ModuleNotFound|Import)Error: .*)$", re.MULTILINE)

# The Pythons that each session was checked with, and for which modules.
_checked: WeakKeyDictionary[SparkContext, set[tuple[str, tuple[str, ...]]]] = WeakKeyDictionary()


@final
class _Worker(msgspec.Struct, frozen=True):
    """What a Python worker found."""

    python: str
    fanout: str | None
    failure: str | None
    answer: Any = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCheck:
    """What Python workers are asked."""

    work: str  # what they are to run, for messages: "the sink"
    modules: tuple[str, ...]  # what that imports
    extras: str  # the extras of fanout that it needs
    tasks: int = 1
    # The module and the name of a function that each task calls after the imports with `arguments`.
    # Its answer is of JSON's types, and it raises nothing.
    function: tuple[str, str] | None = None
    arguments: tuple[Any, ...] = ()


def check_workers(spark: SparkSession, options: WriteOptions) -> None:
    """Check once for a session and its Python that workers can run a sink; see `ask_workers`."""
    codec = _CODEC_LIBRARY.get(options.producing.compression_type)
    modules = _MODULES if codec is None else (*_MODULES, codec)
    context = spark.sparkContext
    checked = _checked.setdefault(context, set())
    if (context.pythonExec, modules) not in checked:
        ask_workers(context, WorkerCheck(work="the sink", modules=modules, extras="kafka,spark"))
        checked.add((context.pythonExec, modules))


def ask_workers(context: SparkContext, check: WorkerCheck) -> list[Any]:
    """Check that Python workers can run what a query needs, and return what their tasks answer.

    It runs a job, for a minute at most. If the workers of a local session cannot, and
    PYSPARK_PYTHON does not name their Python, the driver's Python is set: it is on the same machine
    and has the library.

    Raises:
        SetupError: Workers run another version of Python or of fanout, or lack a library; no
            executor runs the tasks; or the job of the check fails.
    """
    log.info("checking that Spark's Python workers can run %s: %s", check.work, context.pythonExec)
    answers = _answers(context, check)
    if isinstance(answers, str) and _may_set_python(context):
        log.info("%s; they run %s from now on", answers, sys.executable)
        context.pythonExec = sys.executable
        answers = _answers(context, check)
    if isinstance(answers, str):
        raise SetupError(f"{answers}; {_remedy(context, check.extras)}")
    return answers


def import_error(error: BaseException) -> SetupError | None:
    """Return the error of a job that no other attempt can mend: a worker cannot import a module."""
    found = _IMPORT_ERROR.findall(str(error))
    if not found:
        return None
    return SetupError(
        f"a task of the sink failed in Spark's Python worker: {found[-1]}; install it in the "
        f"Python of the workers, which PYSPARK_PYTHON names, and start the query again"
    )


def python_error(text: str) -> str | None:
    """Return the error of Python in what Spark says of a job; None where Python did not fail."""
    errors = _PYTHON_ERROR.findall(text) or _WORKER_ERROR.findall(text)
    return errors[-1] if errors else None


def _answers(context: SparkContext, check: WorkerCheck) -> list[Any] | str:
    """Run the check in workers, and return their answers, or what is wrong."""
    runs = f"Spark's Python workers run {context.pythonExec}"
    late = threading.Event()
    try:
        with _bounded(context, late):
            rows = context.parallelize(range(check.tasks), check.tasks)
            task = _task(check.modules, check.function, check.arguments)
            found = rows.mapPartitions(task).collect()
    except (PySparkException, *JAVA_ERRORS) as error:
        if has_gone(error):
            raise
        if late.is_set():
            raise SetupError(
                f"no executor has run the task that checks Spark's Python workers within "
                f"{_LONGEST:g} s; see that the cluster has a free core for this application"
            ) from error
        if (why := _why_not_started(str(error))) is not None:
            return f"{runs}, {why}"
        raise SetupError(
            f"the job that checks Spark's Python workers has failed: {first_line(error)}"
        ) from error
    workers = [msgspec.json.decode(answer, type=_Worker) for answer in found]
    problems = (problem for worker in workers if (problem := _problem(worker)) is not None)
    problem = next(problems, None)
    return [worker.answer for worker in workers] if problem is None else f"{runs} {problem}"


def _problem(worker: _Worker) -> str | None:
    if worker.failure is not None:
        return f"({worker.python}), where an import fails: {worker.failure}"
    ours = _version()
    if ours is not None and worker.fanout is not None and ours != worker.fanout:
        return f"({worker.python}) with fanout {worker.fanout}, and the driver has {ours}"
    return None


@contextmanager
def _bounded(context: SparkContext, late: threading.Event) -> Iterator[None]:
    """Cancel the jobs of the block after a time, and set `late` before."""
    tag = f"fanout-{uuid4().hex}"

    def cancel() -> None:
        late.set()
        context.cancelJobsWithTag(tag)

    timer = threading.Timer(_LONGEST, cancel)
    timer.daemon = True
    context.addJobTag(tag)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        context.removeJobTag(tag)


def _task(
    modules: Sequence[str], function: tuple[str, str] | None, arguments: Sequence[Any]
) -> Callable[[Iterable[Any]], Iterator[str]]:
    """Return the function that a worker runs.

    Spark sends a function inside another one as code, not by its module's name, so that workers
    without fanout can run it. For this reason it imports what it uses.
    """

    def check(_: Iterable[Any]) -> Iterator[str]:
        import json  # noqa: PLC0415
        import platform  # noqa: PLC0415
        import sys  # noqa: PLC0415
        from importlib import import_module, metadata  # noqa: PLC0415
        from traceback import format_exception_only  # noqa: PLC0415

        failure = found = answer = None
        try:
            for module in modules:
                import_module(module)
            if function is not None:
                answer = getattr(import_module(function[0]), function[1])(*arguments)
            found = metadata.version("fanout-streams")
        except metadata.PackageNotFoundError:
            pass  # it was shipped as a bare archive, which does not name its version
        except Exception as error:  # noqa: BLE001 - a library may raise anything as it is imported
            failure = format_exception_only(error)[-1].strip()
        python = f"Python {platform.python_version()} at {sys.executable}"
        said = {"python": python, "fanout": found, "failure": failure, "answer": answer}
        yield json.dumps(said)

    return check


def _why_not_started(text: str) -> str | None:
    """Return why the Python of a worker did not run the check; None where another thing failed.

    An executor may be lost, or the job cancelled: that is not the fault of the Python.
    """
    if match := _OTHER_PYTHON.search(text):
        ours = ".".join(map(str, sys.version_info[:2]))
        return f"which is Python {match[1]}.{match[2]}, and the driver has Python {ours}"
    if match := _NOT_STARTED.search(text):
        return f"which cannot be started: {match[1]}"
    error = python_error(text)
    return None if error is None else f"which fails: {error}"


def _version() -> str | None:
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return None


def _is_local(context: SparkContext) -> bool:
    master = str(context.master)
    return master == "local" or master.startswith("local[")


def _may_set_python(context: SparkContext) -> bool:
    """Return whether workers are on this machine, and the user has not chosen their Python."""
    return (
        _is_local(context)
        and "PYSPARK_PYTHON" not in os.environ
        and sys.executable not in {"", None, context.pythonExec}
    )


def _remedy(context: SparkContext, extras: str) -> str:
    if _is_local(context):
        python = sys.executable
        return (
            f"set PYSPARK_PYTHON={python} before the session is created, or with spark-submit "
            f"--conf spark.pyspark.python={python}"
        )
    release = "" if (ours := _version()) is None else f"=={ours}"
    return (
        f"install '{_DISTRIBUTION}[{extras}]{release}' there on every node; or name a Python "
        f"that has it by PYSPARK_PYTHON before the session is created, or with spark-submit "
        f"--conf spark.pyspark.python=PATH, where --archives ships an environment"
    )
