from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from fanout.core.events import Batch, Split
from fanout.core.lending.stream_lending import StreamLending
from fanout.core.positions import Cursor, Range
from fanout.core.progress import Progress
from fanout.core.statistics import LendingStatistics
from fanout.errors import OptionError, StreamStateError
from tests.support.scripted_source import Log, record_batch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.core.positions import Position

MEMBER = Split("member-0")


@dataclass
class Locks:
    """A service that notes what it is called with."""

    seconds: float = 15.0
    statistics: LendingStatistics = field(default_factory=lambda: LendingStatistics(acquired=3))
    calls: list[tuple[object, ...]] = field(default_factory=list)

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        self.calls.append(("acknowledge", positions))

    def keeps(self, _batch: Batch) -> bool:
        return True

    def begin_wait(self) -> None:
        pass

    def end_wait(self) -> None:
        pass

    def pause(self) -> None:
        self.calls.append(("pause",))

    def resume(self) -> None:
        self.calls.append(("resume",))

    def unconfirmed(self, positions: Mapping[str, Position]) -> str:
        self.calls.append(("unconfirmed", positions))
        return ""

    def remember(self, unconfirmed: str) -> None:
        self.calls.append(("remember", unconfirmed))

    async def release(self, split_id: str, piece: Range) -> None:
        self.calls.append(("release", split_id, piece))

    async def reject(self, split_id: str, piece: Range, rows: Sequence[int], reason: str) -> None:
        self.calls.append(("reject", split_id, piece, rows, reason))


def batch(after: int, until: int) -> Batch:
    records = record_batch(Log(split=MEMBER), range(after + 1, until + 1))
    return Batch(MEMBER, records, Range(Cursor(after), Cursor(until)))


def progress() -> Progress:
    followed = Progress("lending:one", lambda _records, _row: None)
    followed.add(MEMBER, Cursor(0))
    followed.deliver([batch(0, 3)])
    return followed


async def test_a_batch_that_was_delivered_is_released() -> None:
    locks = Locks()
    await StreamLending(locks, progress()).release(batch(0, 3))
    assert locks.calls == [("release", "member-0", Range(Cursor(0), Cursor(3)))]


async def test_rows_of_a_batch_that_was_delivered_are_rejected() -> None:
    locks = Locks()
    await StreamLending(locks, progress()).reject(batch(0, 3), [0, 2], reason="too old")
    assert locks.calls == [("reject", "member-0", Range(Cursor(0), Cursor(3)), [0, 2], "too old")]


@pytest.mark.parametrize("row", [-1, 3])
async def test_a_row_that_the_batch_does_not_have_is_refused(row: int) -> None:
    locks = Locks()
    with pytest.raises(OptionError, match=f"the batch has 3 rows, so none is {row}"):
        await StreamLending(locks, progress()).reject(batch(0, 3), [0, row], reason="bad")
    assert locks.calls == []


async def test_a_batch_that_was_not_delivered_is_refused() -> None:
    locks = Locks()
    lending = StreamLending(locks, progress())
    with pytest.raises(StreamStateError, match="was not delivered by this stream"):
        await lending.release(batch(3, 4))
    with pytest.raises(StreamStateError, match="was not delivered by this stream"):
        await lending.reject(batch(3, 4), [0], reason="bad")
    assert locks.calls == []


def test_the_time_and_the_counters_are_those_of_the_service() -> None:
    lending = StreamLending(Locks(), progress())
    assert (lending.seconds, lending.statistics.acquired) == (15.0, 3)
