"""Check that Spark was started with the jars that a sink needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout.errors import SetupError
from fanout.spark.hadoop.jvm import JAVA_ERRORS, has_gone, jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_class(spark: SparkSession, name: str, remedy: str) -> None:
    """Raise SetupError where no jar of a session has a class.

    `remedy` is what the sink needs and how to get it, as it follows "the sink needs".
    """
    try:
        jvm(spark).org.apache.spark.util.Utils.classForName(name, False, False)  # noqa: FBT003
    except JAVA_ERRORS as error:
        if has_gone(error):
            raise
        raise SetupError(f"this Spark has no class {name}; the sink needs {remedy}") from error


def require_extension(spark: SparkSession, extension: str, remedy: str) -> None:
    """Raise SetupError where a session lacks an extension of Spark's SQL; see `require_class`."""
    require_class(spark, extension, remedy)
    if extension not in str(spark.conf.get("spark.sql.extensions", "")).split(","):
        raise SetupError(f"spark.sql.extensions does not name {extension}; the sink needs {remedy}")
