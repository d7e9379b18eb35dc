from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.core.checkpoint import MAX_STATE
from fanout.errors import BadFrameError, PositionError
from fanout.kafka.shuffle.frames import (
    MAX_GENERATION,
    MAX_PRODUCERS,
    ControlFrame,
    EndFrame,
    HelloFrame,
    IdleFrame,
    WatermarkFrame,
)
from fanout.kafka.shuffle.producers import Activity, Liveness, Producers, ProducerState

if TYPE_CHECKING:
    from collections.abc import Sequence

G = 7


def after(*frames: ControlFrame) -> Producers:
    producers = Producers.unknown()
    for frame in frames:
        producers.apply(frame)
    return producers


def hellos(count: int, generation: int = G, partitions: int = 4) -> list[ControlFrame]:
    return [HelloFrame(producer, generation, count, partitions) for producer in range(count)]


def says(millis: int, producer: int = 0, generation: int = G) -> WatermarkFrame:
    return WatermarkFrame(producer, generation, millis)


def test_the_watermark_is_the_least_of_all_producers() -> None:
    assert after(*hellos(2), says(20, 0), says(10, 1)).watermark == 10


def test_there_is_none_before_every_announced_producer_was_heard_of() -> None:
    producers = after(HelloFrame(0, G, 3, 4), says(20, 0), says(30, 1))
    assert producers.watermark is None
    producers.apply(HelloFrame(2, G, 3, 4))
    assert producers.watermark is None
    producers.apply(says(25, 2))
    assert producers.watermark == 20


def test_there_is_none_as_long_as_nobody_says_how_many_producers_there_are() -> None:
    producers = after(says(20, 0), says(30, 1))
    assert producers.watermark is None
    producers.apply(HelloFrame(0, G, 2, 4))
    assert producers.watermark == 20


def test_a_watermark_that_repeats_or_goes_back_is_ignored_and_counted() -> None:
    producers = after(*hellos(1), says(20), says(20), says(10))
    assert (producers.watermark, producers.repeated) == (20, 2)
    producers.apply(says(21))
    assert (producers.watermark, producers.repeated) == (21, 2)


def test_an_idle_producer_holds_nothing_back_until_it_says_its_watermark_again() -> None:
    producers = after(*hellos(2), says(10, 0), says(10, 1), IdleFrame(1, G), says(30, 0))
    assert producers.watermark == 30
    producers.apply(says(10, 1))
    producers.apply(says(50, 0))
    assert producers.watermark == 30
    producers.apply(says(40, 1))
    assert producers.watermark == 40


def test_where_all_are_idle_the_watermark_stays() -> None:
    producers = after(*hellos(2), says(10, 0), says(30, 1), IdleFrame(1, G), IdleFrame(0, G))
    assert producers.watermark == 10


def test_an_ended_producer_holds_nothing_back() -> None:
    producers = after(*hellos(2), says(10, 0), says(30, 1), EndFrame(0, G))
    assert (producers.watermark, producers.ended) == (30, False)
    producers.apply(EndFrame(1, G))
    assert (producers.watermark, producers.ended) == (30, True)


def test_a_producer_that_speaks_after_its_end_has_not_ended() -> None:
    producers = after(*hellos(1), says(10), EndFrame(0, G), HelloFrame(0, G, 1, 4))
    assert not producers.ended
    assert producers.seen == {0: ProducerState(10)}


def test_nothing_has_ended_before_all_were_heard_of() -> None:
    assert not after(HelloFrame(0, G, 2, 4), EndFrame(0, G)).ended
    assert not after(EndFrame(0, G)).ended
    assert not Producers.unknown().ended


def test_a_newer_generation_takes_the_place_of_the_older_one_and_the_watermark_stays() -> None:
    producers = after(*hellos(2), says(20, 0), says(20, 1), *hellos(3, G + 1))
    assert (producers.generation, producers.announced, producers.watermark) == (G + 1, 3, 20)
    for number in range(3):
        producers.apply(says(10, number, G + 1))
    assert producers.watermark == 20
    for number in range(3):
        producers.apply(says(30, number, G + 1))
    assert producers.watermark == 30


