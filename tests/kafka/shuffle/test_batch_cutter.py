from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.core.events import Batch, Gap, Split
from fanout.core.positions import Cursor, Horizon, Range
from fanout.errors import BadFrameError
from fanout.kafka.shuffle.frames import (
    SCHEMA,
    ControlFrame,
    EndFrame,
    HelloFrame,
    IdleFrame,
    WatermarkFrame,
    encode_control,
)
from fanout.kafka.shuffle.producers import Producers
from fanout.kafka.shuffle.reader import BatchCutter
from tests.support.kafka.record_batches import BatchRow
from tests.support.kafka.record_batches import batch as sent
from tests.support.kafka.shuffle_decoding import read_answer

if TYPE_CHECKING:
    from collections.abc import Sequence

SPLIT = Split("t-0")
HELLO = HelloFrame(0, 1, 1, 1)
FOREIGN = b'{"a": 1}'


def mark(millis: int) -> WatermarkFrame:
    return WatermarkFrame(0, 1, millis)


def value(frame: ControlFrame | int | bytes) -> bytes:
    """The value of a control frame, of a record with a number, or of neither."""
    match frame:
        case bytes():
            return frame
        case int():
            return b"\x01\x01%d" % frame
        case control:
            return encode_control(control)


def read(
    log: Sequence[ControlFrame | int | bytes], first: int = 0, *, until: int | None = None
) -> Batch:
    """The batch of a Kafka reader for a log of which every second offset is compacted."""
    rows = [BatchRow(2 * at, 0, None, value(frame)) for at, frame in enumerate(log)][first:]
    records = read_answer(sent(rows) if rows else b"")
    end = Cursor(2 * len(log) - 1 if until is None else until)
    return Batch(SPLIT, records, Range(Cursor(2 * first - 1), end), 0.0, behind=0)


def cutter(
    position: Cursor | Horizon = Cursor(-1),  # noqa: B008
    *,
    skip_bad_frames: bool = False,
) -> BatchCutter:
    state = position.state if isinstance(position, Cursor) else ""
    received = list[ControlFrame]()
    return BatchCutter(
        SPLIT,
        position,
        Producers.from_state(state),
        skip_bad_frames=skip_bad_frames,
        on_frame=received.append,
    )


def numbers(piece: Batch) -> list[int]:
    assert piece.records.schema == SCHEMA
    return [int(data) for data in piece.records["value"].to_pylist()]


def state(position: object) -> Producers:
    assert isinstance(position, Cursor)
    return Producers.from_state(position.state)


def test_a_batch_is_cut_behind_what_producers_say() -> None:
    log: list[ControlFrame | int | bytes] = [HELLO, 1, 2, mark(10), mark(20), 3, IdleFrame(0, 1), 4]
    pieces = [*cutter().cut(read(log))]
    assert [numbers(piece) for piece in pieces] == [[], [1, 2], [3], [4]]
    assert [piece.watermark for piece in pieces] == [None, 20, 20, 20]
    assert [piece.range.until for piece in pieces] == [Cursor(0), Cursor(8), Cursor(12), Cursor(15)]
    assert [piece.range.after for piece in pieces[1:]] == [
        piece.range.until for piece in pieces[:-1]
    ]


def test_only_the_last_piece_tells_how_far_the_end_is() -> None:
    pieces = [*cutter().cut(read([HELLO, 1, mark(10), 2]))]
    assert [(piece.lag, piece.behind) for piece in pieces] == [(None, None)] * 2 + [(0.0, 0)]


def test_what_producers_say_at_the_end_of_a_batch_goes_as_far_as_the_batch() -> None:
    (_, last) = cutter().cut(read([HELLO, 1, mark(10)], until=9))
    assert last.range.until == Cursor(9)
    assert (last.lag, last.watermark) == (0.0, 10)


def test_a_batch_without_a_row_is_one_piece() -> None:
    (piece,) = cutter(Horizon()).cut(read([], until=7))
    assert (piece.range, piece.num_records) == (Range(Horizon(), Cursor(7)), 0)


def test_records_alone_are_not_copied() -> None:
    batch = read([1, 2, 3])
    (piece,) = cutter().cut(batch)
    assert (
        piece.records["value"].buffers()[2].address == batch.records["value"].buffers()[2].address
    )


def test_an_end_takes_the_place_of_a_stop() -> None:
    (piece,) = cutter().cut(read([HELLO, EndFrame(0, 1)]))
    assert (piece.lag, piece.behind) == (None, 0)
    (first, second) = cutter().cut(replace(read([HELLO, 1, EndFrame(0, 1)]), behind=5))
    assert (first.lag, second.lag) == (None, 0.0)


