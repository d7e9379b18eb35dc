"""docs/examples/kinesis_to_delta.py: run as it stands, and killed at each step of a batch.

Needs a pyspark that Delta has jars for: `make prove-oldest` runs it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest

from fanout.errors import SetupError
from tests.examples.doomed import Kill
from tests.examples.harness import AFTER_HANDLER, IN_HANDLER, Example
from tests.examples.waves import last_of_each_key, put_wave, sent
from tests.jars.fetch import delta_set, spark_jars

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.testing.kinesis.server import KinesisServer

pytestmark = [pytest.mark.prove, pytest.mark.timeout(1200)]

# Each run but the first repeats a batch, which is read and written, and is killed in the one after
# it.
KILLS = (
    Kill(IN_HANDLER, "in job"),
    Kill("pyspark.sql.readwriter:DataFrameWriter.save", "after", call=3),  # Delta has committed
    Kill(AFTER_HANDLER, "after", call=2),
)


@pytest.fixture
def settings() -> dict[str, str]:
    try:
        name = delta_set()
    except SetupError as error:
        pytest.skip(str(error))  # `make prove` runs all examples on the newest pyspark
    # A snapshot of a table is a job of 50 tasks by default.
    return {"spark.jars": spark_jars(name), "spark.databricks.delta.snapshotPartitions": "2"}


def committed(table: Path) -> list[bytes]:
    """Return the data of all orders, in order, as the log of the table has them."""
    files = set()
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for action in map(json.loads, entry.read_text().splitlines()):
            if "add" in action:
                files.add(unquote(action["add"]["path"]))
            if "remove" in action:
                files.remove(unquote(action["remove"]["path"]))
    columns = (pq.read_table(table / file, columns=["data"]).column("data") for file in files)
    return sorted(data for column in columns for data in column.to_pylist())


def test_kills_lose_and_repeat_nothing(
    kinesis_server: KinesisServer, settings: dict[str, str], tmp_path: Path
) -> None:
    kinesis_server.create_stream("orders", 2)
    table = tmp_path / "table"
    environment = {"TABLE": str(table), **kinesis_server.environment}
    example = Example("kinesis_to_delta.py", tmp_path, environment, settings)
    for number, kill in enumerate(KILLS):
        put_wave(kinesis_server, number)
        example.run_and_kill(kill)
    put_wave(kinesis_server, len(KILLS))
    newest = last_of_each_key(len(KILLS) + 1)
    example.run_until(lambda: newest.issubset(committed(table)))
    assert committed(table) == sent(len(KILLS) + 1)