def test_whatever_a_newer_generation_says_first_takes_the_place_of_the_older_one() -> None:
    producers = after(*hellos(1), says(20), says(5, 0, G + 1), says(90))
    assert (producers.generation, producers.announced, producers.partitions) == (G + 1, None, None)
    assert (producers.watermark, producers.outdated) == (20, 1)


def test_what_an_older_generation_says_is_ignored_and_counted() -> None:
    producers = after(*hellos(1), says(20))
    old: list[ControlFrame] = [
        HelloFrame(0, 3, 9, 9),
        says(90, 5, 3),
        IdleFrame(0, 3),
        EndFrame(0, 3),
    ]
    assert [producers.apply(frame) for frame in old] == [False] * 4
    assert producers.apply(says(21))
    assert (producers.watermark, producers.outdated, len(producers.seen)) == (21, 4, 1)


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (
            HelloFrame(0, G, 3, 4),
            "it announces 3 producers and 4 partitions, but generation 7 has 2 and 4",
        ),
        (
            HelloFrame(0, G, 2, 5),
            "it announces 2 producers and 5 partitions, but generation 7 has 2 and 4",
        ),
        (says(30, 2), "it is of producer 2, but generation 7 has 2 producers"),
        (EndFrame(5, G), "it is of producer 5, but generation 7 has 2 producers"),
    ],
)
def test_what_contradicts_the_generation_changes_nothing(
    frame: ControlFrame, sentence: str
) -> None:
    producers = after(*hellos(2), says(10, 0), says(10, 1))
    before = producers.to_state()
    with pytest.raises(BadFrameError) as error:
        producers.apply(frame)
    assert str(error.value) == sentence
    assert producers.to_state() == before


def test_a_hello_contradicts_a_producer_that_was_heard_before_it() -> None:
    producers = after(says(10, 5))
    with pytest.raises(BadFrameError, match=r"announces 5 producers, but .* has a producer 5"):
        producers.apply(HelloFrame(0, G, 5, 4))
    assert producers.announced is None


def test_a_newer_generation_contradicts_nothing() -> None:
    assert after(*hellos(2), HelloFrame(0, G + 1, 1, 9)).partitions == 9
    assert after(*hellos(2), says(1, 5, G + 1)).seen == {5: ProducerState(1)}


def test_a_producer_that_is_left_out_counts_again_when_it_speaks() -> None:
    producers = after(*hellos(2), says(10, 0), says(30, 1))
    assert producers.awaited == [0, 1]
    producers.leave_out([0])
    assert (producers.watermark, producers.awaited) == (30, [1])
    assert producers.seen[0] == ProducerState(10, Activity.LEFT_OUT)
    producers.apply(says(20, 0))
    producers.apply(says(50, 1))
    assert (producers.watermark, producers.awaited) == (30, [0, 1])


def test_a_producer_that_was_announced_and_never_heard_can_be_left_out() -> None:
    producers = after(HelloFrame(0, G, 2, 4), says(10, 0))
    assert producers.awaited == [0, 1]
    producers.leave_out([1])
    assert producers.watermark == 10


def test_nobody_is_awaited_who_is_idle_or_ended_or_was_not_announced() -> None:
    assert after(*hellos(3), IdleFrame(0, G), EndFrame(2, G)).awaited == [1]
    assert after(says(1)).awaited == []


generations = st.integers(1, 3)
producer_numbers = st.integers(0, 2)
frames = st.one_of(
    st.builds(WatermarkFrame, producer_numbers, generations, st.integers(0, 9)),
    # All producers of a generation announce the same; there is a generation of each size.
    st.builds(
        lambda generation, producer: HelloFrame(producer % generation, generation, generation, 4),
        generations,
        producer_numbers,
    ),
    st.builds(IdleFrame, producer_numbers, generations),
    st.builds(EndFrame, producer_numbers, generations),
)


