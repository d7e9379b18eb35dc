"""docs/examples/kinesis_to_delta.py: run as it stands, and killed at each step of a batch.

Needs a pyspark that Delta has jars for: `make prove-oldest` runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.delta_table import delta_settings, files_of
from tests.examples.doomed import Kill
from tests.examples.harness import AFTER_HANDLER, IN_HANDLER, Example
from tests.examples.waves import last_of_each_key, put_wave, sent

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


def committed(table: Path) -> list[bytes]:
    """Return the data of all orders, in order, as the log of the table has them."""
    columns = (pq.read_table(file, columns=["data"]).column("data") for file in files_of(table))
    return sorted(data for column in columns for data in column.to_pylist())


def test_kills_lose_and_repeat_nothing(kinesis_server: KinesisServer, tmp_path: Path) -> None:
    settings = delta_settings()
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
