"""docs/examples/kinesis_to_delta.py: run as it stands, and killed once.

The crash campaign kills jobs with this sink at each step of a batch. Needs a pyspark that Delta has
jars for: `make prove-oldest` runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.examples.harness import Example
from tests.examples.waves import last_of_each_key, put_wave, sent
from tests.support.delta_table import delta_settings, files_of
from tests.support.doomed import Kill

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.testing.kinesis.server import KinesisServer

pytestmark = [pytest.mark.prove, pytest.mark.timeout(1200)]

# Delta has committed, and Spark does not know it.
KILL = Kill("fanout.spark.sinks.tables.delta_sink:DeltaSink._write", "after")


def committed(table: Path) -> list[bytes]:
    """Return the data of all orders, in order, as the log of the table has them."""
    columns = (pq.read_table(file, columns=["data"]).column("data") for file in files_of(table))
    return sorted(data for column in columns for data in column.to_pylist())


@pytest.mark.fault("A job that writes to a table is killed at each step of a batch")
def test_a_kill_loses_and_repeats_nothing(kinesis_server: KinesisServer, tmp_path: Path) -> None:
    settings = delta_settings()
    kinesis_server.create_stream("orders", 2)
    table = tmp_path / "table"
    environment = {"TABLE": str(table), **kinesis_server.environment}
    example = Example("kinesis_to_delta.py", tmp_path, environment, settings)
    put_wave(kinesis_server, 0)
    example.run_and_kill(KILL)
    put_wave(kinesis_server, 1)
    newest = last_of_each_key(2)
    example.run_until(lambda: newest.issubset(committed(table)))
    assert committed(table) == sent(2)
