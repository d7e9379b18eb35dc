from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors.exceptions.captured import PythonException

from fanout.spark.hadoop.jvm import first_and_last_cause, has_gone


class Throwable:
    """An exception of Java, as py4j shows it."""

    def __init__(self, message: str, cause: Throwable | None = None, state: str = "") -> None:
        self.getMessage = lambda: message
        self.getCause = lambda: cause
        self.getSqlState = lambda: state
        self.getClass = lambda: self
        self.getSimpleName = lambda: "SparkException"
        self.getName = lambda: "org.apache.spark.SparkException"
        self.getSuperclass = lambda: None


class CaughtError(Exception):
    def __init__(self, origin: Throwable) -> None:
        self._origin = origin


def test_a_password_of_a_uri_is_not_shown() -> None:
    cause = Throwable("while reading file s3a://key:secret@lake/rows.parquet")
    said = first_and_last_cause(CaughtError(Throwable("the job is aborted", cause)))
    assert said == (
        "SparkException: the job is aborted; caused by SparkException: while reading file "
        "s3a://key:***@lake/rows.parquet"
    )


def test_a_message_of_a_long_line_is_short() -> None:
    endless = Throwable("x" * 1_000_000)
    endless.getCause = lambda: endless
    assert len(first_and_last_cause(CaughtError(endless))) <= 2100


def test_a_value_that_spark_refuses_is_not_shown() -> None:
    refused = "[CAST_INVALID_INPUT] The value 'secret' cannot be cast"
    parser = Throwable("Unrecognized token 'secret'")
    cause = Throwable(refused, parser, "22018")
    aborted = Throwable(f"Task 0 in stage 1.0 failed 1 times: {refused}", cause)
    for error, said in [
        (cause, "SparkException: [CAST_INVALID_INPUT]"),
        (aborted, "SparkException: Task 0 in stage 1.0 failed 1 times: [CAST_INVALID_INPUT]"),
    ]:
        assert first_and_last_cause(CaughtError(error)) == said


@pytest.mark.spark
@pytest.mark.usefixtures("spark")  # without a JVM there is no such error
def test_what_a_python_worker_raised_does_not_mean_that_the_jvm_has_gone() -> None:
    # As pyspark 3.5 makes it, without the exception of Java behind it.
    assert not has_gone(PythonException("ValueError: 7", "at org.apache.spark"))
    assert has_gone(Py4JNetworkError("Answer from Java side is empty"))
