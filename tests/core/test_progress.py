from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.event_time import Watermarks
from fanout.core.events import Batch, End, Gap, Split
from fanout.core.positions import WHOLE_RECORD, Cursor, Horizon, Range, Timestamp, reaches
from fanout.core.progress import ABSENCES, Moved, Progress
from fanout.errors import StreamStateError
from tests.support.scripted_source import Log, ScriptedSource, record_batch

if TYPE_CHECKING:
    from fanout.core.positions import Position

A, B = Split("a"), Split("b")


def batch(*numbers: int, until: int | None = None, lag: float | None = None) -> Batch:
    end = Cursor(until if until is not None else numbers[-1])
    return Batch(A, record_batch(Log(split=A), numbers), Range(Horizon(), end), lag)


def progress(*events: Batch | End) -> Progress:
    made = Progress("s", ScriptedSource(logs=[]).arrival)
    made.add(A, Horizon())
    made.deliver(events)
    return made


def test_what_was_delivered_is_not_acknowledged_by_itself() -> None:
    made = progress(batch(1, 2))
    assert made.delivered().splits["a"].position == Cursor(2)
    assert made.acknowledged().splits["a"].position == Horizon()


def test_acknowledging_is_cumulative() -> None:
    made = progress(batch(1), batch(2), batch(3))
    assert made.acknowledge({"a": Cursor(2)}) == {"a": Cursor(2)}
    assert made.acknowledged().splits["a"].position == Cursor(2)


@pytest.mark.fault("An older batch is acknowledged after a newer one")
def test_acknowledging_never_moves_back() -> None:
    made = progress(batch(1), batch(2), batch(3))
    made.acknowledge({"a": Cursor(2)})
    assert made.acknowledge({"a": Cursor(1)}) == {}
    assert made.acknowledge({"a": Cursor(2)}) == {}
    assert made.acknowledged().splits["a"].position == Cursor(2)


def test_what_an_event_says_of_the_end_of_the_split_replaces_what_was_said_before() -> None:
    made = progress(replace(batch(1, lag=0.0), behind=0), replace(batch(2), behind=7))
    assert (made["a"].lag, made["a"].behind) == (None, 7)
    made.deliver([replace(batch(3), behind=0)])
    assert (made["a"].lag, made["a"].behind) == (None, 0)


def test_an_event_that_says_nothing_of_the_end_of_the_split_changes_nothing() -> None:
    made = progress(replace(batch(1, lag=3.0), behind=7), batch(2))
    assert (made["a"].lag, made["a"].behind) == (3.0, 7)


def test_an_ended_split_is_behind_nothing() -> None:
    made = progress(replace(batch(1), behind=7), End(A))
    assert made["a"].behind is None


def test_what_was_not_delivered_cannot_be_acknowledged() -> None:
    with pytest.raises(StreamStateError, match="beyond"):
        progress(batch(1)).acknowledge({"a": Cursor(2)})


def test_idle_progress_is_acknowledged_when_nothing_is_outstanding() -> None:
    made = progress(batch(until=5))
    assert made.acknowledged().splits["a"].position == Cursor(5)


def test_idle_progress_is_not_acknowledged_while_records_are_outstanding() -> None:
    made = progress(batch(1), batch(until=5))
    assert made.acknowledged().splits["a"].position == Horizon()


def test_an_idle_event_at_the_horizon_behind_a_loss_moves_nothing_back() -> None:
    made = progress(batch(1, 2))
    made.acknowledge({"a": Cursor(2)})
    lost = Gap(Cursor(2), Horizon(), "expired")
    nothing = batch(until=0)
    made.deliver([replace(nothing, range=Range(Horizon(), Horizon()), gaps=(lost,))])
    assert made.delivered().splits["a"].position == Cursor(2)
    assert made.acknowledged().splits["a"].position == Cursor(2)
    made.deliver([batch(7)])
    made.acknowledge({"a": Cursor(7)})
    assert made.acknowledged().splits["a"].position == Cursor(7)


