"""Decode the batches of a stream, and do with bad records as the user says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import fanout
from fanout.core.events import Gap, Split
from fanout.core.positions import Cursor, Horizon
from fanout.core.record_decoder import RecordDecoder
from fanout.core.statistics import SplitState
from fanout.core.user_decode import (
    BatchDecoder,
    PlaceColumns,
    TooManyRowsError,
    UserDecode,
    check_on_bad_record,
)
from fanout.errors import (
    BadRowsError,
    DecodeFailedError,
    OptionError,
    RetryLaterError,
    SplitFailedError,
)
from fanout.testing.virtual_time.loop import simulate
from tests.support.scripted_source import SCHEMA, Log, ScriptedSource, sequences
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fanout.core.events import BadRecords
    from fanout.core.user_decode import OnBadRecord

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


class Registry:
    """Decode like Numbers; but every call with rows fails until a time, as a registry does.

    Args:
        until: The time, by the loop's clock.
        bad: The records that cannot be decoded then.
    """

    def __init__(self, until: float, *bad: int) -> None:
        self.until = until
        self.calls: list[int] = []
        self._numbers = Numbers(*bad)

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        if records.num_rows:
            self.calls.append(records.num_rows)
            if asyncio.get_running_loop().time() < self.until:
                raise RetryLaterError(CANARY) from ConnectionError(CANARY)
        return self._numbers(records)


@pytest.mark.parametrize("on_bad", ["fail", "gap"])
@pytest.mark.parametrize("until", [0.5, 1000.0])
@in_virtual_time
async def test_an_outage_in_decode_loses_nothing_and_leaves_nothing_out(
    on_bad: Any, until: float, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry(until)
    numbers, gaps, stream = await read(source(registry, on_bad, per_event=5))
    assert numbers == [*range(1, 11)]
    assert gaps == []
    assert set(registry.calls) == {5}  # no record is looked for
    statistics = stream.statistics()
    assert (statistics.totals.bad_records, statistics.totals.resubscriptions) == (0, {})
    assert len(registry.calls) < 100  # with growing pauses
    assert asyncio.get_running_loop().time() < until + 31
    warnings = [
        each for each in caplog.records if vars(each).get("event.name") == "fanout.decode.delayed"
    ]
    assert 0 < len(warnings) < len(registry.calls)
    assert {each.levelname for each in warnings} == {"WARNING"}
    assert vars(warnings[0])["error.type"] == "ConnectionError"
    assert "a waits until its records can be decoded" in warnings[0].getMessage()
    assert CANARY not in caplog.text


@in_virtual_time
async def test_bad_records_are_found_when_the_outage_is_over() -> None:
    numbers, gaps, _ = await read(source(Registry(100.0, 3, 4), "gap"))
    assert numbers == [1, 2, 5, 6, 7, 8, 9, 10]
    assert [(gap.after, gap.until) for gap in gaps] == [(Cursor(2), Cursor(4))]


@in_virtual_time
async def test_an_outage_in_the_middle_of_the_search_for_bad_records_makes_none_bad() -> None:
    calls = 0

    def decode(records: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal calls
        calls += bool(records.num_rows)
        if calls == 4:
            raise RetryLaterError
        return Numbers(7)(records)

    numbers, gaps, _ = await read(source(decode, "gap"))
    assert numbers == [1, 2, 3, 4, 5, 6, 8, 9, 10]
    assert [(gap.after, gap.until) for gap in gaps] == [(Cursor(6), Cursor(7))]


@in_virtual_time
async def test_a_function_for_bad_records_is_called_again_with_the_same_ones() -> None:
    seen: list[list[int]] = []

    async def store(bad: BadRecords) -> None:
        seen.append(bad.records.column("sequence").to_pylist())
        if len(seen) < 4:
            raise RetryLaterError("the topic of dead letters is not there")

    numbers, _, stream = await read(source(Numbers(2, 9), store))
    assert numbers == [1, 3, 4, 5, 6, 7, 8, 10]
    assert seen == [[2, 9]] * 4
    assert stream.statistics().totals.bad_records == 2


@in_virtual_time
async def test_other_splits_go_on_while_one_waits_for_its_decoder() -> None:
    waiting = source(Registry(500.0))
    other = Log(split=Split("b"), entries=tuple(range(1, 4)), per_event=10)
    waiting.logs = [*waiting.logs, other]
    decoder = waiting.decode
    assert decoder is not None

    async def decode(batch: fanout.Batch) -> fanout.Batch:
        return batch if batch.split.id == "b" else await decoder(batch)

    waiting.decode = decode
    async with fanout.open(waiting) as stream:
        batch = await anext(stream)
        assert (batch.split.id, batch.num_records) == ("b", 3)
        await asyncio.sleep(300.0)
        split = stream.statistics().splits["a"]
        assert split.state is SplitState.BACKING_OFF
        assert isinstance(split.last_cause, RetryLaterError)
        assert split.lag is None
        assert (await anext(stream)).num_records == 10
        assert stream.statistics().splits["a"].state is not SplitState.BACKING_OFF


@pytest.mark.parametrize("after", [0.0, 0.7, 50.0, 90.0])
def test_closing_and_cancelling_do_not_wait_for_an_outage(after: float) -> None:
    async def main() -> tuple[float, str]:
        async with fanout.open(source(Registry(1e9))) as stream:
            reading = asyncio.create_task(anext(stream))
            await asyncio.sleep(after)
            reading.cancel()
            await asyncio.wait([reading])
            assert reading.cancelled()
            positions = stream.positions
            began = asyncio.get_running_loop().time()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return asyncio.get_running_loop().time() - began, positions

    waited, positions = simulate(main)
    assert waited < 0.01
    # What was not decoded comes in the next run.
    numbers = simulate(lambda: read(source(Numbers()), resume=positions))[0]
    assert numbers == [*range(1, 11)]


@pytest.mark.parametrize(
    ("raised", "remedy"),
    [
        (RetryLaterError("no registry"), ": let it return them there without asking a service"),
        (KeyError("total"), ""),
    ],
)
@in_virtual_time
async def test_an_error_without_rows_says_why_decode_is_called(
    raised: Exception, remedy: str
) -> None:
    def decode(_: pa.RecordBatch) -> pa.RecordBatch:
        raise raised

    with pytest.raises(
        DecodeFailedError,
        match="^decode failed for a batch without rows, which it gets when the source is made, so "
        f"that its columns are known{remedy}$",
    ) as failure:
        source(decode)
    assert failure.value.__cause__ is raised


class Knowing(Numbers):
    """Say itself which rows are bad."""

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        self.calls += 1
        numbers = records.column("sequence").to_pylist()
        errors = {row: ValueError(f"row {row}") for row, n in enumerate(numbers) if n in self._bad}
        good = records.take(
            pa.array([row for row in range(len(numbers)) if row not in errors], pa.int64())
        )
        decoded = good if -1 in self._bad and errors else Numbers()(good)
        if errors:
            raise BadRowsError(decoded, errors) from next(iter(errors.values()))
        return decoded


@in_virtual_time
async def test_a_function_that_knows_its_bad_rows_is_called_once() -> None:
    knowing, seen = Knowing(3, 9), Seen()
    numbers, _, _ = await read(source(knowing, seen))
    assert numbers == [1, 2, 4, 5, 6, 7, 8, 10]
    assert seen.numbers == [[3, 9]]
    assert [str(error) for error in seen.errors] == ["row 2", "row 8"]
    assert knowing.calls == 2  # the first one without rows
    _, gaps, _ = await read(source(Knowing(3, 9), "gap"))
    assert [(gap.after, gap.until) for gap in gaps] == [
        (Cursor(2), Cursor(3)),
        (Cursor(8), Cursor(9)),
    ]


@pytest.mark.parametrize("on_bad", ["fail", "gap"])
@in_virtual_time
async def test_a_batch_that_is_too_large_to_decode_is_halved(on_bad: OnBadRecord) -> None:
    numbers = Numbers()

    def decode(records: pa.RecordBatch) -> pa.RecordBatch:
        if records.num_rows > 3:
            raise TooManyRowsError("decode fewer at once")
        return numbers(records)

    found, gaps, _ = await read(source(decode, on_bad))
    assert found == list(range(1, 11))
    assert gaps == []
    assert numbers.calls == 5  # one is without rows


@in_virtual_time
async def test_the_first_bad_row_is_named_by_its_place() -> None:
    with pytest.raises(SplitFailedError, match="decode failed for a at sequence 3 ") as got:
        await read(source(Knowing(3, 9)))
    cause = got.value.__cause__
    assert isinstance(cause, DecodeFailedError)
    assert str(cause.__cause__) == "2 of the rows cannot be converted; row 2: row 2"


@in_virtual_time
async def test_what_is_decoded_beside_bad_rows_is_checked_as_well() -> None:
    with pytest.raises(SplitFailedError, match="instead of split: string, sequence: int64, double"):
        await read(source(Knowing(3, -1), "gap"))


class Wrong(Numbers):
    """Name rows as bad that it decodes, or that nobody has given to it."""

    def __init__(self, *rows: int) -> None:
        super().__init__()
        self._rows = rows

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        decoded = Numbers()(records)
        if records.num_rows:
            raise BadRowsError(decoded, {row: ValueError("bad") for row in self._rows})
        return decoded


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ((10,), "its BadRowsError names a row that the 10 rows lack"),
        ((-1,), "its BadRowsError names a row that the 10 rows lack"),
        ((3,), "its BadRowsError has a bad row among those that are decoded"),
    ],
)
@in_virtual_time
async def test_a_function_names_bad_rows_that_it_was_given_and_has_not_decoded(
    rows: tuple[int, ...], words: str
) -> None:
    for on_bad in ("gap", "fail"):
        with pytest.raises(SplitFailedError, match=words):
            await read(source(Wrong(*rows), on_bad))


class Fetching(RecordDecoder):
    """Fetch something before each batch; it is down for a while."""

    def __init__(self) -> None:
        self.fetched = 0

    async def prepare(self, records: pa.RecordBatch) -> None:
        assert records.num_rows
        await asyncio.sleep(0.1)
        self.fetched += 1
        if self.fetched < 3:
            raise RetryLaterError("down")

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        assert self.fetched >= 3 or not records.num_rows
        return Numbers()(records)


@in_virtual_time
async def test_what_a_decoder_needs_is_fetched_before_each_batch() -> None:
    fetching = Fetching()
    numbers, _, stream = await read(source(fetching, "gap", per_event=5))
    assert numbers == [*range(1, 11)]
    assert fetching.fetched == 4
    assert stream.statistics().gaps == 0