def by_the_book(log: Sequence[ControlFrame]) -> int | None:
    """Return the watermark after a log, computed from the whole log for each frame."""
    highest: int | None = None
    for end in range(1, len(log) + 1):
        newest = max(frame.generation for frame in log[:end])
        own = [frame for frame in log[:end] if frame.generation == newest]
        announced = next((f.producers for f in own if isinstance(f, HelloFrame)), None)
        last = {frame.producer: frame for frame in own}
        if announced is None or last.keys() != set(range(announced)):
            continue
        active = [p for p, frame in last.items() if not isinstance(frame, IdleFrame | EndFrame)]
        marks = {
            p: [f.millis for f in own if isinstance(f, WatermarkFrame) and f.producer == p]
            for p in active
        }
        if not active or not all(marks.values()):
            continue
        least = min(max(seen) for seen in marks.values())
        highest = least if highest is None else max(highest, least)
    return highest


def accepted(log: Sequence[ControlFrame]) -> list[ControlFrame]:
    """Leave out the frames that contradict earlier ones."""
    producers, kept = Producers.unknown(), list[ControlFrame]()
    for frame in log:
        try:
            producers.apply(frame)
        except BadFrameError:
            continue
        kept.append(frame)
    return kept


@given(st.lists(frames, max_size=25))
def test_the_watermark_is_that_of_a_model_and_survives_being_stored_anywhere(
    log: list[ControlFrame],
) -> None:
    log = accepted(log)
    producers = Producers.unknown()
    reported = None
    for end, frame in enumerate(log, 1):
        producers.apply(frame)
        assert producers.watermark == by_the_book(log[:end])
        assert reported is None or (
            producers.watermark is not None and producers.watermark >= reported
        )
        reported = producers.watermark
        stored = Producers.from_state(producers.to_state())
        assert stored == producers
        producers = stored


@dataclass
class Writer:
    """A producer that writes no record at or below its own watermark.

    `floor` is the watermark of the partition as it was raised while this producer counted.
    """

    hello: HelloFrame
    known: Producers
    mark: int = 0
    resting: bool = False
    floor: int = -1
    written: list[ControlFrame] = field(default_factory=list)

    def says(self, frame: ControlFrame) -> None:
        self.written.append(frame)
        self.known.apply(frame)

    def begins(self) -> None:
        self.says(self.hello)

    def rests(self) -> None:
        self.resting = True
        self.says(IdleFrame(self.hello.producer, self.hello.generation))

    def rises(self, by: int) -> None:
        if self.resting:
            # Its watermark may be below that of the partition, and counts from here on.
            self.resting, self.floor = False, -1
        self.mark += by
        self.says(says(self.mark, self.hello.producer, self.hello.generation))

    def writes(self, later: int) -> None:
        """Write a record, unless the producer is idle or has ended."""
        if not self.resting and self.hello.generation == self.known.generation:
            assert self.mark + later > self.floor

    def repeats(self, count: int) -> None:
        for frame in self.written[-count:]:
            self.known.apply(frame)

    def learns(self) -> None:
        """Note the watermark, if it covers this producer."""
        assert self.known.watermark is not None
        one = self.known.seen.get(self.hello.producer)
        if self.hello.generation == self.known.generation and one is not None:
            assert self.known.announced == len(self.known.seen)
            if one.activity is Activity.ACTIVE:
                self.floor = self.known.watermark


@given(st.data())
def test_no_record_of_a_producer_that_counts_is_at_or_below_the_watermark(
    data: st.DataObject,
) -> None:
    """Correct producers in any order, that repeat frames, and write on after their successors."""
    known = Producers.unknown()
    writers: list[Writer] = []
    for generation in range(1, data.draw(st.integers(1, 3)) + 1):
        count = data.draw(st.integers(1, 3))
        fresh = [Writer(HelloFrame(n, generation, count, 4), known) for n in range(count)]
        writers += fresh
        for writer in fresh:
            writer.begins()
        for _ in range(data.draw(st.integers(0, 12))):
            writer = data.draw(st.sampled_from(writers))
            before = known.watermark
            match data.draw(st.sampled_from([*("writes", "rises") * 2, "rests", "repeats"])):
                case "writes":
                    writer.writes(data.draw(st.integers(1, 5)))
                case "rises":
                    writer.rises(data.draw(st.integers(0, 5)))
                case "rests":
                    writer.rests()
                case _:
                    writer.repeats(data.draw(st.integers(1, 4)))
            if known.watermark != before:
                for each in writers:
                    each.learns()


