"""Spark's settings for the table formats that have jars for this environment's pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from fanout.errors import SetupError
from tests.jars.fetch import delta_set, iceberg_set, spark_jars
from tests.support.delta_table import DELTA_SETTINGS
from tests.support.groups import SPARK_LAKEHOUSES, SPARK_TABLES

if TYPE_CHECKING:
    from pathlib import Path

CATALOG: Final = "lake"
"""The catalog of Iceberg's tables."""

ICEBERG_SETTINGS: Final[dict[str, str]] = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
    f"spark.sql.catalog.{CATALOG}.type": "hadoop",
}
_SETTINGS: Final = {"delta": DELTA_SETTINGS, "iceberg": ICEBERG_SETTINGS}
_SETS: Final = {"delta": delta_set, "iceberg": iceberg_set}


def _has_set(name: str) -> bool:
    """Say whether there is a set of jars, downloaded or not: an import downloads nothing."""
    try:
        return bool(_SETS[name]())
    except SetupError:
        return False


LAKEHOUSES: Final = SPARK_LAKEHOUSES if any(map(_has_set, _SETS)) else SPARK_TABLES
"""The group of tests that skip where no format has jars: there they start no Spark of their own."""


def format_settings(warehouse: Path) -> dict[str, str]:
    """Return the settings of a session for the formats that there are jars for.

    Args:
        warehouse: The directory of tables that have names alone.
    """
    jars, merged = [], {"spark.sql.warehouse.dir": str(warehouse)}
    for name, settings in _SETTINGS.items():
        try:
            jars.append(spark_jars(_SETS[name]()))
        except SetupError:
            continue
        both = [merged.get("spark.sql.extensions"), settings["spark.sql.extensions"]]
        merged |= settings | {"spark.sql.extensions": ",".join(filter(None, both))}
    if jars:
        merged["spark.jars"] = ",".join(jars)
        merged[f"spark.sql.catalog.{CATALOG}.warehouse"] = str(warehouse / "iceberg")
    return merged


def require(name: str) -> None:
    """Skip a test where there are no jars of a format for this pyspark.

    Args:
        name: The format.
    """
    try:
        _ = spark_jars(_SETS[name]())
    except SetupError as error:
        pytest.skip(str(error))
