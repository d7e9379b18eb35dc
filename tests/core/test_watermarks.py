from __future__ import annotations

import asyncio

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fanout
from fanout.core.checkpoint import Checkpoint
from fanout.core.event_time import EventTime, Watermarks
from fanout.core.events import Batch, End, Split
from fanout.core.positions import Cursor, Horizon, Range
from fanout.core.progress import Progress
from tests.support.scripted_source import Log, ScriptedSource, record_batch
from tests.support.virtual_time import in_virtual_time

A, B, C = Split("a"), Split("b"), Split("c")
LEFT, RIGHT = Split("left", ("a",)), Split("right", ("a",))
MERGED = Split("merged", ("a", "b"))
IDLE = 60.0


class Rig:
    """Watermarks, and a clock."""

    def __init__(
        self, *splits: Split, idleness: float | None = IDLE, bounded: bool = False
    ) -> None:
        self.now = 1000.0
        self.made = Watermarks(idleness=idleness, bounded=bounded)
        for split in splits:
            self.made.add(split)

    @property
    def stream(self) -> int | None:
        return self.made.stream

    def says(
        self, split: Split, watermark: int | None, *, rows: int = 1, lag: float | None = None
    ) -> int | None:
        """Deliver a batch with this watermark of its split; return that of the stream."""
        records = record_batch(Log(split=split), list(range(rows)))
        span = Range(Horizon(), Cursor(1))
        self.made.deliver(Batch(split, records, span, lag=lag, watermark=watermark), watermark)
        return self.made.stream

    def ends(self, split: Split) -> int | None:
        self.made.deliver(End(split), None)
        return self.made.stream

    def waits(self, seconds: float) -> int | None:
        self.made.begin_wait(self.now)
        self.now += seconds
        self.made.end_wait(self.now)
        return self.made.stream

    def works(self, seconds: float) -> None:
        self.now += seconds


def test_the_stream_is_as_far_as_the_split_that_is_least_far() -> None:
    rig = Rig(A, B)
    assert rig.says(A, 10) is None
    assert rig.says(B, 5) == 5
    assert rig.says(B, 20) == 10
    assert rig.says(A, 15) == 15
    assert rig.says(A, 30) == 20


def test_a_split_without_a_record_holds_the_stream_back_until_it_is_idle() -> None:
    rig = Rig(A, B)
    rig.says(A, 10)
    assert rig.waits(IDLE - 1) is None
    rig.says(A, 20)
    assert rig.waits(1) == 20


def test_a_split_without_an_event_time_holds_the_stream_back_until_it_is_idle() -> None:
    rig = Rig(A, B)
    rig.waits(30)
    rig.says(A, 10)
    assert rig.says(B, None) is None
    rig.waits(IDLE - 1)
    assert rig.says(A, 20) is None
    assert rig.waits(1) == 20


@pytest.mark.fault("Partitions are of different ages")
def test_an_idle_split_is_left_out_until_it_has_a_record_again() -> None:
    rig = Rig(A, B)
    rig.says(B, 5)
    assert rig.says(A, 10) == 5
    rig.waits(IDLE / 2)
    rig.says(A, 20)
    assert rig.waits(IDLE / 2) == 20
    assert rig.says(A, 30) == 30
    assert rig.says(B, 25) == 30
    assert rig.says(A, 40) == 30
    assert rig.says(B, 35) == 35


def test_a_batch_without_records_keeps_no_split_from_being_idle() -> None:
    rig = Rig(A, B)
    rig.says(B, 5)
    for _ in range(10):
        rig.says(B, 5, rows=0)
        rig.says(A, 10)
        rig.waits(IDLE / 10)
    assert rig.stream == 10


def test_no_split_is_idle_where_no_time_is_set() -> None:
    rig = Rig(A, B, idleness=None)
    rig.says(A, 10)
    assert rig.waits(10**9) is None


def test_the_time_that_the_consumer_is_busy_makes_no_split_idle() -> None:
    rig = Rig(A, B)
    rig.says(B, 5)
    for step in range(100):
        rig.says(A, 10 + step)
        rig.works(IDLE)
        rig.waits(IDLE / 101)
    assert rig.stream == 5
    assert rig.waits(IDLE / 50) == 109


def test_where_every_split_is_idle_the_watermark_stays() -> None:
    rig = Rig(A, B)
    rig.says(A, 10)
    rig.says(B, 5)
    assert rig.waits(10 * IDLE) == 5
    assert rig.says(B, 7) == 7


def test_a_split_that_has_ended_leaves() -> None:
    rig = Rig(A, B)
    rig.says(A, 10)
    assert rig.says(B, 5) == 5
    assert rig.ends(B) == 10
    assert rig.ends(A) == 10
    assert rig.says(A, 99) == 10  # nothing comes of it; it changes nothing if it does


