from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors.exceptions.captured import PythonException

from fanout.spark.hadoop.jvm import has_gone


@pytest.mark.spark
@pytest.mark.usefixtures("spark")  # without a JVM there is no such error
def test_what_a_python_worker_raised_does_not_mean_that_the_jvm_has_gone() -> None:
    # As pyspark 3.5 makes it, without the exception of Java behind it.
    assert not has_gone(PythonException("ValueError: 7", "at org.apache.spark"))
    assert has_gone(Py4JNetworkError("Answer from Java side is empty"))
