from __future__ import annotations

from fanout.errors import (
    MalformedEventError,
    PositionError,
    RemoteError,
    ServiceError,
    SplitFailedError,
    SubscriptionEndedError,
)
from tests.provers.simulation.kinesis.faults import UNKNOWN_ERROR
from tests.provers.tests.simulation.kinesis.oracle.notified_process import (
    DAMAGE,
    SHARD,
    NotifiedProcess,
)
from tests.support.kinesis.client_errors import client_error

THREE = "length (the same error came 3 times at one position)"


def test_a_stream_fails_of_the_third_damage_and_says_so() -> None:
    process = NotifiedProcess()
    for _ in range(2):
        process.ends(DAMAGE, MalformedEventError("length"))
    assert process.fails(DAMAGE, MalformedEventError("length"), THREE) == ""


def test_a_stream_that_fails_of_the_second_damage_fails_for_nothing() -> None:
    process = NotifiedProcess()
    process.ends(DAMAGE, MalformedEventError("length"))
    assert process.fails(DAMAGE, MalformedEventError("length"), THREE) == "failed for nothing"


def test_a_failure_has_to_name_what_happened_and_how_often() -> None:
    process = NotifiedProcess()
    for _ in range(2):
        process.ends(DAMAGE, MalformedEventError("length"))
    assert process.fails(DAMAGE, MalformedEventError("length"), "oops") == "failed for nothing"


def test_a_failure_has_to_be_of_what_the_service_did() -> None:
    process = NotifiedProcess()
    for _ in range(2):
        process.ends(DAMAGE, MalformedEventError("length"))
    assert process.fails(DAMAGE, RemoteError(UNKNOWN_ERROR, ""), THREE) == "failed for nothing"


def test_a_failure_has_to_be_of_the_very_error_that_the_service_raised() -> None:
    process = NotifiedProcess()
    refusals = [client_error(UNKNOWN_ERROR, "SubscribeToShard") for _ in range(41)]
    for refusal in refusals[:39]:
        process.ends(refusal, refusal)
    text = "it (the same error came 40 times at one position; please report it)"
    assert process.fails(refusals[39], refusals[40], text) == "failed for nothing"


def test_what_passes_is_no_reason_to_fail() -> None:
    process = NotifiedProcess()
    for _ in range(50):
        process.ends((SubscriptionEndedError, ""), SubscriptionEndedError("over"))
    ended = SubscriptionEndedError("over")
    text = "over (the same error came 51 times at one position)"
    assert process.fails((SubscriptionEndedError, ""), ended, text) == "failed for nothing"


def test_what_nobody_knows_is_fatal_the_fortieth_time() -> None:
    process = NotifiedProcess()
    refusal = client_error(UNKNOWN_ERROR, "SubscribeToShard")
    for _ in range(39):
        process.ends((type(refusal), UNKNOWN_ERROR), refusal)
    assert process.wrongs == []
    text = "it (the same error came 40 times at one position; please report it)"
    assert process.fails((type(refusal), UNKNOWN_ERROR), refusal, text) == ""
    process.reports(refusal)
    assert process.wrongs == ["swallowed"]


def test_a_stream_that_is_gone_is_called_gone() -> None:
    process = NotifiedProcess()
    missing = client_error("ResourceNotFoundException", "ListShards")
    for text, expected in (
        (f"{SHARD} cannot go on: the stream 's' is gone: it was deleted", ""),
        (f"{SHARD} cannot go on: oops", "failed for nothing"),
    ):
        failure = SplitFailedError(text)
        failure.__cause__ = missing
        assert process.judged(failure, gone=True) == expected
        assert process.judged(failure, gone=False) == "failed for nothing"


def test_a_stream_that_cannot_be_opened_has_a_refused_call_as_its_cause() -> None:
    process = NotifiedProcess()
    process.run.opened = False
    refusal = client_error("AccessDeniedException", "ListShards")
    failure = ServiceError("the splits cannot be listed")
    assert process.judged(failure) == "failed for nothing"
    failure.__cause__ = refusal
    assert process.judged(failure) == "failed for nothing"
    process.run.refusals.append(refusal)
    assert process.judged(failure) == ""
    process.run.opened = True
    assert process.judged(failure) == "failed for nothing"


def test_a_stream_that_was_replaced_refuses_the_positions_of_the_one_before() -> None:
    process = NotifiedProcess()
    process.run.opened = False
    failure = PositionError("the stored positions belong to one stream, not to another")
    assert process.judged(failure, gone=True) == ""
    assert process.judged(failure, gone=False) == "failed for nothing"


def test_a_consumer_that_nobody_answers_about_is_waited_for_and_that_is_said() -> None:
    process = NotifiedProcess()
    process.run.opened = False
    silent = ServiceError("it did not become ACTIVE within 60 s (the service did not answer)")
    assert process.judged(silent) == "failed for nothing"
    process.run.hung = 1
    assert process.judged(silent) == ""
    wordless = ServiceError("it did not become ACTIVE within 60 s (None)")
    assert process.judged(wordless) == "failed for nothing"
    wordless.__cause__ = client_error("LimitExceededException", "RegisterStreamConsumer")
    assert process.judged(wordless) == ""
