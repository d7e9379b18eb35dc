from __future__ import annotations

import pytest

from fanout.errors import (
    DamagedFrameError,
    MalformedEventError,
    RemoteError,
    SubscribeTimeoutError,
    SubscriptionEndedError,
    SubscriptionSilentError,
    UnconfirmedEndError,
)
from fanout.kinesis import KinesisSource
from tests.provers.tests.simulation.kinesis.oracle.notified_process import (
    DAMAGE,
    SHARD,
    NotifiedProcess,
)
from tests.support.kinesis.client_errors import client_error


def test_each_end_is_told_once_with_what_the_service_did() -> None:
    process = NotifiedProcess()
    refusal = client_error("ThrottlingException", "SubscribeToShard")
    process.ends(refusal, refusal)
    process.ends(
        (RemoteError, "InternalFailureException"), RemoteError("InternalFailureException", "")
    )
    process.ends((SubscriptionEndedError, ""), SubscriptionEndedError("over"))
    process.ends(DAMAGE, DamagedFrameError("checksum"))
    assert process.wrongs == []
    assert process.attempts.reported[SHARD] == 4


@pytest.mark.parametrize(
    "cause",
    [
        RemoteError("ThrottlingException", ""),
        SubscriptionEndedError("over"),
        client_error("InternalFailureException", "SubscribeToShard"),
    ],
    ids=repr,
)
def test_another_cause_than_what_the_service_did_is_wrong(cause: Exception) -> None:
    process = NotifiedProcess()
    process.ends((RemoteError, "InternalFailureException"), cause)
    assert process.wrongs == [f"a wrong cause was reported for {SHARD}"]


def test_a_copy_of_what_a_call_was_refused_with_is_not_its_cause() -> None:
    process = NotifiedProcess()
    process.ends(client_error("ThrottlingException", "a"), client_error("ThrottlingException", "a"))
    assert process.wrongs == [f"a wrong cause was reported for {SHARD}"]


def test_an_end_that_nobody_is_told_of_is_swallowed() -> None:
    process = NotifiedProcess()
    process.attempts.end(process.asks(), DAMAGE, 0.0)
    process.asks()
    assert process.wrongs == ["swallowed"]


def test_an_end_that_is_told_twice_is_wrong() -> None:
    process = NotifiedProcess()
    process.ends((SubscriptionEndedError, ""), SubscriptionEndedError("over"))
    process.reports(SubscriptionEndedError("over"))
    assert process.wrongs == [f"{SHARD} has no subscription that could have ended"]


@pytest.mark.parametrize(("seconds", "wrong"), [(34.9, True), (35.0, False)])
def test_a_service_is_silent_after_35_seconds(seconds: float, *, wrong: bool) -> None:
    process = NotifiedProcess()
    attempt = process.asks()
    process.attempts.answer(attempt, 0.0)
    process.now = seconds
    process.reports(SubscriptionSilentError("nothing came"))
    assert bool(process.wrongs) is wrong


@pytest.mark.parametrize(("seconds", "wrong"), [(59.9, True), (60.0, False)])
def test_a_call_is_not_answered_after_60_seconds(seconds: float, *, wrong: bool) -> None:
    process = NotifiedProcess()
    process.asks()
    process.now = seconds
    process.reports(SubscribeTimeoutError("no answer"))
    assert bool(process.wrongs) is wrong


def test_silence_begins_anew_as_the_reader_asks_for_more() -> None:
    process = NotifiedProcess()
    attempt = process.asks()
    process.attempts.answer(attempt, 0.0)
    attempt.receive(8, 30.0, 0.0, records=True)
    process.now = 40.0
    process.reports(SubscriptionSilentError("nothing came"))
    assert process.wrongs == [f"a wrong cause was reported for {SHARD}"]


def test_a_stream_that_goes_on_after_the_third_damage_at_one_place_has_swallowed_it() -> None:
    process = NotifiedProcess()
    for _ in range(3):
        process.ends(DAMAGE, MalformedEventError("length"))
    assert process.wrongs == ["swallowed"]


def test_damage_at_other_places_or_of_other_kinds_does_not_count() -> None:
    process = NotifiedProcess()
    for number in range(5):
        process.ends(DAMAGE, MalformedEventError("length"), number)
    for _ in range(2):
        process.ends(DAMAGE, MalformedEventError("length"))
        process.ends(DAMAGE, DamagedFrameError("checksum"))
    assert process.wrongs == []


def test_what_came_an_hour_before_is_forgotten() -> None:
    process = NotifiedProcess()
    for _ in range(5):
        process.ends(DAMAGE, MalformedEventError("length"))
        process.now += 3601
    assert process.wrongs == []


def test_damage_that_is_dropped_may_come_for_ever() -> None:
    process = NotifiedProcess(KinesisSource(stream="s", consumer="c", on_bad_frame="gap"))
    for _ in range(9):
        process.ends((DamagedFrameError, ""), DamagedFrameError("checksum"))
    assert process.wrongs == []


def test_half_an_end_may_turn_out_to_be_one() -> None:
    process = NotifiedProcess()
    for _ in range(9):
        process.ends((UnconfirmedEndError, ""), UnconfirmedEndError("half"))
    assert process.wrongs == []