def test_an_idle_event_moves_the_watermark_but_not_behind_a_gap_that_was_not_told() -> None:
    """The position stays before the gap, and a restart there must not find a lower watermark."""
    made = Progress(
        "s", ScriptedSource(logs=[]).arrival, (), Watermarks(idleness=None, bounded=False)
    )
    made.add(A, Cursor(0), watermark=3)
    assert made.watermarks is not None
    assert made["a"].watermark == 3
    made.deliver([replace(batch(until=1), watermark=5)])
    assert (made["a"].watermark, made.watermarks.stream) == (5, 5)
    lost = Gap(Cursor(1), Cursor(2), "expired")
    made.deliver([replace(batch(until=2), gaps=(lost,), watermark=7)])
    assert (made["a"].watermark, made.watermarks.stream) == (5, 5)
    made.deliver([replace(batch(3), watermark=9)])
    assert (made["a"].watermark, made.watermarks.stream) == (9, 9)


def test_watermarks_that_were_stored_count_once_every_split_is_known() -> None:
    made = Progress(
        "s", ScriptedSource(logs=[]).arrival, (), Watermarks(idleness=None, bounded=False)
    )
    made.add(A, Cursor(0), watermark=30)
    made.add(B, Cursor(0), watermark=20)
    assert made.watermarks is not None
    assert made.watermarks.stream is None
    made.deliver([batch(1)])
    assert made.watermarks.stream == 20


def test_a_split_that_another_process_calls_idle_counts_again_with_its_next_record() -> None:
    watermarks = Watermarks(idleness=10.0, bounded=False)
    made = Progress("s", ScriptedSource(logs=[]).arrival, (), watermarks)
    made.add(A, Cursor(0))
    made.add(B, Cursor(0))
    made.advance("a", Cursor(1), Moved(watermark=5, records=1))
    made.advance("b", Cursor(1), Moved(watermark=10, records=1))
    assert watermarks.stream == 5
    made.advance("a", Cursor(2), Moved(watermark=5, idle=True))
    assert watermarks.stream == 10
    # It moves on without records, perhaps at another process that does not know of it.
    made.advance("a", Cursor(3), Moved(watermark=5))
    made.advance("b", Cursor(2), Moved(watermark=20, records=1))
    assert watermarks.stream == 20
    made.advance("a", Cursor(4), Moved(watermark=25, records=2))
    made.advance("b", Cursor(3), Moved(watermark=30, records=1))
    assert watermarks.stream == 25
    assert made["a"].records == 3


def test_a_split_that_another_process_has_read_to_its_stop_holds_nothing_back() -> None:
    watermarks = Watermarks(idleness=None, bounded=True)
    made = Progress("s", ScriptedSource(logs=[]).arrival, (), watermarks)
    made.add(A, Cursor(0))
    made.add(B, Cursor(0))
    made.advance("a", Cursor(1), Moved(watermark=5, records=1))
    made.advance("b", Cursor(1), Moved(watermark=10, records=1))
    made.advance("a", Cursor(1), Moved(watermark=5, caught_up=True))
    assert watermarks.stream == 10


def test_acknowledging_the_last_records_acknowledges_the_idle_progress_after_them() -> None:
    made = progress(batch(1), batch(2), batch(until=5))
    made.acknowledge({"a": Cursor(1)})
    assert made.acknowledged().splits["a"].position == Cursor(1)
    assert made.acknowledge({"a": Cursor(2)}) == {"a": Cursor(5)}


@pytest.mark.fault("A restart exactly at the end of a shard")
def test_a_split_has_ended_for_a_restart_only_when_all_of_it_is_acknowledged() -> None:
    made = progress(batch(1), End(A))
    assert made.delivered().splits["a"].ended
    assert not made.acknowledged().splits["a"].ended
    made.acknowledge({"a": Cursor(1)})
    assert made.acknowledged().splits["a"].ended