def test_a_split_that_appears_later_holds_back_and_does_not_move_back() -> None:
    rig = Rig(A)
    assert rig.says(A, 10) == 10
    rig.made.add(B)
    assert rig.says(A, 20) == 10
    assert rig.says(B, 3) == 10
    assert rig.says(B, 15) == 15


def test_a_split_that_appears_later_is_idle_so_long_after_that() -> None:
    rig = Rig(A)
    rig.waits(10 * IDLE)
    rig.made.add(B)
    rig.says(A, 20)
    assert rig.waits(IDLE - 1) is None
    rig.says(A, 30)
    assert rig.waits(1) == 30


def test_a_split_is_left_out_while_its_parents_are_read() -> None:
    rig = Rig(A, B, MERGED)
    rig.says(A, 10)
    assert rig.says(B, 5) == 5
    assert rig.ends(B) == 10
    assert rig.says(A, 20) == 20
    rig.waits(IDLE - 1)
    assert rig.ends(A) == 20
    rig.made.add(C)
    rig.says(C, 50)
    assert rig.waits(IDLE - 1) == 20  # its time begins when it is read
    assert rig.says(MERGED, 30) == 30


def test_a_split_whose_parents_are_unknown_counts_at_once() -> None:
    rig = Rig(LEFT, RIGHT)
    assert rig.says(LEFT, 10) is None
    assert rig.says(RIGHT, 20) == 10


@pytest.mark.parametrize(("bounded", "watermark"), [(True, 10), (False, 5)])
def test_a_split_at_the_stop_of_a_bounded_stream_leaves(*, bounded: bool, watermark: int) -> None:
    rig = Rig(A, B, bounded=bounded)
    rig.says(A, 10)
    assert rig.says(B, 5, lag=0.0) == watermark


def test_the_last_batch_before_the_stop_counts() -> None:
    rig = Rig(A, bounded=True)
    assert rig.says(A, 10, lag=0.0) == 10


class Model:
    """The rules, without regard to cost."""

    def __init__(self) -> None:
        self.members: dict[str, tuple[float, int | None]] = {}
        self.clock = 0.0
        self.stream: int | None = None

    def advance(self) -> None:
        counting = [mark for since, mark in self.members.values() if self.clock - since < IDLE]
        known = [mark for mark in counting if mark is not None]
        if counting and len(known) == len(counting):
            least = min(known)
            self.stream = least if self.stream is None else max(least, self.stream)


actions = st.one_of(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 50) | st.none()),
    st.tuples(st.just("wait"), st.sampled_from([1, 30, 59, 60])),
    st.tuples(st.just("end"), st.sampled_from("abcd")),
    st.tuples(st.just("add"), st.sampled_from("abcd")),
)


@given(st.lists(actions, max_size=60))
def test_the_watermark_is_that_of_the_rules_and_never_goes_back(
    script: list[tuple[str, int | str | None]],
) -> None:
    rig, model, before = Rig(), Model(), None
    for action in script:
        match action:
            case ("wait", int(seconds)):
                rig.waits(seconds)
                model.clock += seconds
            case ("end", str(name)):
                rig.ends(Split(name))
                model.members.pop(name, None)
            case ("add", str(name)):
                if name not in model.members:
                    rig.made.add(Split(name))
                    model.members[name] = (model.clock, None)
            case (name, int() | None as mark) if name in model.members:
                known = model.members[name][1]
                highest = mark if known is None else max(known, mark or known)
                model.members[name] = (model.clock, highest)
                rig.says(Split(name), highest)
            case _:
                pass
        model.advance()
        assert rig.stream == model.stream
        assert before is None or (rig.stream is not None and rig.stream >= before)
        before = rig.stream


def from_sequence(records: pa.RecordBatch) -> pa.Array:
    """Say that the event of record 7 happened at 7 s."""
    return pc.multiply(records.column("sequence"), 1000).cast(pa.timestamp("ms", tz="UTC"))


def source(*logs: Log, **options: float) -> ScriptedSource:
    return ScriptedSource(logs=logs, event_time=EventTime(from_sequence, **options))


@in_virtual_time
async def test_a_stream_says_how_far_the_events_are_that_were_handed_out() -> None:
    logs = (
        Log(split=A, entries=(1, 2, 3, 4), event_delay=1.0),
        Log(split=B, entries=(2, 8), event_delay=1.5),
    )
    async with fanout.open(source(*logs, out_of_orderness=1.0)) as stream:
        seen = []
        for _ in range(3):
            batch = await anext(stream)
            seen.append((batch.split.id, batch.watermark, stream.watermark))
        assert seen == [("a", 999, None), ("b", 6999, 999), ("a", 2999, 2999)]
        reported = {id_: split.watermark for id_, split in stream.statistics().splits.items()}
        assert reported == {"a": 2999, "b": 6999}