@given(st.lists(frames, max_size=15), st.integers(1, 3))
def test_the_watermark_advances_once_every_producer_of_a_new_generation_does(
    log: list[ControlFrame], count: int
) -> None:
    producers = after(*accepted(log), *hellos(count, 9))
    for number in range(count):
        producers.apply(says(100 + number, number, 9))
    assert producers.watermark == 100


def stored(**changes: object) -> str:
    names = "version generation announced partitions watermark repeated outdated producers"
    wire = dict(zip(names.split(), [1, 7, 2, 4, 20, 0, 0, [[0, 20, 0], [1, None, 1]]], strict=True))
    return json.dumps([*(wire | changes).values()])


def test_the_stored_form_is_stable() -> None:
    producers = after(*hellos(2), says(20, 0), IdleFrame(1, G))
    assert json.loads(producers.to_state()) == json.loads(stored())
    assert Producers.unknown().to_state() == ""
    assert Producers.from_state("") == Producers.unknown()
    reported = Producers.unknown(5)
    assert Producers.from_state(reported.to_state()) == reported


def test_as_many_producers_as_there_may_be_can_be_stored() -> None:
    low = WatermarkFrame(0, MAX_GENERATION, -(2**63))
    producers = Producers.unknown()
    for number in range(MAX_PRODUCERS):
        producers.apply(HelloFrame(number, MAX_GENERATION, MAX_PRODUCERS, 2**31 - 1))
        producers.apply(replace(low, producer=number))
    assert len(producers.to_state()) < MAX_STATE
    assert Producers.from_state(producers.to_state()) == producers


@pytest.mark.parametrize("version", [0, 2])
def test_another_version_is_refused_by_its_number(version: int) -> None:
    with pytest.raises(PositionError, match=f"format version {version}, .* version 1"):
        Producers.from_state(f'[{version}, "news of that version"]')


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "{}",
        "[]",
        "[1]",
        stored()[:-1],
        stored(more=1),
        stored(generation=-1),
        stored(generation=2**63),
        stored(announced=0),
        stored(announced=MAX_PRODUCERS + 1),
        stored(announced=1),
        stored(partitions=0),
        stored(partitions="4"),
        stored(watermark=2**63),
        stored(watermark=1.5),
        stored(repeated=-1),
        stored(outdated=None),
        stored(producers={}),
        stored(producers=[[2, None, 0]]),
        stored(producers=[[0, None, 0], [0, None, 0]]),
        stored(producers=[[0, None, 4]]),
        stored(producers=[[-1, None, 0]]),
        stored(producers=[[0, None, 0, 0]]),
        stored(announced=None, producers=[[MAX_PRODUCERS, None, 0]]),
        "[" * 10_000,
        " " * MAX_STATE + stored(),
    ],
    ids=lambda text: text[:70],
)
def test_a_damaged_state_is_refused(text: str) -> None:
    with pytest.raises(PositionError):
        Producers.from_state(text)


def test_a_producer_is_silent_as_long_as_the_reader_has_waited_since() -> None:
    liveness = Liveness(60.0)
    liveness.note_frame(1, 0)
    liveness.waited(59.0)
    liveness.note_frame(1, 1)
    assert liveness.timed_out([0, 1]) == []
    liveness.waited(1.0)
    assert liveness.timed_out([0, 1]) == [0]
    liveness.waited(59.0)
    assert liveness.timed_out([0, 1]) == [0, 1]


def test_one_that_was_never_heard_is_silent_since_the_reader_began() -> None:
    liveness = Liveness(60.0)
    liveness.waited(60.0)
    assert liveness.timed_out([3]) == [3]


def test_a_new_generation_has_all_of_its_time() -> None:
    liveness = Liveness(60.0)
    liveness.note_frame(1, 1)
    liveness.waited(50.0)
    liveness.note_frame(2, 0)
    liveness.waited(50.0)
    assert liveness.timed_out([0, 1]) == []
    liveness.waited(10.0)
    assert liveness.timed_out([0, 1]) == [0, 1]


def test_without_a_timeout_nobody_is_silent() -> None:
    liveness = Liveness(None)
    liveness.waited(1e9)
    assert liveness.timed_out([0]) == []