def expire(made: Progress, listed: list[str]) -> None:
    """List so often that what is missing counts as expired."""
    for _ in range(ABSENCES):
        made.forget_expired(listed)


def test_a_split_that_is_done_and_no_longer_listed_is_forgotten() -> None:
    made = progress(batch(1), End(A))
    made.add(B, Horizon())
    expire(made, ["b"])
    assert "a" in made
    made.acknowledge({"a": Cursor(1)})
    expire(made, ["a", "b"])
    assert "a" in made
    expire(made, ["b"])
    assert "a" not in made


def test_a_split_that_has_lost_records_is_not_forgotten() -> None:
    made = progress(End(A, gaps=(Gap(Horizon(), None, "expired"),)))
    expire(made, [])
    assert [split.gaps for split in made] == [1]


def test_one_incomplete_listing_forgets_nothing() -> None:
    made = progress(batch(1), End(A))
    made.acknowledge({"a": Cursor(1)})
    for _ in range(20):
        made.forget_expired([])
        made.forget_expired(["a"])
    assert "a" in made


def test_progress_can_be_looked_at_from_another_thread_while_splits_come() -> None:
    made = progress(batch(1))
    looking = iter(made)
    made.add(B, Horizon())
    assert [split.split for split in looking] == [A]


def test_a_split_that_is_forgotten_can_still_be_acknowledged() -> None:
    made = progress(batch(1), End(A))
    made.acknowledge({"a": Cursor(1)})
    expire(made, [])
    assert "a" not in made
    assert made.acknowledge({"a": Cursor(1)}) == {}


def test_a_stream_has_caught_up_when_each_split_has_once_been_at_its_tip() -> None:
    made = progress(batch(1, lag=3.0))
    made.add(B, Horizon(), ended=True)
    assert not made.caught_up
    made.deliver([batch(2, lag=0.0), batch(3, lag=2.0)])
    assert made.caught_up
    assert made["a"].lag == 2.0


def test_a_split_that_has_ended_has_caught_up_and_has_no_lag() -> None:
    made = progress(batch(1, lag=3.0), End(A))
    assert made.caught_up
    assert made["a"].lag is None


def test_a_batch_that_does_not_tell_the_lag_leaves_it() -> None:
    assert progress(batch(1, lag=3.0), batch(2))["a"].lag == 3.0


def test_records_and_bytes_are_counted() -> None:
    one, two = batch(1, 2), batch(3)
    made = progress(one, two)
    assert (made["a"].records, made["a"].bytes) == (3, one.nbytes + two.nbytes)


@st.composite
def later_positions(draw: st.DrawFn, position: Position) -> Position:
    """A place behind another one, in the order in which a reader comes to them."""
    sequence = draw(st.integers(0, 3))
    match position:
        case Cursor(at, sub) if sub != WHOLE_RECORD and draw(st.booleans()):
            return Cursor(at, sub + draw(st.sampled_from([1, 2, WHOLE_RECORD - sub])))
        case Cursor(at, _):
            return Cursor(at + 1 + sequence, draw(st.sampled_from([0, 3, WHOLE_RECORD])))
        case Timestamp(millis) if draw(st.booleans()):
            return Timestamp(millis + 1 + sequence)
        case Horizon() if draw(st.booleans()):
            return Timestamp(sequence)
        case _:
            return Cursor(sequence, draw(st.sampled_from([0, WHOLE_RECORD])))