def test_a_bad_frame_comes_behind_everything_before_it() -> None:
    made = cutter()
    pieces = made.cut(read([HELLO, 1, FOREIGN, 2]))
    assert numbers(next(pieces)) == []
    before = next(pieces)
    assert (numbers(before), before.range.until, before.lag) == ([1], Cursor(3), None)
    with pytest.raises(BadFrameError) as error:
        next(pieces)
    assert str(error.value) == (
        "the record of t-0 at offset 4 is no frame of the shuffle: it has version 123, and this "
        "library reads version 1; is the topic written to by another program? on_bad_frame='gap' "
        "leaves such records out"
    )


def test_a_frame_that_contradicts_others_is_a_bad_one() -> None:
    with pytest.raises(BadFrameError, match=r"t-0 at offset 2 .* announces 2 producers and 1 part"):
        list(cutter().cut(read([HELLO, HelloFrame(0, 1, 2, 1)])))


def test_bad_frames_that_may_be_lost_are_gaps() -> None:
    log: list[ControlFrame | int | bytes] = [
        HELLO,
        FOREIGN,
        1,
        FOREIGN,
        b"",
        2,
        IdleFrame(7, 1),
        mark(5),
        FOREIGN,
        mark(6),
        3,
        b"x",
    ]
    pieces = [*cutter(skip_bad_frames=True).cut(read(log))]
    assert [numbers(piece) for piece in pieces] == [[], [1, 2], [3]]
    assert [piece.watermark for piece in pieces] == [None, 6, 6]
    assert [[(g.after, g.until) for g in piece.gaps] for piece in pieces] == [
        [(Cursor(1), Cursor(2))],
        [(Cursor(5), Cursor(8)), (Cursor(11), Cursor(12)), (Cursor(15), Cursor(16))],
        [(Cursor(21), Cursor(22))],
    ]
    assert pieces[0].gaps[0].reason == (
        "no frame of the shuffle: it has version 123, and this library reads version 1"
    )
    assert isinstance(pieces[1].gaps[0], Gap)


def test_after_producers_were_left_out_the_same_place_has_another_state() -> None:
    producers = Producers.unknown()
    made = BatchCutter(SPLIT, Cursor(-1), producers, skip_bad_frames=False, on_frame=lambda _: None)
    batch = read([HelloFrame(0, 1, 2, 1), mark(10)])
    (last,) = made.cut(batch)
    producers.leave_out([1])
    without_records = made.without_records()
    assert (last.watermark, without_records.watermark) == (None, 10)
    assert without_records.range == Range(last.range.until, last.range.until)
    assert (without_records.num_records, without_records.lag) == (0, None)
    assert state(without_records.range.until) == producers


def test_those_that_count_are_heard() -> None:
    received = list[ControlFrame]()
    made = BatchCutter(
        SPLIT, Cursor(-1), Producers.unknown(), skip_bad_frames=True, on_frame=received.append
    )
    list(made.cut(read([HELLO, IdleFrame(0, 0), 1, IdleFrame(5, 1), mark(4), mark(4)])))
    assert received == [HELLO, mark(4), mark(4)]


entries = st.one_of(
    st.integers(0, 99),
    st.builds(mark, st.integers(0, 9)),
    st.builds(HelloFrame, st.integers(0, 1), st.integers(1, 2), st.just(2), st.just(1)),
    st.builds(WatermarkFrame, st.integers(0, 1), st.integers(1, 2), st.integers(0, 9)),
    st.builds(IdleFrame, st.integers(0, 2), st.integers(1, 2)),
    st.sampled_from([FOREIGN, b""]),
)


@given(st.lists(entries, max_size=15), st.lists(st.integers(0, 15), max_size=3))
def test_a_log_says_the_same_wherever_it_is_fetched_in_parts_and_resumed(
    log: list[ControlFrame | int | bytes], cuts: list[int]
) -> None:
    """The state at each position follows from all frames before it, and no record is missing."""
    position: Cursor = Cursor(-1)
    seen: list[int] = []
    bounds = [0, *sorted(min(cut, len(log)) for cut in cuts), len(log)]
    for first, end in pairwise(bounds):
        # A new subscription each time: its state comes from the position alone.
        for piece in cutter(position, skip_bad_frames=True).cut(read(log[:end], first)):
            assert piece.range.after == position
            assert isinstance(piece.range.until, Cursor)
            position = piece.range.until
            seen += numbers(piece)
            known, rows = Producers.unknown(), piece.records["offset"].to_pylist()
            for entry in log[: (position.sequence + 2) // 2]:
                take(known, entry)
            assert state(position) == known
            assert piece.watermark == known.watermark
            if rows:
                known = Producers.unknown()
                for entry in log[: rows[-1] // 2]:
                    take(known, entry)
                assert state(piece.range.after) == known
    assert seen == [entry for entry in log if isinstance(entry, int)]


def take(known: Producers, entry: ControlFrame | int | bytes) -> None:
    if not isinstance(entry, int | bytes):
        try:
            known.apply(entry)
        except BadFrameError:
            return
