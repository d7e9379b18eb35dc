"""What becomes of the records of a poll that `decode` of the user gets."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import aclosing
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pytest

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.events import Split
from fanout.core.lending.acknowledgements import SharedState
from fanout.core.lending.acquired import AcquiredRecords, ExpiredRecords
from fanout.core.lending.decode import decode
from fanout.core.lending.dedup import Dedup
from fanout.core.lending.delivery import MemberDelivery
from fanout.core.record_decoder import RecordDecoder
from fanout.core.user_decode import TooManyRowsError, UserDecode
from fanout.decoding import Json
from fanout.errors import DecodeFailedError
from fanout.kafka.reading.columns import PLACES
from fanout.kafka.share.naming import OffsetNaming
from fanout.kafka.share.poll_columns import NO_RECORDS, SCHEMA, PolledRecords
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.kafka.partitions import Partition

LOCK = 30.0


def polled(count: int, acquired_after: float = 0.0, unreadable: tuple[int, ...] = ()) -> Any:
    """Return records of one partition, as a poll brings them."""
    rows = [{"topic": "t", "partition": 0, "offset": number} for number in range(count)]
    return PolledRecords(
        pa.RecordBatch.from_pylist(rows, SCHEMA),
        ("t",),
        np.zeros(count, np.int64),
        np.arange(count, dtype=np.int64),
        np.ones(count, np.int32),
        np.array(unreadable, np.int64),
        acquired_after,
    )


@pytest.mark.parametrize("error", [SystemExit("over"), asyncio.CancelledError()])
def test_what_would_end_the_process_makes_no_record_bad(error: BaseException) -> None:
    def ending(records: pa.RecordBatch) -> pa.RecordBatch:
        if records.num_rows:
            raise error
        return records

    acquired = AcquiredRecords(polled(4), LOCK, None)
    function = UserDecode(ending, NO_RECORDS, PLACES)
    with pytest.raises(DecodeFailedError) as caught:
        decode(function, acquired, acquired.all_rows, row_column="offset", find_bad=True)
    assert caught.value.__cause__ is error


class SlowLetters:
    """A topic for bad records whose brokers are slow."""

    async def write(self, *_: object) -> None:
        await asyncio.sleep(0.6 * LOCK)


class OnePoll:
    """A member that gets one poll."""

    fetching = True

    async def poll(self) -> PolledRecords:
        return cast("PolledRecords", polled(4, asyncio.get_running_loop().time(), (0,)))

    def acknowledge(self, *_: object) -> asyncio.Future[Mapping[Partition, Exception]]:
        response = asyncio.get_running_loop().create_future()
        response.set_result({})
        return response


@in_virtual_time
async def test_records_that_come_late_to_decode_are_delivered_if_it_asks_for_no_wait() -> None:
    """Each time that they were released instead, the broker would be nearer to dropping them."""
    prepared = []

    class Fetching(RecordDecoder):
        async def prepare(self, records: pa.RecordBatch) -> None:
            prepared.append(records.num_rows)

        def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
            return records

    function = UserDecode(Fetching(), NO_RECORDS, PLACES)
    options = SimpleNamespace(
        user_decode=function, on_bad_record="dead_letter", max_deliveries=None
    )
    jitter = FullJitter(Backoff(), Random(1))
    any_: Any = None
    naming = OffsetNaming("group", any_)
    letters = cast("Any", SlowLetters())
    shared = SharedState(
        cast("Any", options), LOCK, naming, Dedup(LOCK, naming.new_set), letters, jitter
    )
    member = cast("Any", OnePoll())
    delivery = MemberDelivery(Split("member"), 0, member, ExpiredRecords(), shared)

    async def reserve(nbytes: int) -> None:
        del nbytes

    async with aclosing(delivery.batches(reserve)) as batches:
        batch = await anext(batches)
    assert batch.records.column("offset").to_pylist() == [1, 2, 3]
    assert prepared == [4]
    assert (shared.counts.acquired, shared.counts.rejected, shared.counts.released) == (4, 1, 0)


def test_rows_that_json_cannot_be_are_bad_and_the_rest_is_decoded_at_once() -> None:
    values = [b'{"id": 1}', b"no", b'{"id": 3}', b'{"id": "4"}']
    records = polled(4)
    column = records.records.schema.get_field_index("value")
    filled = records.records.set_column(column, "value", pa.array(values, pa.binary()))
    acquired = AcquiredRecords(dataclasses.replace(records, records=filled), LOCK, None)
    function = UserDecode(Json("id BIGINT"), NO_RECORDS, PLACES)
    decoded = decode(function, acquired, acquired.all_rows, row_column="offset", find_bad=True)
    assert decoded.bad == {
        1: "decode failed for t-0 at offset 1: value: it is not JSON, or one document and more",
        3: "decode failed for t-0 at offset 3: value: id is BIGINT, and the document has a string",
    }
    assert [batch.column("id").to_pylist() for batch in decoded.batches] == [[1, 3]]
    assert [rows.tolist() for rows in decoded.rows] == [[0, 2]]


@pytest.mark.parametrize("find_bad", [True, False])
def test_rows_that_are_too_many_at_once_are_halved(*, find_bad: bool) -> None:
    def few(records: pa.RecordBatch) -> pa.RecordBatch:
        if records.num_rows > 2:
            raise TooManyRowsError("decode fewer at once")
        return records

    acquired = AcquiredRecords(polled(5), LOCK, None)
    function = UserDecode(few, NO_RECORDS, PLACES)
    decoded = decode(function, acquired, acquired.all_rows, row_column="offset", find_bad=find_bad)
    assert decoded.bad == {}
    assert sorted(row for rows in decoded.rows for row in rows.tolist()) == [0, 1, 2, 3, 4]
