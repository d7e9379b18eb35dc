"""Read shards with `decode`, and choose what becomes of records that it fails for."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import fanout
from fanout.core.positions import Cursor
from fanout.decoding import Json
from fanout.errors import (
    DecodeFailedError,
    OptionError,
    RetryLaterError,
    SplitFailedError,
)
from fanout.kinesis.reading.decode import SCHEMA
from fanout.kinesis.writing.kpl_format import encode_aggregate
from tests.kinesis.test_options import source
from tests.support.kinesis.reading import FIRST, Stream

if TYPE_CHECKING:
    from fanout import BadRecords

PLACES = ["shardId", "sequenceNumber", "subSequenceNumber"]
CANARY = "canary-record"


def numbers(records: pa.RecordBatch) -> pa.RecordBatch:
    """Read each record as a number, and leave negative ones out."""
    values = [int(data) for data in records.column("data").to_pylist()]
    kept = [row for row, value in enumerate(values) if value >= 0]
    places = records.select(PLACES).take(pa.array(kept, pa.int64()))
    return places.append_column("number", pa.array([values[row] for row in kept], pa.int64()))


def put(stream: Stream, *data: bytes) -> None:
    stream.server.put_records("orders", [("key", each) for each in data])


def put_mixed(stream: Stream) -> list[int]:
    """Put records, aggregated ones too, some of which are left out and some cannot be decoded."""
    put(stream, b"0", CANARY.encode())
    aggregate = [b"1", b"-1", CANARY.encode(), b"2", b"3", CANARY.encode()]
    put(stream, encode_aggregate([("key", each) for each in aggregate]), b"4", b"-2", b"5")
    put(stream, encode_aggregate([("key", CANARY.encode())] * 2), b"6")
    return [*range(7)]


class Kept:
    """Keep what a function for bad records is given."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int]] = []

    async def __call__(self, bad: BadRecords) -> None:
        assert bad.records.schema == SCHEMA
        assert len(bad.errors) == bad.records.num_rows
        assert set(bad.records.column("data").to_pylist()) == {CANARY.encode()}
        columns = bad.records.column("sequenceNumber"), bad.records.column("subSequenceNumber")
        self.rows += zip(*(column.to_pylist() for column in columns), strict=True)
        await asyncio.sleep(0)


def of(drained: fanout.Drained) -> list[int]:
    return [each for batch in drained.batches for each in batch.records["number"].to_pylist()]


@pytest.mark.parametrize("mode", ["efo", "polling"])
async def test_columns_of_the_users_are_read_and_rows_are_left_out(
    stream: Stream, mode: str
) -> None:
    put(stream, b"7", b"-1", b"8")
    options: Any = {"decode": numbers, "mode": mode}
    assert stream.source(**options).schema.names == [*PLACES, "number"]
    async with stream.open(**options) as opened:
        drained = await opened.drain(max_records=2, first_wait=math.inf)
        assert of(drained) == [7, 8]
        assert drained.batches[0].records.schema == stream.source(**options).schema
        assert opened.statistics().splits[FIRST].newest is None  # its column was dropped


async def test_sub_records_may_be_left_out(stream: Stream) -> None:
    put(stream, encode_aggregate([("key", each) for each in (b"1", b"-1", b"2", b"3")]))
    async with stream.open(decode=numbers) as opened:
        assert of(await opened.drain(max_records=3, first_wait=math.inf)) == [1, 2, 3]


async def test_an_error_of_decode_ends_the_stream_and_names_no_data(stream: Stream) -> None:
    put(stream, b"7", CANARY.encode())
    async with stream.open(decode=numbers) as opened:
        with pytest.raises(SplitFailedError, match=f"decode failed for {FIRST} from seq") as failed:
            await opened.drain(max_records=9, first_wait=math.inf)
    cause = failed.value.__cause__
    assert isinstance(cause, DecodeFailedError)
    assert isinstance(cause.__cause__, ValueError)
    assert CANARY not in str(failed.value)


