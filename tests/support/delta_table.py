"""What tests need of Delta: Spark's settings, and the files that a table's log names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pytest

from fanout.errors import SetupError
from tests.jars.fetch import delta_set, spark_jars

if TYPE_CHECKING:
    from pathlib import Path

DELTA_SETTINGS: Final[dict[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # A snapshot of a table is a job of 50 tasks by default.
    "spark.databricks.delta.snapshotPartitions": "2",
}
"""What a session with Delta's jars needs."""


def delta_settings() -> dict[str, str]:
    """Return settings of Spark; the test is skipped where Delta has no jars for this pyspark."""
    try:
        name = delta_set()
    except SetupError as error:
        pytest.skip(str(error))
    return {"spark.jars": spark_jars(name)} | DELTA_SETTINGS


def submit_with_delta() -> dict[str, str]:
    """Return the environment of a driver with Delta; the test is skipped as above."""
    words = [f"--conf {name}={value}" for name, value in delta_settings().items()]
    return {"PYSPARK_SUBMIT_ARGS": " ".join([*words, "pyspark-shell"])}


def files_of(table: Path) -> list[Path]:
    """Return the files that a table consists of, from its log."""
    files = set()
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for action in map(json.loads, entry.read_text().splitlines()):
            if "add" in action:
                files.add(unquote(action["add"]["path"]))
            if "remove" in action:
                files.remove(unquote(action["remove"]["path"]))
    return [table / file for file in sorted(files)]
