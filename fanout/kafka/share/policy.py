"""The error table of share groups: the codes of librdkafka by their kind.

The errors of calls that fanout makes itself are judged as for any source of Kafka. A client is made
anew for each attempt, so that an error which is fatal to one client is not so to the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import (
    ConcurrentModificationException,
    IllegalStateException,
    KafkaError,
    KafkaException,
)

from fanout.core.policy import Fatal, Phase, PolicyTable, Retry
from fanout.kafka.reading import policy
from fanout.kafka.reading.policy import ROWS, ErrorKind, Remedy
from fanout.kafka.share.client_tokens import RefusedTokenError
from fanout.kafka.share.group_admin import NO_SHARE_GROUPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.core.policy import Verdict

_MISUSE: Final = (IllegalStateException, ConcurrentModificationException)
_FULL: Final = (
    "the group has as many members as the brokers' group.share.max.size allows; "
    "pass fewer consumers"
)
_CHECK_CLOCKS: Final = "check the clocks, and that a token is valid for minutes"

# A person has to act: at the first attempt it is a mistake in the setup, later it may pass.
_ACCESS: Final[Mapping[int, str]] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant READ and DESCRIBE on the topic to the principal",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "grant READ and DESCRIBE on the group to the principal",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant the principal what the broker's log names",
    KafkaError.SASL_AUTHENTICATION_FAILED: "check the username and the password, or the token",
    KafkaError._AUTHENTICATION: "check the username and the password, or the token",  # noqa: SLF001 - a local code
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
    """Judge an error, with a hint for the user; see `fanout.kafka.reading.policy`."""
    if isinstance(error, RefusedTokenError):
        # The next token may be accepted: one expires, or lives for too short a time to be renewed.
        return Fatal(_CHECK_CLOCKS) if first else Retry(hint=_CHECK_CLOCKS)
    if _code(error) is None and not isinstance(error, _MISUSE):
        verdict = policy.judge(error, first=first)
    else:
        verdict = _TABLE.judge(error, Phase.STREAM, first=first)  # the phase makes no difference
    return Retry() if isinstance(verdict, Remedy) else verdict


def _code(error: Exception) -> KafkaError | None:
    match error:
        case KafkaException(args=(KafkaError() as cause, *_)):
            return cause
        case _:
            return None


def _kind_of(error: Exception) -> ErrorKind:
    cause = _code(error)
    if cause is None:
        return ErrorKind.UNEXPECTED
    if cause.code() in _ACCESS:
        return ErrorKind.ACCESS
    if cause.code() in _REFUSED:
        return ErrorKind.REFUSED
    # Many of the codes that are local to the client pass, and their number grows.
    return ErrorKind.PASSING if cause.retriable() else ErrorKind.UNKNOWN


def _hint_of(error: Exception) -> str:
    cause = _code(error)
    if cause is None:
        return "the client was used in a wrong way; please report it"
    return _ACCESS.get(cause.code(), "") or _REFUSED.get(cause.code(), "")


_TABLE: Final = PolicyTable(ROWS, kind_of=_kind_of, hint_of=_hint_of)