async def test_bad_records_are_gaps_between_what_is_delivered(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    expected = put_mixed(stream)
    async with stream.open(decode=numbers, on_bad_record="gap") as opened:
        drained = await opened.drain(max_records=len(expected), first_wait=math.inf)
        gaps = [gap for batch in drained.batches for gap in batch.gaps]
        assert of(drained) == expected
        assert opened.statistics().gaps == len(gaps) == 4
    sub_records = [(gap.after, gap.until) for gap in gaps]
    number = sub_records[1][1]
    assert isinstance(number, Cursor)
    assert sub_records[1][0] == Cursor(number.sequence, 1)
    assert number.sub == 2
    assert "are lost" in caplog.text
    assert CANARY not in caplog.text


@pytest.mark.long
async def test_a_stream_that_stops_anywhere_goes_on_with_the_same_records(stream: Stream) -> None:
    expected, kept = put_mixed(stream), Kept()
    for cut in range(1, len(expected)):
        async with stream.open(decode=numbers, on_bad_record=kept) as opened:
            drained = await opened.drain(max_records=cut, first_wait=math.inf)
            await opened.acknowledge(drained)
            saved = opened.positions
        first = of(drained)
        async with stream.open(decode=numbers, on_bad_record=kept, resume=saved) as opened:
            rest = await opened.drain(max_records=len(expected) - len(first), first_wait=math.inf)
        assert first + of(rest) == expected
    assert len(set(kept.rows)) == 5  # each of them, at least once


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"decode": 7}, "decode=7 must be a function of a record batch"),
        ({"decode": numbers, "on_bad_record": "skip"}, "on_bad_record='skip' must be 'fail', 'ga"),
        ({"decode": numbers, "on_bad_record": print}, "or an async function of BadRecords"),
        ({"on_bad_record": "gap"}, "on_bad_record is about decode: pass decode, or leave it out"),
        (
            {"decode": numbers, "event_time": fanout.EventTime()},
            "approximateArrivalTimestamp",
        ),
    ],
)
def test_a_mistake_is_named(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        source(**options)


def test_a_function_that_drops_the_places_is_refused_at_once() -> None:
    with pytest.raises(DecodeFailedError, match="keep the columns shardId, sequenceNumber and sub"):
        source(decode=lambda records: records.select(["data"]))


@pytest.mark.parametrize("mode", ["efo", "polling"])
async def test_an_outage_in_decode_pauses_a_shard_and_leaves_nothing_out(
    stream: Stream, mode: str
) -> None:
    put(stream, b"1", b"2", b"3")
    failures = [ConnectionError()] * 3

    def decode(records: pa.RecordBatch) -> pa.RecordBatch:
        if records.num_rows and failures:
            raise RetryLaterError from failures.pop()
        return numbers(records)

    options: Any = {"decode": decode, "mode": mode, "on_bad_record": "gap"}
    async with stream.open(**options) as opened:
        assert of(await opened.drain(max_records=3, first_wait=math.inf)) == [1, 2, 3]
        totals = opened.statistics().totals
    assert failures == []
    assert (totals.gaps, totals.bad_records, totals.resubscriptions) == (0, 0, {})


async def test_json_becomes_columns_and_bad_sub_records_are_set_aside(stream: Stream) -> None:
    aggregate = [b'{"id": 1}', CANARY.encode(), b'{"id": 2, "more": 1}']
    put(stream, encode_aggregate([("key", each) for each in aggregate]), b'{"id": 3}')
    kept = Kept()
    decode = Json("id BIGINT", columns=["partitionKey"])
    async with stream.open(decode=decode, on_bad_record=kept) as opened:
        drained = await opened.drain(max_records=3, first_wait=math.inf)
    rows = [row for batch in drained.batches for row in batch.records.to_pylist()]
    assert [(row["id"], row["partitionKey"]) for row in rows] == [(n, "key") for n in (1, 2, 3)]
    assert [sub for _, sub in kept.rows] == [1]
    assert drained.batches[0].records.schema.names == ["partitionKey", *PLACES, "id"]