class ProgressMachine(RuleBasedStateMachine):
    """Batches, idle events, gaps and the end of a split, acknowledged and resumed in any order.

    The model: the places that the reader has come to, in order, which of them has records right
    before it, the number of the last one that was acknowledged, the position sent to the service,
    and the number of the one that the reader has begun with. A loss that no batch has reported yet
    is no place: it has to be found again after a restart.
    """

    def __init__(self) -> None:
        super().__init__()
        self.places: list[Position] = []
        self.records: list[bool] = []
        self.acknowledged = 0
        self.ended = False
        self.unreported = False
        self.sent: Position | None = None
        self.begun = 0

    @initialize(start=st.sampled_from([Horizon(), Timestamp(5), Cursor(7), Cursor(7, 2)]))
    def begin(self, start: Position) -> None:
        self.places, self.records = [start], [False]
        self.progress = Progress("s", ScriptedSource(logs=[]).arrival)
        self.progress.add(A, start)
        self.sent = None if isinstance(start, Cursor) else start

    @property
    def place(self) -> int:
        """The place at which a restart would begin."""
        return self.places.index(self.progress.acknowledged().splits["a"].position)

    @property
    def done(self) -> int:
        """The place up to which nothing is left to acknowledge."""
        done = self.acknowledged
        while done + 1 < len(self.places) and not self.records[done + 1]:
            done += 1
        return done

    @precondition(lambda self: not self.ended)
    @rule(data=st.data(), records=st.integers(0, 2))
    def deliver(self, data: st.DataObject, records: int) -> None:
        after = self.places[-1]
        until = data.draw(later_positions(after))
        made = Batch(A, record_batch(Log(split=A), range(records)), Range(after, until))
        self.progress.deliver([made])
        self.unreported = self.unreported and not records
        if not self.unreported:
            self.places.append(until)
            self.records.append(records > 0)

    @precondition(lambda self: not self.ended)
    @rule(lost=st.booleans())
    def deliver_nothing_new(self, lost: bool) -> None:  # noqa: FBT001 - drawn
        """A heartbeat, or a jump to the horizon behind what is lost."""
        at = Horizon() if lost else self.places[-1]
        gaps = (Gap(self.places[-1], at, "expired"),) if lost else ()
        self.unreported = self.unreported or lost
        self.progress.deliver([replace(batch(until=0), range=Range(at, at), gaps=gaps)])

    @precondition(lambda self: not self.ended)
    @rule()
    def end(self) -> None:
        self.progress.deliver([End(A)])
        self.ended = True

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.places) - 1))
        before = self.place
        self.acknowledged = max(self.acknowledged, number)
        sent = self.progress.acknowledge({"a": self.places[number]})
        assert self.place >= before
        last = max((place for place, has in enumerate(self.records) if has), default=0)
        position = self.places[self.place]
        news = number >= min(before, max(last, self.begun)) and position != self.sent
        assert sent == ({"a": position} if news else {})
        if news:
            self.sent = position

    @rule(data=st.data())
    def acknowledge_too_much(self, data: st.DataObject) -> None:
        beyond = data.draw(later_positions(self.places[-1]))
        with pytest.raises(StreamStateError):
            self.progress.acknowledge({"a": beyond})

    @rule(lost=st.booleans())
    def restart(self, lost: bool) -> None:  # noqa: FBT001 - drawn
        """Resume after what was acknowledged, or was handed on and is acknowledged by that."""
        if not lost:
            self.acknowledged = len(self.places) - 1
        stored = (self.progress.acknowledged() if lost else self.progress.delivered()).to_json()
        place = self.place if lost else self.acknowledged
        state = Checkpoint.from_json(stored).splits["a"]
        self.progress = Progress("s", ScriptedSource(logs=[]).arrival)
        self.progress.add(state.split, state.position, ended=state.ended, newest=state.newest)
        self.sent = None if isinstance(state.position, Cursor) else state.position
        self.begun = place
        self.ended = self.ended and place == len(self.places) - 1
        self.unreported = False
        del self.places[place + 1 :], self.records[place + 1 :]

    @invariant()
    def a_restart_repeats_exactly_what_has_records_without_acknowledgement(self) -> None:
        if not self.places:
            return
        last, resumed = len(self.places) - 1, self.place
        assert self.acknowledged <= resumed <= self.done
        assert resumed == last or self.done < last, "idle progress is not stored"
        for made, place in (
            (self.progress.acknowledged(), resumed),
            (self.progress.delivered(), last),
        ):
            state = made.splits["a"]
            assert state.position == self.places[place]
            assert state.ended == (self.ended and place == last)
            assert Checkpoint.from_json(made.to_json()) == made

    @invariant()
    def the_order_of_positions_is_the_order_of_reading(self) -> None:
        for place in self.places[:-1]:
            assert reaches(self.places[-1], place)
            assert not reaches(place, self.places[-1])


