"""docs/examples/kinesis_to_parquet.py: run as it stands, and killed once.

The crash campaign kills jobs with this sink at each step of a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.examples.harness import Example
from tests.examples.waves import last_of_each_key, put_wave, sent
from tests.support.doomed import Kill

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.testing.kinesis.server import KinesisServer

pytestmark = [pytest.mark.prove, pytest.mark.timeout(1200)]

# The marker is there, and Spark does not know it.
KILL = Kill("fanout.spark.sinks.tables.parquet_sink:ParquetSink._write", "after")


def written(output: Path) -> list[bytes]:
    """Return the data of all batches with a marker, in order."""
    found = []
    for marker in output.glob("query=*/sink=parquet/batch=*/_SUCCESS"):
        for file in marker.parent.glob("*.parquet"):
            found += pq.read_table(file, columns=["data"]).column("data").to_pylist()
    return sorted(found)


@pytest.mark.fault("A job that writes to a table is killed at each step of a batch")
def test_a_kill_loses_and_repeats_nothing(kinesis_server: KinesisServer, tmp_path: Path) -> None:
    kinesis_server.create_stream("orders", 2)
    output = tmp_path / "output"
    environment = {"OUTPUT": str(output), **kinesis_server.environment}
    example = Example("kinesis_to_parquet.py", tmp_path, environment)
    put_wave(kinesis_server, 0)
    example.run_and_kill(KILL)
    put_wave(kinesis_server, 1)
    newest = last_of_each_key(2)
    example.run_until(lambda: newest.issubset(written(output)))
    assert written(output) == sent(2)
