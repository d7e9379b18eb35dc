"""Check that Spark was started with the jars of a table format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout.errors import SetupError
from fanout.spark.hadoop.jvm import JAVA_ERRORS, has_gone, jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_class(spark: SparkSession, extension: str, remedy: str) -> None:
    """Check that a session runs an extension of Spark's SQL.

    Args:
        spark: A classic session.
        extension: The full name of its class.
        remedy: What the sink needs and how to get it, as it follows "the sink needs".

    Raises:
        SetupError: The class is in no jar of the session, or `spark.sql.extensions` does not
            name it.
    """
    try:
        jvm(spark).org.apache.spark.util.Utils.classForName(extension, False, False)  # noqa: FBT003
    except JAVA_ERRORS as error:
        if has_gone(error):
            raise
        raise SetupError(f"this Spark has no class {extension}; the sink needs {remedy}") from error
    if extension not in str(spark.conf.get("spark.sql.extensions", "")).split(","):
        raise SetupError(f"spark.sql.extensions does not name {extension}; the sink needs {remedy}")
