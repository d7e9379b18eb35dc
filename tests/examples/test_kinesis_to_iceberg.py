"""docs/examples/kinesis_to_iceberg.py: run as it stands, and killed once.

The crash campaign kills jobs with this sink at each step of a batch. Needs a pyspark that Iceberg
has a jar for: `make prove-oldest` runs it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fanout.testing.spark.session import short_lived_session
from tests.examples.harness import Example
from tests.examples.waves import put_wave, sent
from tests.jars.fetch import iceberg_set, spark_jars
from tests.support.doomed import Kill
from tests.support.spark.table_formats import format_settings, require

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.testing.kinesis.server import KinesisServer

pytestmark = [
    pytest.mark.prove,
    pytest.mark.timeout(1200),
    # collect() of pyspark 3.5 leaves the socket of the result to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

# Iceberg has committed, and Spark does not know it.
KILL = Kill("fanout.spark.sinks.tables.iceberg_sink:IcebergSink._commit", "after")


def count(warehouse: Path) -> int:
    """Return how many records the newest version of the table has."""
    versions = (warehouse / "shop" / "orders" / "metadata").glob("v*.metadata.json")
    newest = max(versions, key=lambda path: int(path.name[1:].partition(".")[0]), default=None)
    if newest is None:
        return 0
    found = json.loads(newest.read_text())
    current = [
        one for one in found["snapshots"] if one["snapshot-id"] == found["current-snapshot-id"]
    ]
    return int(current[0]["summary"]["total-records"]) if current else 0


def stored(warehouse: Path, scratch: Path) -> list[bytes]:
    """Return the data of all orders in the table, in order."""
    settings = format_settings(warehouse.parent)
    underscored = {name.replace(".", "_"): value for name, value in settings.items()}
    with short_lived_session("reader", scratch, **underscored) as spark:
        return sorted(bytes(row.data) for row in spark.table("lake.shop.orders").collect())


@pytest.mark.fault("A job that writes to a table is killed at each step of a batch")
def test_a_kill_loses_and_repeats_nothing(kinesis_server: KinesisServer, tmp_path: Path) -> None:
    require("iceberg")
    kinesis_server.create_stream("orders", 2)
    warehouse = tmp_path / "iceberg"
    environment = {"WAREHOUSE": str(warehouse), **kinesis_server.environment}
    settings = {"spark.jars": spark_jars(iceberg_set())}
    example = Example("kinesis_to_iceberg.py", tmp_path, environment, settings)
    put_wave(kinesis_server, 0)
    example.run_and_kill(KILL)
    put_wave(kinesis_server, 1)
    orders = sent(2)
    example.run_until(lambda: count(warehouse) >= len(orders))
    assert stored(warehouse, tmp_path) == orders
