"""A landing has typed columns, and other processes get the decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq

import fanout
from fanout.decoding import Avro
from tests.support.avro_records import ORDER, ORDERS, written
from tests.support.kinesis.reading import Stream

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.testing.kinesis.server import KinesisServer


async def test_records_of_avro_are_landed_as_columns(
    kinesis_server: KinesisServer, tmp_path: Path
) -> None:
    stream = Stream(kinesis_server)
    bodies = written(ORDER, ORDERS)
    kinesis_server.put_records("orders", [("key", body) for body in bodies])
    source = stream.source(decode=Avro(ORDER, into="order"))
    async with fanout.land(source, str(tmp_path), max_wait=0.0) as landing:
        rows: list[object] = []
        while len(rows) < len(ORDERS):
            entry = await anext(landing)
            for file in entry.files:
                rows += pq.read_table(file).column("order").to_pylist()
    assert rows == ORDERS
