from __future__ import annotations

import pyarrow as pa

from fanout.core.events import Batch, Split
from fanout.core.positions import Cursor, Horizon, Range
from tests.provers.simulation.kinesis.oracle.held_events import HeldEvents
from tests.provers.simulation.kinesis.service.stream_log import SourceRecord, SubRecord

A, B = "shardId-000000000000", "shardId-000000000001"
NOTHING = pa.RecordBatch.from_pylist([], schema=pa.schema([]))


def records(*numbers: int) -> list[SourceRecord]:
    return [SourceRecord(number, 0, "k", (SubRecord("k", b""),), "plain") for number in numbers]


def held_events(*, limit: int = 1000, may_drain: bool = False) -> HeldEvents:
    made = HeldEvents(limit, may_drain=may_drain)
    made.resume(A, 0)
    made.resume(B, 0)
    return made


def got(until: int, sub: int = 0) -> Batch:
    return Batch(Split(A), NOTHING, Range(Horizon(), Cursor(until, sub)))


def test_one_event_may_wait_while_more_is_asked_for() -> None:
    held = held_events()
    held.take(A, records(1, 2), 10)
    held.take(B, records(3, 4), 10)
    held.get(got(2))
    held.take(A, records(5), 10)
    assert held.wrongs == []


def test_two_events_that_wait_while_more_is_asked_for_are_too_many() -> None:
    held = held_events()
    held.take(A, records(1, 2), 10)
    held.take(A, records(3), 10)
    assert held.wrongs == [f"unbounded: 2 events of {A} are held, and more is asked for"]


def test_an_event_of_which_the_job_has_the_first_row_is_with_the_job() -> None:
    held = held_events()
    held.take(A, records(1, 2), 10)
    held.get(got(1))
    held.take(A, records(3), 10)
    assert held.wrongs == []


def test_what_is_asked_for_again_was_not_held() -> None:
    held = held_events()
    held.take(A, records(1, 2), 10)
    held.resume(A, 0)
    held.take(A, records(1, 2), 10)
    assert held.wrongs == []


def test_what_waits_is_not_forgotten_because_more_is_asked_for_behind_it() -> None:
    held = held_events()
    held.take(A, records(1, 2), 10)
    held.resume(A, 2)
    held.take(A, records(3), 10)
    assert held.wrongs


def test_a_drain_holds_as_many_rows_as_it_was_asked_for_and_an_event_that_does_not_fit() -> None:
    held = held_events(may_drain=True)
    held.drain_rows = 2
    for number in range(1, 5):
        held.take(A, records(number), 10)
    assert held.wrongs == []
    held.take(A, records(5), 10)
    assert held.wrongs


def test_what_a_cancelled_drain_has_collected_waits_for_the_next_one() -> None:
    held = held_events(may_drain=True)
    held.drain_rows = 2
    for number in range(1, 5):
        held.take(A, records(number), 10)
    held.excuse()
    held.drain_rows = 0
    held.take(A, records(5), 10)
    held.take(A, records(6), 10)
    assert held.wrongs == []
    held.take(A, records(7), 10)
    assert held.wrongs


def test_all_shards_together_hold_no_more_bytes_than_allowed() -> None:
    held = held_events(limit=100)
    held.take(A, records(1), 60)
    held.take(B, records(2), 40)
    assert held.wrongs == []
    held.get(got(1))
    held.take(A, records(3), 61)
    assert held.wrongs == ["unbounded: 101 bytes are held, more than 100"]


def test_one_event_alone_may_be_larger_than_what_is_allowed() -> None:
    held = held_events(limit=100)
    held.take(A, records(1), 101)
    assert held.wrongs == []


def test_of_a_record_that_was_read_in_part_one_row_is_left_at_least() -> None:
    held = held_events(may_drain=True)
    held.drain_rows = 2
    held.resume(A, 0, inside=True)
    aggregate = SourceRecord(1, 0, "a", tuple(SubRecord("k", b"") for _ in range(5)), "plain")
    held.take(A, [aggregate], 1)
    for number in (2, 3, 4):
        held.take(A, records(number), 1)
    assert held.wrongs == []
    held.take(A, records(5), 1)
    assert len(held.wrongs) == 1
