"""Check that Spark was started with the jars that a sink needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout.errors import SetupError
from fanout.spark.hadoop.jvm import JAVA_ERRORS, has_gone, jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_class(spark: SparkSession, name: str, remedy: str) -> None:
    """Check that a session has a class.

    Args:
        spark: A classic session.
        name: The full name of the class.
        remedy: What the sink needs and how to get it, as it follows "the sink needs".

    Raises:
        SetupError: The class is in no jar of the session.
    """
    try:
        jvm(spark).org.apache.spark.util.Utils.classForName(name, False, False)  # noqa: FBT003
    except JAVA_ERRORS as error:
        if has_gone(error):
            raise
        raise SetupError(f"this Spark has no class {name}; the sink needs {remedy}") from error


def require_extension(spark: SparkSession, extension: str, remedy: str) -> None:
    """Check that a session runs an extension of Spark's SQL.

    Args:
        spark: A classic session.
        extension: The full name of its class.
        remedy: What the sink needs and how to get it, as it follows "the sink needs".

    Raises:
        SetupError: The class is in no jar of the session, or `spark.sql.extensions` does not
            name it.
    """
    require_class(spark, extension, remedy)
    if extension not in str(spark.conf.get("spark.sql.extensions", "")).split(","):
        raise SetupError(f"spark.sql.extensions does not name {extension}; the sink needs {remedy}")
