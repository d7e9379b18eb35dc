from __future__ import annotations

import pytest

from fanout.kafka.partitions import Partition
from fanout.kafka.share.dedup import Dedup, RepeatedRecords

P = Partition("orders", 0)
SOME = [(P, 10, 20)]


@pytest.fixture
def claims() -> Dedup:
    made = Dedup(seconds=30)
    made.deduplicates = True
    return made


def test_nothing_is_an_echo_for_who_has_not_asked_for_that() -> None:
    claims = Dedup(seconds=30)
    claims.hold(SOME)
    assert claims.echoes(SOME[0]) == []


def test_what_is_held_waits_until_it_is_safe(claims: Dedup) -> None:
    claims.hold(SOME)
    assert claims.echoes((P, 0, 12)) == [(10, 12, RepeatedRecords.WAIT)]


def test_what_is_just_being_made_safe_is_not_accepted_yet(claims: Dedup) -> None:
    claims.hold(SOME)
    claims.doubt(SOME)
    assert claims.echoes(SOME[0])[-1] == (10, 20, RepeatedRecords.WAIT)
    claims.secure(SOME)
    assert claims.echoes(SOME[0]) == [(10, 20, RepeatedRecords.ACCEPT)]


def test_what_was_given_back_is_delivered_again(claims: Dedup) -> None:
    claims.hold(SOME)
    claims.let_go([(P, 10, 15)])
    assert claims.echoes(SOME[0]) == [(15, 20, RepeatedRecords.WAIT)]


def test_what_is_confirmed_is_not_doubted_but_known_for_as_long_as_a_lock_lasts(
    claims: Dedup,
) -> None:
    claims.hold(SOME)
    claims.doubt(SOME)
    claims.secure(SOME)
    claims.settle(SOME, now=100.0)
    assert not claims.doubts
    for now in (129.0, 131.0):
        claims.settle([(P, 0, 1)], now=now)
        assert claims.echoes(SOME[0]) == [(10, 20, RepeatedRecords.ACCEPT)]
    claims.settle([(P, 1, 2)], now=162.0)
    assert claims.echoes(SOME[0]) == []


def test_doubts_about_what_cannot_come_again_are_given_up(claims: Dedup) -> None:
    claims.doubt(SOME)
    claims.forget_below({P: 15, Partition("other", 0): 99})
    assert list(claims.doubts) == [(P, 15, 20)]
