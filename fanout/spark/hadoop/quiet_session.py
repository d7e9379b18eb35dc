"""A small Spark session for commands, which reaches the file systems of checkpoints."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fanout.errors import CheckpointError, SetupError
from fanout.spark.hadoop.jvm import JAVA_ERRORS, first_line, redact
from fanout.spark.hadoop.session_checks import require_java

if TYPE_CHECKING:
    from collections.abc import Iterator

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
