"""The driver's JVM as the owner of a checkpoint: its file lock ends when the JVM ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from py4j.protocol import Py4JError

from fanout.spark.hadoop.jvm import java_errors, jvm

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class JvmLock:
    """An exclusive lock on a file, held by the JVM and freed by `release` or the JVM's death.

    POSIX frees all of a process's locks on a file as soon as it closes any descriptor of that file
    (FileChannel's documentation warns of it), so a second attempt in one JVM must not even open it.
    A system property, which all sessions and Python gateways of a JVM share, keeps it away.
    """

    properties: Any  # the JVM's `java.util.Properties`
    key: str  # the property that marks the file
    file: Any  # `java.io.RandomAccessFile`; the lock ends when it is closed
    lock: Any  # `java.nio.channels.FileLock`

    @classmethod
    def try_acquire(cls, spark: SparkSession, path: Path) -> Self | None:
        """Lock a file, made when it is missing; return None if this JVM or another process has it.

        Raises:
            CheckpointError: The file cannot be opened, or its file system has no locks.
        """
        with java_errors(f"lock {path}"):
            properties, key = _properties(spark), _key(path)
            if properties.putIfAbsent(key, "held") is not None:
                return None
            lock = None
            try:
                file = jvm(spark).java.io.RandomAccessFile(str(path), "rw")
                try:
                    lock = file.getChannel().tryLock()
                finally:
                    if lock is None:
                        file.close()
            finally:
                if lock is None:
                    properties.remove(key)
        return None if lock is None else cls(properties, key, file, lock)

    @staticmethod
    def held_here(spark: SparkSession, path: Path) -> bool:
        """Say whether this JVM has the lock, or is about to take it."""
        with java_errors(f"look who has locked {path}"):
            return bool(_properties(spark).containsKey(_key(path)))

    @property
    def held(self) -> bool:
        """Whether the JVM still holds the lock."""
        with java_errors("ask Spark's JVM for the lock on the checkpoint"):
            return bool(self.lock.isValid())

    def release(self) -> None:
        """Free the lock. If the JVM has gone, so has the lock."""
        try:
            self.file.close()
            self.properties.remove(self.key)
        except (Py4JError, ConnectionError):
            return


class JvmProcess:
    """The driver's JVM, which locks a local checkpoint.

    The JVM and its tasks outlive a killed Python driver by some seconds, so the lock is the JVM's.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def try_lock(self, path: Path) -> JvmLock | None:
        """Lock a file; see `JvmLock.try_acquire`."""
        return JvmLock.try_acquire(self._spark, path)

    def has_locked(self, path: Path) -> bool:
        """Say whether this JVM has the lock, or is about to take it."""
        return JvmLock.held_here(self._spark, path)

    def describe(self) -> tuple[str, int]:
        """Return the name of the Spark application, and the id of the JVM's process."""
        with java_errors("ask Spark's JVM for its process id"):
            pid: Any = jvm(self._spark).java.lang.ProcessHandle.current().pid()
        context = self._spark.sparkContext
        return f"{context.appName} ({context.applicationId})", int(pid)


def _properties(spark: SparkSession) -> Any:
    return jvm(spark).java.lang.System.getProperties()


def _key(path: Path) -> str:
    return f"fanout.lock.{path.resolve()}"
