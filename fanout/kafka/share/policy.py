"""What each error of a member's client means, as a table.

The errors are librdkafka's, by their codes; those of the calls that fanout makes itself are judged
as any source of Kafka does. A client is made anew for each attempt, so that an error which is fatal
to one client is not so to the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import (
    ConcurrentModificationException,
    IllegalStateException,
    KafkaError,
    KafkaException,
)

from fanout.core.policy import Fatal, Pace, Retry
from fanout.kafka import policy
from fanout.kafka.policy import Remedy
from fanout.kafka.share.groups import NO_SHARE_GROUPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.core.policy import Verdict

__all__ = ("judge",)

_REPORT: Final = "an error that fanout does not know; please report it"
_FULL: Final = (
    "the group has as many members as the brokers' group.share.max.size allows: say fewer consumers"
)

# A person has to do something: at first it is a mistake in the setup, later one that may be undone.
_ACCESS: Final[Mapping[int, str]] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant READ and DESCRIBE on the topic to the principal",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "grant READ and DESCRIBE on the group to the principal",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant the principal what the broker's log names",
    KafkaError.SASL_AUTHENTICATION_FAILED: "check the username and the password",
    KafkaError._AUTHENTICATION: "check the username and the password",  # noqa: SLF001 - a local code
    KafkaError._SSL: "check the certificates",  # noqa: SLF001
    KafkaError.GROUP_MAX_SIZE_REACHED: _FULL,
}

_REFUSED: Final[Mapping[int, str]] = {
    KafkaError.UNSUPPORTED_VERSION: NO_SHARE_GROUPS,
    KafkaError.INVALID_CONFIG: "",
    KafkaError.INVALID_GROUP_ID: "",
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: "the group is one of another kind: name a new one",
    KafkaError._INVALID_ARG: "",  # noqa: SLF001
    KafkaError._UNSUPPORTED_FEATURE: NO_SHARE_GROUPS,  # noqa: SLF001
}


def judge(error: Exception, *, first: bool) -> Verdict:
    """Say what an error means, with what a person can do about it.

    Args:
        error: Anything that connecting, listing or a subscription raised.
        first: Whether what was being done has not worked yet in this run of the stream.
    """
    match error:
        case KafkaException(args=(KafkaError() as cause, *_)):
            return _judge(cause, first=first)
        case IllegalStateException() | ConcurrentModificationException():
            return Fatal("the client was not used as it wants to be; please report it")
        case _:
            verdict = policy.judge(error, first=first)
            return Retry() if isinstance(verdict, Remedy) else verdict


def _judge(error: KafkaError, *, first: bool) -> Verdict:
    code = error.code()
    if code in _ACCESS:
        return Fatal(_ACCESS[code]) if first else Retry(Pace.SLOW, _ACCESS[code])
    if code in _REFUSED:
        return Fatal(_REFUSED[code])
    if error.retriable():
        return Retry()
    # Many of the codes that are local to the client pass, and their number grows: about ten minutes
    # of the largest waits tell them apart.
    return Retry(hint=_REPORT, limit=40)
