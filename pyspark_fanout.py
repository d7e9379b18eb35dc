"""Spark 4 imports this module by its name, and registers `format("fanout")`."""

from fanout.errors import SetupError

try:
    from fanout.spark.dataframe.data_source import LandingDataSource as DefaultSource
except ModuleNotFoundError as error:
    if error.name != "pyspark.sql.datasource":
        raise
    raise SetupError(
        'format("fanout") needs pyspark 4.0 or newer; use fanout.spark.foreach_batch, which needs '
        "3.5"
    ) from error

__all__ = ("DefaultSource",)
