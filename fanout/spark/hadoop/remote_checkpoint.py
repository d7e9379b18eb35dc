"""How commands reach a remote checkpoint: by a small session, which checks its file system."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fanout.core.findings import fine, problem, warning
from fanout.errors import CheckpointError, SetupError
from fanout.landing.storage.storage import temporary_name
from fanout.spark.hadoop.jvm import JAVA_ERRORS, first_line, is_java, java_errors, jvm, redact
from fanout.spark.hadoop.session_checks import require_java
from fanout.spark.hadoop.storage import EXISTS, resolve
from fanout.spark.hadoop.write_once import WriteOnce

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.core.findings import Finding

# How Hadoop words a file system whose jar is not on the class path.
_NO_JAR: Final = ("No FileSystem for scheme", "ClassNotFoundException", "NoClassDefFoundError")
# No jar has this one: a location is to begin with s3a://.
_WRONG_SCHEME: Final = 'No FileSystem for scheme "s3"'

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # A user waits: by default a dead name node is tried for a minute, and a silent one for 15.
    "spark.hadoop.ipc.client.connect.timeout": "5000",
    "spark.hadoop.ipc.client.connect.max.retries": "1",
    "spark.hadoop.ipc.client.connect.max.retries.on.timeouts": "1",
    "spark.hadoop.fs.s3a.attempts.maximum": "2",
    "spark.hadoop.fs.s3a.retry.limit": "2",
}
_CREATE: Final = "exclusive create"
# More than a pipe of Java holds: its writer goes on when the reader has begun.
_MORE_THAN_A_PIPE: Final = bytes(4096)
_NOT_EXCLUSIVE: Final = (
    "two queries on this checkpoint could both write one batch: never start a second one here; on "
    "S3 use Hadoop 3.4.2 or newer, and a store with conditional writes"
)


@contextmanager
def quiet_session() -> Iterator[SparkSession]:
    """Start a session with one core that prints nothing, and stop it afterwards.

    Its jars and settings are those of spark-defaults.conf and PYSPARK_SUBMIT_ARGS. A session of
    this process is used, and goes on, where there is one.

    Raises:
        SetupError: There is no Java, Spark does not start, or the block needs a file system whose
            jar is missing.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        with _naming_jar():
            yield active
        return
    require_java()
    builder = SparkSession.builder.master("local[1]").appName("fanout command")
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    with tempfile.TemporaryFile() as printed:
        try:
            with _output_to(printed):
                session = builder.getOrCreate()
        except (PySparkException, *JAVA_ERRORS) as error:
            text = "Spark does not start, and remote checkpoints are read through it: "
            text += redact(first_line(error))
            printed.seek(0)
            reason = _reason(printed.read().decode(errors="replace"))
            # An exception of Java says the reason itself; without one the JVM has not started.
            if reason is not None and not isinstance(error, JAVA_ERRORS):
                text = f"{text} {reason}"
            raise SetupError(text) from error
    try:
        with _naming_jar():
            yield session
    finally:
        session.stop()


@contextmanager
def _naming_jar() -> Iterator[None]:
    """Say where to name the jar of a file system that Spark lacks, where the error does not."""
    try:
        yield
    except CheckpointError as error:
        if _WRONG_SCHEME in str(error) or not any(text in str(error) for text in _NO_JAR):
            raise
        raise SetupError(
            f"{error}; name its jar and its settings in spark-defaults.conf, or in "
            f"PYSPARK_SUBMIT_ARGS as '--packages GROUP:NAME:VERSION pyspark-shell'"
        ) from error


@contextmanager
def _output_to(file: IO[bytes]) -> Iterator[None]:
    """Let a process that starts meanwhile print to a file; Ivy prints to both of its outputs."""
    sys.stdout.flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    try:
        for number in kept:
            os.dup2(file.fileno(), number)
        yield
    finally:
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)


def _reason(printed: str) -> str | None:
    """Return the last line that names an error, or the last one; lines of a stack do not count."""
    lines = [line for line in printed.splitlines() if line.strip() and not line.startswith("\t")]
    errors = [line for line in lines if "Exception" in line or "Error" in line]
    return redact((errors or lines)[-1].strip()) if lines else None


def examine_location(spark: SparkSession, checkpoint_location: str) -> list[Finding]:
    """Check whether a checkpoint location can be reached, and creates a file exclusively; blocks.

    Two writers race for a probe file there, which is removed again.

    Raises:
        CheckpointError: Its scheme is unknown.
    """
    file_system, root, local = resolve(spark, checkpoint_location)
    check, where = "checkpoint location", redact(str(root.toString()))
    if local is not None:
        return [fine(check, f"{where} is on this machine, where a query holds a lock")]
    advice = "check the location, the network, and the credentials in Spark's configuration"
    try:
        with java_errors(f"use {where}"):
            existed = bool(file_system.exists(root))
    except CheckpointError as error:
        return [problem(check, str(error), advice)]
    state = "holds a checkpoint" if existed else "is empty"
    findings = [fine(check, f"{where} answers and {state}")]
    try:
        with java_errors(f"write below {where}"):
            findings.append(_examine_create(jvm(spark), file_system, root, existed=existed))
    except CheckpointError as error:
        findings.append(problem(_CREATE, str(error), "grant writing and deleting there"))
    return findings


def _examine_create(view: Any, file_system: Any, root: Any, *, existed: bool) -> Finding:
    """Let one writer create a file while another, who saw that it was missing, creates it too."""
    path = view.org.apache.hadoop.fs.Path(root, temporary_name())
    try:
        writer = WriteOnce(view, file_system, root)
        slow = _SlowWriter(view, writer, path)
        try:
            slow.wait_until_it_writes()
            if not slow.failed:
                writer.write(path, view.java.io.ByteArrayInputStream(b"probe"))
        finally:
            refused = slow.finish()
    finally:
        file_system.delete(path, False)  # noqa: FBT003 - Java: recursive
        if not existed:
            file_system.delete(root, False)  # noqa: FBT003 - Java: recursive
    if refused:
        return fine(_CREATE, f"of two writers one was refused, by {writer.creation.value}")
    return warning(_CREATE, "of two writers at once both succeeded", _NOT_EXCLUSIVE)


class _SlowWriter:
    """Write a file in a thread that has begun, and cannot end before `finish`."""

    def __init__(self, view: Any, writer: WriteOnce, path: Any) -> None:
        self._pipe = view.java.io.PipedOutputStream()
        self._source = view.java.io.PipedInputStream(self._pipe)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._write, args=(writer, path), daemon=True)
        self._thread.start()

    @property
    def failed(self) -> bool:
        """Whether it has failed already."""
        return self._error is not None

    def wait_until_it_writes(self) -> None:
        """Wait until it has looked for the file and reads what to write, or has failed."""
        try:
            self._pipe.write(_MORE_THAN_A_PIPE)
        except JAVA_ERRORS:
            self._thread.join()

    def finish(self) -> bool:
        """Let it end, and return whether the file existed; raise another error of the write."""
        with suppress(*JAVA_ERRORS):  # the reader may have closed it
            self._pipe.close()
        self._thread.join()
        error = self._error
        if error is None or isinstance(error, FileExistsError) or is_java(error, *EXISTS):
            return error is not None
        raise error

    def _write(self, writer: WriteOnce, path: Any) -> None:
        try:
            writer.write(path, self._source)
        except BaseException as error:  # noqa: BLE001 - it is raised in `finish`
            self._error = error
        finally:
            self._source.close()
