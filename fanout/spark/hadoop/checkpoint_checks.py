"""Check whether a remote file system keeps the promises that a checkpoint relies on."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from fanout.core.findings import fine, problem, warning
from fanout.errors import CheckpointError
from fanout.landing.storage.storage import temporary_name
from fanout.spark.hadoop.jvm import JAVA_ERRORS, is_java, java_errors, jvm, redact
from fanout.spark.hadoop.storage import EXISTS, resolve
from fanout.spark.hadoop.write_once import WriteOnce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fanout.core.findings import Finding

_CREATE: Final = "exclusive create"
# More than a pipe of Java holds: its writer goes on when the reader has begun.
_MORE_THAN_A_PIPE: Final = bytes(4096)
_NOT_EXCLUSIVE: Final = (
    "two queries on this checkpoint could both write one batch: never start a second one here; on "
    "S3 use Hadoop 3.4.2 or newer, and a store with conditional writes"
)


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
