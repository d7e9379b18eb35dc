"""Let the JVM of the job come to moments too: where a file of a sink gets its name.

Spark and the table formats write by Hadoop's file system of this machine. The job has a subclass of
it, which calls Python.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from pyspark.java_gateway import ensure_callback_server_started

from fanout.spark.hadoop.jvm import hadoop_configuration, jvm
from tests.provers.crash.moments import CrashMoment
from tests.provers.crash.sinks.destination import NEWEST, ROWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.provers.crash.control import Control

__all__ = ("FILE_STEPS", "watch_files")

_SOURCE: Final = Path(__file__).with_name("WatchedFileSystem.java")
_CLASS: Final = "fanout.testing.WatchedFileSystem"
# Delta's log has a file for each commit, and Iceberg a file for each version of a table.
_COMMIT: Final = r"(?:_delta_log/\d+\.json|metadata/v\d+\.metadata\.json)$"
_BATCH: Final = rf"/{ROWS}/query=[^/]*/sink=[^/]*/batch=\d+"


class FileStep(NamedTuple):
    """A step of a sink that is done when a file has its name.

    Args:
        pattern: What the path of the file is like.
        before: The moment before the file has its name.
        after: The moment after that.
    """

    pattern: str
    before: CrashMoment
    after: CrashMoment


FILE_STEPS: Final = (
    FileStep(rf"{_BATCH}/part-[^/]*$", CrashMoment.BEFORE_FILE, CrashMoment.AFTER_FILE),
    FileStep(rf"{_BATCH}/_SUCCESS$", CrashMoment.BEFORE_MARKER, CrashMoment.AFTER_MARKER),
    FileStep(
        rf"/{NEWEST}/{_COMMIT}", CrashMoment.BEFORE_MERGE_COMMIT, CrashMoment.AFTER_MERGE_COMMIT
    ),
    FileStep(
        rf"/{ROWS}/{_COMMIT}", CrashMoment.BEFORE_TABLE_COMMIT, CrashMoment.AFTER_TABLE_COMMIT
    ),
)


def watch_files(spark: SparkSession, control: Control) -> None:
    """Let everything in a session's JVM that writes files come to moments.

    Args:
        spark: A session that has written nothing yet.
        control: Where strikes are taken from.
    """
    gateway: Any = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    java = jvm(spark)
    compiler = java.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(java.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_SOURCE.read_text(encoding="utf-8"))
    configuration = java.org.apache.hadoop.conf.Configuration(hadoop_configuration(spark))
    configuration.setClassLoader(compiler.getClassLoader())
    configuration.set("fs.file.impl", _CLASS)
    # Hadoop keeps one file system for all that ask for it later, whatever their settings are.
    java.org.apache.hadoop.fs.FileSystem.closeAll()
    files = java.org.apache.hadoop.fs.FileSystem.get(java.java.net.URI("file:///"), configuration)
    files.watch("|".join(step.pattern for step in FILE_STEPS), _Watcher(control))


@final
class _Watcher:
    """A Consumer of Java, which py4j calls."""

    class Java:
        """The interface that py4j implements with it."""

        implements = ("java.util.function.Consumer",)

    def __init__(self, control: Control) -> None:
        self._control = control

    def accept(self, told: str) -> None:
        """Come to the moment before or after a file has its name."""
        when, _, path = told.partition(" ")
        for step in FILE_STEPS:
            if re.search(step.pattern, path):
                self._control.reach(step.before if when == "before" else step.after, None)