TestProgressMachine = pytest.mark.long(ProgressMachine.TestCase)
TestProgressMachine.settings = settings(max_examples=2 * settings().max_examples)


def after_gap(*numbers: int) -> Batch:
    gap = Gap(Cursor(2), Horizon(), "expired")
    return replace(batch(*numbers, until=(*numbers, 2)[-1]), gaps=(gap,))


def test_a_gap_is_counted_and_measured_between_the_records_at_its_sides() -> None:
    made = progress(batch(1, 2), after_gap(9, 10), batch(11))
    assert (made["a"].gaps, made["a"].gap_seconds, made["a"].newest) == (1, 7.0, 11_000)


def test_a_gap_before_an_idle_event_is_measured_at_the_next_record() -> None:
    made = progress(batch(2), after_gap(), after_gap(), batch(9))
    assert (made["a"].gaps, made["a"].gap_seconds) == (2, 7.0)


def test_a_gap_without_a_record_before_it_is_counted_and_has_no_length() -> None:
    made = progress(after_gap(9))
    assert (made["a"].gaps, made["a"].gap_seconds) == (1, 0.0)


def test_a_gap_between_the_records_of_a_batch_is_counted_and_has_no_length() -> None:
    inside = replace(batch(3, 9), gaps=(Gap(Cursor(3), Cursor(5), "broken"),))
    made = progress(batch(1, 2), inside, batch(10))
    assert (made["a"].gaps, made["a"].gap_seconds) == (1, 0.0)


def test_a_gap_with_which_a_batch_begins_is_measured() -> None:
    gap = Gap(Horizon(), Cursor(5), "broken")
    made = progress(batch(1, 2), replace(batch(9), gaps=(gap,)))
    assert made["a"].gap_seconds == 7.0


def test_a_gap_at_the_end_of_a_split_is_counted() -> None:
    made = progress(batch(1), End(A, gaps=(Gap(Cursor(1), None, "expired"),)))
    assert (made["a"].gaps, made["a"].gap_seconds) == (1, 0.0)


def test_a_gap_after_a_restart_is_measured_from_the_record_before_it() -> None:
    made = Progress("s", ScriptedSource(logs=[]).arrival)
    made.add(A, Cursor(2), newest=progress(batch(1, 2)).delivered().splits["a"].newest)
    made.deliver([after_gap(9)])
    assert made["a"].gap_seconds == 7.0


def test_the_arrival_of_the_newest_record_is_stored_with_its_position_only() -> None:
    made = progress(batch(1, 2))
    assert made.delivered().splits["a"].newest == 2000
    assert made.acknowledged().splits["a"].newest is None
    made.acknowledge({"a": Cursor(2)})
    assert made.acknowledged().splits["a"].newest == 2000


def anew(*numbers: int, until: int | None = None) -> Batch:
    gap = Gap(Cursor(9), Cursor(-1), "another split by the same name has replaced it")
    return replace(batch(*numbers, until=until), gaps=(gap,))


def test_a_split_that_begins_anew_moves_the_positions_back() -> None:
    made = progress(batch(8, 9))
    made.acknowledge({"a": Cursor(9)})
    made.deliver([anew(0, 1)])
    assert made.delivered().splits["a"].position == Cursor(1)
    assert made.acknowledged().splits["a"].position == Cursor(-1)
    assert made.acknowledge({"a": Cursor(1)}) == {"a": Cursor(1)}
    assert made.acknowledged().splits["a"].position == Cursor(1)


