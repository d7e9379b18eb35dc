"""Decode the batches of a stream, and do with bad records as the user says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import fanout
from fanout.core.bad_records import check_on_bad_record
from fanout.core.batch_decoder import BatchDecoder
from fanout.core.events import Gap, Split
from fanout.core.positions import Cursor, Horizon
from fanout.core.user_decode import PlaceColumns, UserDecode
from fanout.errors import DecodeFailedError, OptionError, SplitFailedError
from tests.core.scripted import SCHEMA, Log, ScriptedSource, sequences
from tests.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fanout.core.bad_records import BadRecords, OnBadRecord

A = Split("a")
PLACES = PlaceColumns(names=("split", "sequence"), numbers=("sequence",), word="sequence")
CANARY = "canary-record"


class Numbers:
    """Double each number, and fail for some of them, as a parser of a whole batch does."""

    def __init__(self, *bad: int) -> None:
        self._bad = bad
        self.calls = 0

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        self.calls += 1
        for number in records.column("sequence").to_pylist():
            if number in self._bad:
                raise ValueError(f"{CANARY} {number}")
        double = pc.multiply(records.column("sequence"), 2)
        return records.select(["split", "sequence"]).append_column("double", double)


def source(
    decode: Callable[[pa.RecordBatch], pa.RecordBatch],
    on_bad: OnBadRecord = "fail",
    *,
    records: Iterable[int] = range(1, 11),
    per_event: int = 10,
) -> ScriptedSource:
    log = Log(split=A, entries=tuple(records), per_event=per_event)
    plain = ScriptedSource(logs=[log], bounded=True)
    function = UserDecode(decode, EMPTY, PLACES)
    plain.decode = BatchDecoder(function, on_bad, plain.cursor)
    return plain


EMPTY = pa.RecordBatch.from_pylist([], schema=SCHEMA)


class Seen:
    """What a function for bad records was given."""

    def __init__(self) -> None:
        self.numbers: list[list[int]] = []
        self.errors: list[BaseException] = []

    async def __call__(self, bad: BadRecords) -> None:
        assert bad.split == A
        assert bad.records.schema == SCHEMA
        await asyncio.sleep(100)  # longer than the service may be silent
        self.numbers.append(bad.records.column("sequence").to_pylist())
        self.errors += bad.errors


async def read(
    stream_of: ScriptedSource, **options: Any
) -> tuple[list[int], list[Gap], fanout.FanOut]:
    numbers: list[int] = []
    gaps: list[Gap] = []
    async with fanout.open(stream_of, **options) as stream:
        async for batch in stream:
            assert batch.records.column("double").to_pylist() == [
                2 * number for number in sequences(batch)
            ]
            numbers += sequences(batch)
            gaps += batch.gaps
            await stream.acknowledge(batch)
    return numbers, gaps, stream


@in_virtual_time
async def test_a_batch_without_bad_records_is_decoded_in_one_call() -> None:
    numbers = Numbers()
    assert (await read(source(numbers, "gap")))[:2] == ([*range(1, 11)], [])
    assert numbers.calls == 1 + 1  # the first one without rows


@in_virtual_time
async def test_a_bad_record_fails_its_stream_and_its_data_is_not_named() -> None:
    with pytest.raises(SplitFailedError, match="decode failed for a from sequence 1 to 10") as got:
        await read(source(Numbers(4)))
    assert isinstance(got.value.__cause__, DecodeFailedError)
    assert isinstance(got.value.__cause__.__cause__, ValueError)
    assert CANARY not in str(got.value)


@pytest.mark.parametrize(
    ("bad", "pieces"),
    [
        ([1], [(Horizon(), 1)]),
        ([10], [(9, 10)]),
        ([4], [(3, 4)]),
        ([4, 5, 6], [(3, 6)]),
        ([1, 3, 4, 9, 10], [(Horizon(), 1), (2, 4), (8, 10)]),
    ],
)
@in_virtual_time
async def test_bad_records_are_gaps_and_all_others_are_delivered(
    bad: list[int], pieces: list[tuple[int | Horizon, int]], caplog: pytest.LogCaptureFixture
) -> None:
    numbers, gaps, stream = await read(source(Numbers(*bad), "gap"))
    assert numbers == [number for number in range(1, 11) if number not in bad]
    assert [(gap.after, gap.until) for gap in gaps] == [
        (after if isinstance(after, Horizon) else Cursor(after), Cursor(until))
        for after, until in pieces
    ]
    count = pieces[0][1] - (pieces[0][0] if isinstance(pieces[0][0], int) else 0)
    assert gaps[0].reason == f"decode failed for {count} of them (ValueError)"
    assert stream.statistics().gaps == len(pieces)
    assert "records of a are lost" in caplog.text
    assert CANARY not in caplog.text


@in_virtual_time
async def test_a_function_gets_the_bad_records_of_a_batch_before_it_is_delivered() -> None:
    seen = Seen()
    numbers, gaps, stream = await read(source(Numbers(1, 3, 4, 10), seen, per_event=5))
    assert (numbers, gaps) == ([2, 5, 6, 7, 8, 9], [])
    assert seen.numbers == [[1, 3, 4], [10]]
    assert [str(error) for error in seen.errors] == [f"{CANARY} {n}" for n in (1, 3, 4, 10)]
    assert stream.statistics().gaps == 0
    assert stream.statistics().totals.resubscriptions == {}


@in_virtual_time
async def test_a_batch_of_bad_records_alone_moves_the_position() -> None:
    seen = Seen()
    numbers, _, stream = await read(source(Numbers(*range(1, 11)), seen))
    assert (numbers, seen.numbers) == ([], [[*range(1, 11)]])
    assert stream.statistics().splits["a"].resubscriptions == 0


@in_virtual_time
async def test_bad_records_come_again_if_their_batch_was_not_delivered() -> None:
    seen = Seen()
    flaky = source(Numbers(3), seen)
    async with fanout.open(flaky) as stream:
        await asyncio.sleep(150)  # the function was called, and nobody takes the batch
        assert seen.numbers == [[3]]
        saved = stream.positions
    numbers, _, _ = await read(flaky, resume=saved)
    assert seen.numbers == [[3], [3]]
    assert numbers == [1, 2, 4, 5, 6, 7, 8, 9, 10]


@in_virtual_time
async def test_a_batch_that_is_cut_goes_on_with_the_same_records() -> None:
    for cut in range(1, 8):
        seen = Seen()
        cuttable = source(Numbers(2, 5, 6), seen)
        async with fanout.open(cuttable) as stream:
            drained = await stream.drain(max_records=cut, first_wait=200)
            await stream.acknowledge(drained)
            saved = stream.positions
        first = [number for batch in drained.batches for number in sequences(batch)]
        rest, _, _ = await read(cuttable, resume=saved)
        assert first + rest == [1, 3, 4, 7, 8, 9, 10]


@in_virtual_time
async def test_an_error_of_the_function_for_bad_records_ends_the_stream() -> None:
    async def fail(_: BadRecords) -> None:
        raise OSError(CANARY)

    with pytest.raises(SplitFailedError, match="on_bad_record failed for 1 records of a") as got:
        await read(source(Numbers(3), fail))
    assert isinstance(got.value.__cause__, DecodeFailedError)
    assert isinstance(got.value.__cause__.__cause__, OSError)
    assert CANARY not in str(got.value)


@in_virtual_time
async def test_closing_a_stream_cancels_the_function_for_bad_records() -> None:
    ended = []

    async def wait(_: BadRecords) -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append(True)

    async with fanout.open(source(Numbers(3), wait)):
        await asyncio.sleep(1)
    assert ended == [True]


@in_virtual_time
async def test_what_no_record_may_become_ends_the_stream_whatever_is_done_with_bad_ones() -> None:
    def reversed_(records: pa.RecordBatch) -> pa.RecordBatch:
        return Numbers()(records.take(pa.array(range(records.num_rows)[::-1], pa.int64())))

    with pytest.raises(SplitFailedError, match="or the order of the rows"):
        await read(source(reversed_, "gap"))


@in_virtual_time
async def test_the_result_is_reserved_where_it_is_larger_than_what_came() -> None:
    def larger(records: pa.RecordBatch) -> pa.RecordBatch:
        decoded = Numbers()(records)
        return decoded.append_column("text", pa.array(["x" * 9000] * decoded.num_rows, pa.string()))

    async with fanout.open(source(larger)) as stream:
        await asyncio.sleep(1)
        assert stream.statistics().bytes_in_flight > 90_000


async def asynchronous(_: BadRecords) -> None:
    pass


@pytest.mark.parametrize("value", ["fail", "gap", asynchronous, Seen()])
def test_what_to_do_with_bad_records_may_be(value: object) -> None:
    check_on_bad_record(value, Numbers())


@pytest.mark.parametrize("value", ["skip", None, print, ["gap"], lambda _: None])
def test_what_to_do_with_bad_records_may_not_be(value: object) -> None:
    with pytest.raises(OptionError, match="must be 'fail', 'gap' or an async function of BadReco"):
        check_on_bad_record(value, Numbers())


@pytest.mark.parametrize("value", ["gap", asynchronous])
def test_without_decode_no_record_is_bad(value: object) -> None:
    with pytest.raises(OptionError, match="on_bad_record is about decode: pass decode, or leave"):
        check_on_bad_record(value, None)


@in_virtual_time
@pytest.mark.parametrize("on_bad", ["gap", "function"])
async def test_bad_records_are_counted_and_take_ten_lines_a_minute(
    on_bad: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kept: list[int] = []

    async def keep(bad: BadRecords) -> None:
        kept.append(len(bad.errors))

    bad = range(2, 101, 2)
    reading = source(
        Numbers(*bad), keep if on_bad == "function" else on_bad, records=range(1, 101), per_event=4
    )
    async with fanout.open(reading) as stream:
        await stream.drain(max_records=1)  # a batch that is cut is counted once
        assert stream.statistics().totals.bad_records == 2
        while not stream.caught_up:
            await stream.drain()
        statistics = stream.statistics()
    assert statistics.totals.bad_records == statistics.splits["a"].bad_records == 50
    lines = [
        each for each in caplog.records if vars(each).get("event.name") == "fanout.records.bad"
    ]
    assert [each.getMessage() for each in lines] == [
        *["decode has failed for 2 records of a"] * 10,
        "15 more batches with records that cannot be decoded within 60 s: 15 of a",
    ]
    assert vars(lines[0])["fanout.records"] == 2
    assert sum(kept) == (50 if on_bad == "function" else 0)
    assert CANARY not in caplog.text
