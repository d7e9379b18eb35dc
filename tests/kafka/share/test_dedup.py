from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from fanout.core.lending.dedup import Dedup, DuplicateAction
from fanout.kafka.partitions import Partition
from fanout.kafka.share.group_admin import StartOffset
from fanout.kafka.share.naming import OffsetNaming
from fanout.kafka.share.offset_ranges import OffsetRange, RecordSet

P = Partition("orders", 0)
SOME = [(P, 10, 20)]
NOT_OURS = StartOffset("2", 99, 0)


@pytest.fixture
def dedup() -> Dedup[OffsetRange]:
    made = Dedup[OffsetRange](30, RecordSet)
    made.enabled = True
    return made


def test_nothing_is_an_echo_for_who_has_not_asked_for_that() -> None:
    dedup = Dedup[OffsetRange](30, RecordSet)
    dedup.add_delivered(SOME)
    assert dedup.duplicates(SOME[0]) == []


def test_what_is_held_waits_until_it_is_safe(dedup: Dedup[OffsetRange]) -> None:
    dedup.add_delivered(SOME)
    assert dedup.duplicates((P, 0, 12)) == [((P, 10, 12), DuplicateAction.WAIT)]


def test_what_is_just_being_made_safe_is_not_accepted_yet(dedup: Dedup[OffsetRange]) -> None:
    dedup.add_delivered(SOME)
    dedup.add_unconfirmed(SOME)
    assert dedup.duplicates(SOME[0])[-1] == ((P, 10, 20), DuplicateAction.WAIT)
    dedup.mark_stored(SOME)
    assert dedup.duplicates(SOME[0]) == [((P, 10, 20), DuplicateAction.ACCEPT)]


def test_what_was_given_back_is_delivered_again(dedup: Dedup[OffsetRange]) -> None:
    dedup.add_delivered(SOME)
    dedup.forget_delivered([(P, 10, 15)])
    assert dedup.duplicates(SOME[0]) == [((P, 15, 20), DuplicateAction.WAIT)]


def test_what_is_confirmed_is_known_for_as_long_as_a_lock_lasts(
    dedup: Dedup[OffsetRange],
) -> None:
    dedup.add_delivered(SOME)
    dedup.add_unconfirmed(SOME)
    dedup.mark_stored(SOME)
    dedup.mark_confirmed(SOME, now=100.0)
    assert not dedup.unconfirmed
    for now in (129.0, 131.0):
        dedup.mark_confirmed([(P, 0, 1)], now=now)
        assert dedup.duplicates(SOME[0]) == [((P, 10, 20), DuplicateAction.ACCEPT)]
    dedup.mark_confirmed([(P, 1, 2)], now=162.0)
    assert dedup.duplicates(SOME[0]) == []


def test_unconfirmed_deliveries_that_cannot_come_again_are_dropped(
    dedup: Dedup[OffsetRange],
) -> None:
    dedup.add_unconfirmed(SOME)
    naming = OffsetNaming("group", cast("Any", SimpleNamespace(known={"orders": "1"})))
    naming.set_start_offsets({P: StartOffset("1", 15, 0), Partition("other", 0): NOT_OURS})
    naming.forget_gone(dedup)
    assert list(dedup.unconfirmed) == [(P, 15, 20)]