@in_virtual_time
async def test_a_drain_says_how_far_the_events_are_that_it_returns() -> None:
    logs = (Log(split=A, entries=(1, 2, 3), per_event=3), Log(split=B, entries=(9,)))
    async with fanout.open(source(*logs)) as stream:
        assert (await stream.drain(max_wait=1.0)).watermark == 2999 == stream.watermark


@in_virtual_time
async def test_a_piece_that_is_cut_off_moves_no_watermark_and_the_rest_does() -> None:
    log = Log(split=A, entries=(1, 2, 3, 4))
    async with fanout.open(source(log)) as stream:
        reported = []
        for size in (2, 1, 1):
            drained = await stream.drain(max_records=size)
            reported.append((drained.batches[0].watermark, drained.watermark))
        assert reported == [(1999, 1999), (1999, 1999), (3999, 3999)]


@in_virtual_time
async def test_a_child_takes_over_from_its_parent() -> None:
    logs = (
        Log(split=A, entries=(1, 2), ends=True, children=(LEFT,)),
        Log(split=LEFT, entries=(5,), event_delay=10.0),
        Log(split=B, entries=(9,)),
    )
    async with fanout.open(source(*logs)) as stream:
        await stream.drain(max_wait=5.0)
        assert stream.watermark == 1999
        await stream.drain(max_wait=5.0, first_wait=60.0)
        assert stream.watermark == 4999


@in_virtual_time
async def test_a_split_that_is_silent_while_the_consumer_waits_becomes_idle() -> None:
    logs = (
        Log(split=A, entries=tuple(range(1, 40)), per_event=1, event_delay=3.0),
        Log(split=B),
    )
    async with fanout.open(source(*logs, idleness=60.0)) as stream:
        marks = [(await anext(stream), stream.watermark)[1] for _ in range(25)]
        assert marks[:19] == [None] * 19
        assert marks[-1] == 24_999


@in_virtual_time
async def test_a_slow_consumer_makes_no_split_idle_whose_records_wait_for_it() -> None:
    logs = tuple(Log(split=split, entries=(1, 2, 3, 4), per_event=1) for split in (A, B, C))
    async with fanout.open(source(*logs, idleness=60.0)) as stream:
        least: dict[str, int] = dict.fromkeys("abc", 0)
        for _ in range(12):
            batch = await anext(stream)
            assert batch.watermark is not None
            least[batch.split.id] = batch.watermark
            assert (stream.watermark or 0) == min(least.values())
            await asyncio.sleep(600.0)


@in_virtual_time
async def test_a_resumed_stream_leaves_out_what_has_ended() -> None:
    logs = (Log(split=A, entries=(1,), ends=True), Log(split=B, entries=(5, 6)))
    async with fanout.open(source(*logs)) as stream:
        await stream.acknowledge(await stream.drain(max_wait=60.0))
        positions = stream.positions
    assert Checkpoint.from_json(positions).splits["a"].ended
    longer = (logs[0], Log(split=B, entries=(5, 6, 7)))
    async with fanout.open(source(*longer), resume=positions) as stream:
        assert (await stream.drain()).watermark == 6999


@in_virtual_time
async def test_a_split_at_its_stop_holds_the_others_of_a_bounded_stream_back_no_longer() -> None:
    logs = (Log(split=A, entries=(1,)), Log(split=B, entries=(5, 6, 7), event_delay=1.0))
    bounded = source(*logs)
    bounded.bounded = True
    async with fanout.open(bounded) as stream:
        marks = [stream.watermark async for _ in stream]
    assert marks == [None, 5999, 6999]


def test_a_piece_that_is_cut_off_has_the_watermark_from_before_it() -> None:
    def batch(split: Split, watermark: int | None) -> Batch:
        records = record_batch(Log(split=split), [1])
        return Batch(split, records, Range(Horizon(), Cursor(1)), watermark=watermark)

    progress = Progress("s", source().arrival, watermarks=Watermarks(idleness=None, bounded=False))
    for split in (A, B):
        progress.add(split, Horizon())
    assert progress.watermarks is not None
    (piece,) = progress.deliver([batch(A, 10), batch(B, 5), batch(A, None)])[2:]
    assert (piece.watermark, progress.watermarks.stream) == (10, 5)
    progress.deliver([batch(B, 20)])
    assert progress.watermarks.stream == 10


@in_virtual_time
async def test_there_are_no_watermarks_where_nobody_asks_for_them() -> None:
    async with fanout.open(ScriptedSource(logs=[Log(split=A, entries=(1, 2))])) as stream:
        drained = await stream.drain()
        assert (drained.watermark, drained.batches[0].watermark) == (None, None)
        assert stream.watermark is None
        assert stream.statistics().splits["a"].watermark is None
