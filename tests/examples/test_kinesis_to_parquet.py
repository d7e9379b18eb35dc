"""docs/examples/kinesis_to_parquet.py: run as it stands, and killed at each step of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.examples.doomed import Kill
from tests.examples.harness import AFTER_HANDLER, IN_HANDLER, Example
from tests.examples.waves import last_of_each_key, put_wave, sent

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.testing.kinesis.server import KinesisServer

pytestmark = [pytest.mark.prove, pytest.mark.timeout(1200)]

SINK = "fanout.spark.tables.parquet_sink:ParquetSink._write"
# Each run but the first repeats a batch, and is killed in the one after it.
KILLS = (
    Kill(IN_HANDLER, "in job"),  # some files are there, and no marker
    Kill(SINK, "before", call=2),
    Kill(SINK, "after", call=2),  # the marker is there, and Spark does not know it
    Kill(AFTER_HANDLER, "after", call=2),
)


def written(output: Path) -> list[bytes]:
    """Return the data of all batches with a marker, in order."""
    found = []
    for marker in output.glob("query=*/sink=parquet/batch=*/_SUCCESS"):
        for file in marker.parent.glob("*.parquet"):
            found += pq.read_table(file, columns=["data"]).column("data").to_pylist()
    return sorted(found)


def test_kills_lose_and_repeat_nothing(kinesis_server: KinesisServer, tmp_path: Path) -> None:
    kinesis_server.create_stream("orders", 2)
    output = tmp_path / "output"
    environment = {"OUTPUT": str(output), **kinesis_server.environment}
    example = Example("kinesis_to_parquet.py", tmp_path, environment)
    for number, kill in enumerate(KILLS):
        put_wave(kinesis_server, number)
        example.run_and_kill(kill)
    put_wave(kinesis_server, len(KILLS))
    newest = last_of_each_key(len(KILLS) + 1)
    example.run_until(lambda: newest.issubset(written(output)))
    assert written(output) == sent(len(KILLS) + 1)
