from __future__ import annotations

import pytest
from aiokafka import errors as kafka
from confluent_kafka import IllegalStateException, KafkaError, KafkaException

from fanout.core.policy import Fatal, Pace, Retry, Verdict
from fanout.errors import MalformedEventError, ServiceError
from fanout.kafka.share.client_tokens import RefusedTokenError
from fanout.kafka.share.policy import judge


def of_client(code: int, *, retriable: bool = False) -> KafkaException:
    return KafkaException(KafkaError(code, "because", False, retriable))  # noqa: FBT003 - its own


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "grant READ and DESCRIBE on the topic"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "grant READ and DESCRIBE on the group"),
        (KafkaError._AUTHENTICATION, "check the username and the password, or the token"),
        (KafkaError.GROUP_MAX_SIZE_REACHED, "pass fewer consumers"),
    ],
)
def test_what_was_never_allowed_is_fatal_and_what_is_not_any_more_is_waited_for(
    code: int, hint: str
) -> None:
    first, later = judge(of_client(code), first=True), judge(of_client(code), first=False)
    assert isinstance(first, Fatal)
    assert isinstance(later, Retry)
    assert later.pace is Pace.SLOW
    assert first.hint.startswith(hint) or hint in first.hint
    assert first.hint == later.hint


@pytest.mark.fault("ShareFetch and ShareAcknowledge")
@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (of_client(KafkaError._TRANSPORT, retriable=True), Retry()),
        (of_client(KafkaError.INVALID_CONFIG), Fatal()),
        (kafka.RequestTimedOutError(), Retry()),
        (kafka.UnknownTopicOrPartitionError(), Retry()),
        (MalformedEventError("a record"), Retry(limit=3)),
        (ServiceError("the topic is gone"), Fatal()),
    ],
)
def test_the_table_says_what_an_error_means(error: Exception, verdict: Verdict) -> None:
    assert judge(error, first=False) == verdict


def test_a_token_that_is_refused_is_an_error_at_first_and_replaced_later() -> None:
    error = RefusedTokenError("the broker refuses the token")
    first, later = judge(error, first=True), judge(error, first=False)
    assert isinstance(first, Fatal)
    assert later == Retry(hint=first.hint)
    assert "token" in first.hint


@pytest.mark.fault("ShareFetch and ShareAcknowledge")
def test_what_nobody_knows_is_tried_for_a_while_and_then_reported() -> None:
    verdict = judge(of_client(KafkaError.UNKNOWN), first=False)
    assert isinstance(verdict, Retry)
    assert (verdict.limit, "please report it" in verdict.hint) == (40, True)
    mistake = judge(IllegalStateException("polled too early"), first=False)
    assert isinstance(mistake, Fatal)
    assert "please report it" in mistake.hint
