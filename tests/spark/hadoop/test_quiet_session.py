"""The session of commands: why it does not start."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fanout.spark.hadoop.remote_checkpoint import _reason

pytestmark = pytest.mark.spark

_PROGRAM = """
from fanout.errors import SetupError
from fanout.spark.hadoop.remote_checkpoint import quiet_session
try:
    with quiet_session():
        pass
except SetupError as error:
    print(error)
"""


@pytest.mark.long
def test_a_wrong_package_is_named() -> None:
    done = subprocess.run(  # noqa: S603 - our own Python
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": "--packages nonsense pyspark-shell"},
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = done.stdout.splitlines()
    assert line.startswith("Spark does not start, and remote checkpoints are read through it: ")
    assert "[JAVA_GATEWAY_EXITED]" in line
    assert line.endswith("The coordinate provided is: nonsense")
    assert done.stderr == ""


def test_the_reason_is_the_last_error_and_no_frame_of_a_stack() -> None:
    printed = (
        ":: retrieving :: org.apache.spark#spark-submit-parent\n"
        'Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: a#b;1]\n'
        "\tat org.apache.spark.deploy.SparkSubmitUtils$.resolve(SparkSubmit.scala:1)\n"
        "26/01/01 00:00:00 INFO ShutdownHookManager: Shutdown hook called\n"
    )
    assert _reason(printed) == (
        'Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: a#b;1]'
    )
    assert _reason("one\n\n  two  \n\n") == "two"
    assert _reason("a Error at s3a://key:secret@lake") == "a Error at s3a://key:***@lake"
    assert _reason("\n") is None
