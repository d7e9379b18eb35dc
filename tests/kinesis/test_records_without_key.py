"""Records that a producer put without a partition key, on a stream that distributes them itself."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import fanout
from fanout.kinesis.reading.decode import FEW_ROWS
from fanout.kinesis.writing.kpl_format import encode_aggregate
from tests.support.kinesis.reading import FIRST, Stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

modes = pytest.mark.parametrize("mode", ["efo", "polling"])

Rows = list[tuple[str | None, bytes]]

KEYS: dict[str, Callable[[int], str | None]] = {
    "all have one": lambda number: f"key-{number}",
    "some have one": lambda number: f"key-{number}" if number % 3 else None,
    "none has one": lambda _: None,
}


def rows_of(drained: fanout.Drained) -> Rows:
    return [
        (row["partitionKey"], row["data"])
        for batch in drained.batches
        for row in batch.records.select(["partitionKey", "data"]).to_pylist()
    ]


@pytest.mark.fault("A producer gave no partition key")
@modes
@pytest.mark.parametrize("count", [3, FEW_ROWS + 1])
@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
async def test_a_key_that_was_not_given_is_null(
    stream: Stream, mode: str, count: int, keys: Callable[[int], str | None]
) -> None:
    put: Rows = [(keys(number), b"%d" % number) for number in range(count)]
    stream.server.put_records("orders", put)
    async with stream.open(mode=mode, on_bad_frame="gap") as opened:
        drained = await opened.drain(max_records=count, first_wait=math.inf)
        assert rows_of(drained) == put
        assert opened.statistics().gaps == 0


@modes
async def test_an_aggregate_without_a_key_has_the_keys_of_its_own_records(
    stream: Stream, mode: str
) -> None:
    aggregate = encode_aggregate([("ann", b"1"), ("bob", b"2")])
    stream.server.put_records("orders", [(None, b"0"), (None, aggregate), (None, b"3")])
    async with stream.open(mode=mode) as opened:
        drained = await opened.drain(max_records=4, first_wait=math.inf)
    assert rows_of(drained) == [(None, b"0"), ("ann", b"1"), ("bob", b"2"), (None, b"3")]


@modes
async def test_an_aggregate_that_the_service_placed_in_any_child_keeps_all_its_records(
    stream: Stream, mode: str
) -> None:
    """Its hash keys say nothing there, and without the key of the KPL nothing puts it again."""
    child, _ = stream.server.split_shard("orders", FIRST)
    pairs = [(f"key-{number}", b"%d" % number) for number in range(20)]
    stream.server.put_records("orders", [(None, encode_aggregate(pairs))], shard=child)
    async with stream.open(mode=mode) as opened:
        drained = await opened.drain(max_records=len(pairs), first_wait=math.inf)
    assert rows_of(drained) == pairs


@modes
async def test_an_aggregate_of_the_kpl_that_the_service_distributed_keeps_all_its_records(
    stream: Stream, mode: str
) -> None:
    """The KPL may count all of it as put, wherever it is."""
    stream.server.split_shard("orders", FIRST)
    stream.distribute()
    pairs = [(f"key-{number}", b"%d" % number) for number in range(20)]
    stream.server.put_records("orders", [("a", encode_aggregate(pairs))])
    async with stream.open(mode=mode) as opened:
        drained = await opened.drain(max_records=len(pairs), first_wait=math.inf)
    assert rows_of(drained) == pairs


@modes
async def test_decode_gets_a_null(stream: Stream, mode: str) -> None:
    def lengths(records: pa.RecordBatch) -> pa.RecordBatch:
        keys = records.column("partitionKey").to_pylist()
        given = pa.array([None if key is None else len(key) for key in keys], pa.int64())
        return records.drop_columns(["partitionKey"]).append_column("length", given)

    stream.server.put_records("orders", [("ann", b"1"), (None, b"2")])
    async with stream.open(mode=mode, decode=lengths) as opened:
        drained = await opened.drain(max_records=2, first_wait=math.inf)
    assert [batch.records["length"].to_pylist() for batch in drained.batches] == [[3, None]]


async def test_a_landing_stores_a_null(stream: Stream, tmp_path: Path) -> None:
    put: Rows = [("ann", b"1"), (None, b"2")]
    stream.server.put_records("orders", put)
    place = tmp_path / "landing"
    async with fanout.land(stream.source(mode="polling"), str(place), available_now=True) as landed:
        files = [file async for entry in landed for file in entry.files]
    table = await asyncio.to_thread(ds.dataset(files).to_table)
    assert table.schema.field("partitionKey").nullable
    found = table.select(["partitionKey", "data"]).to_pylist()
    assert [(row["partitionKey"], row["data"]) for row in found] == put


async def test_records_without_a_key_are_spread_over_the_shards_of_the_embedded_server(
    stream: Stream,
) -> None:
    stream.server.split_shard("orders", FIRST)
    put: Any = [(None, b"%d" % number) for number in range(50)]
    shards = [shard for shard, _ in stream.server.put_records("orders", put)]
    assert len(set(shards)) == 2