def test_what_a_split_delivered_before_it_began_anew_can_still_be_acknowledged_in_vain() -> None:
    made = progress(batch(8, 9), anew(0, 1))
    assert made.acknowledge({"a": Cursor(9)}) == {}
    assert made.acknowledged().splits["a"].position == Horizon()
    with pytest.raises(StreamStateError):
        made.acknowledge({"a": Cursor(10)})


def test_a_split_that_another_process_reads_begins_anew() -> None:
    made = progress()
    made.advance("a", Cursor(8), Moved(records=1))
    assert made.acknowledge({"a": Cursor(8)}) == {"a": Cursor(8)}
    made.advance("a", Cursor(9), Moved(records=1))
    made.advance("a", Cursor(1), Moved(records=2))
    assert made.acknowledge({"a": Cursor(9)}) == {}  # the batch before was handled meanwhile
    assert made.acknowledge({"a": Cursor(1)}) == {"a": Cursor(1)}


def test_a_split_begins_anew_although_it_has_no_record_yet() -> None:
    made = progress(batch(8, 9))
    made.acknowledge({"a": Cursor(9)})
    made.deliver([anew(until=-1)])
    for checkpoint in (made.delivered(), made.acknowledged()):
        assert checkpoint.splits["a"].position == Cursor(-1)
    (seen,) = made.deliver([batch(0)])
    assert seen.gaps == anew(0).gaps
    assert made.delivered().splits["a"].position == Cursor(0)


def test_a_gap_behind_which_a_split_begins_anew_is_found_again_until_it_was_told() -> None:
    made = progress(batch(8, 9))
    expired = Gap(Cursor(-1), Cursor(4), "expired")
    idle = anew(until=4)
    made.deliver([replace(idle, gaps=(*idle.gaps, expired))])
    assert made.delivered().splits["a"].position == Cursor(-1)
    (seen,) = made.deliver([batch(5)])
    assert seen.gaps == (*idle.gaps, expired)
    assert made.delivered().splits["a"].position == Cursor(5)


def test_the_positions_of_splits_that_are_not_read_are_kept_as_they_are() -> None:
    kept = SplitPosition(B, Cursor(5), newest=7)
    made = Progress("s", ScriptedSource(logs=[]).arrival, [kept])
    made.add(A, Horizon())
    made.deliver([batch(1)])
    made.acknowledge({"a": Cursor(1), "b": Cursor(9)})
    for checkpoint in (made.delivered(), made.acknowledged()):
        assert checkpoint.splits["b"] is kept
        assert checkpoint.splits["a"].position == Cursor(1)
    assert [state.split for state in made] == [A]


def test_a_service_is_told_what_a_resumed_stream_begins_with_when_it_is_acknowledged() -> None:
    made = Progress("s", ScriptedSource(logs=[]).arrival)
    made.add(A, Cursor(4))
    assert made.acknowledge({"a": Cursor(3)}) == {}
    assert made.acknowledge({"a": Cursor(4)}) == {"a": Cursor(4)}
    assert made.acknowledge({"a": Cursor(4)}) == {}


def test_a_service_is_told_of_progress_without_records_behind_what_is_acknowledged() -> None:
    made = progress(batch(1), batch(until=5))
    assert made.acknowledge({"a": Cursor(1)}) == {"a": Cursor(5)}
    made.deliver([batch(until=9)])
    assert made.acknowledge({"a": Cursor(1)}) == {"a": Cursor(9)}


def test_the_totals_keep_what_was_lost_of_splits_that_are_followed_no_longer() -> None:
    made = progress(batch(1))
    made.deliver([replace(batch(5), gaps=(Gap(Cursor(1), Cursor(4), "gone"),))])
    lost = replace(batch(7), range=Range(Cursor(6), Cursor(7)))
    made.deliver([replace(lost, gaps=(Gap(Cursor(5), Cursor(6), "gone"),))])
    assert (made.gaps, made.gap_seconds) == (2, 2.0)
    made.remove("a")
    assert (made.gaps, made.gap_seconds) == (2, 2.0)
