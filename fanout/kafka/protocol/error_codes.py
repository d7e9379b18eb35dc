"""Turn the error codes of Kafka's answers into aiokafka's errors.

The meaning of an error is decided elsewhere: for reading in `fanout.kafka.policy`, for writing in
`fanout.kafka.writing.policy`.
"""

from __future__ import annotations

from typing import Final

from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    KafkaError,
    NoError,
    NotCoordinatorForGroupError,
    UnknownError,
    for_code,
)

MOVED_COORDINATOR: Final = frozenset(
    {GroupCoordinatorNotAvailableError.errno, NotCoordinatorForGroupError.errno}
)
"""The codes of a broker that does not coordinate the group or transactional id any more."""

_TRANSACTIONAL_ID_REFUSED: Final = 53
_GROUP_REFUSED: Final = 30
_TOPIC_REFUSED: Final = 29


def error_of(code: int, what: object) -> KafkaError | None:
    """Return the error of a code; None for the code of success.

    Args:
        code: The code.
        what: The subject of the call, for the message.
    """
    if code == NoError.errno:
        return None
    kind = for_code(code)
    # aiokafka 0.14 knows the codes up to 79.
    error: KafkaError = kind(f"{what} (code {code})" if kind is UnknownError else str(what))
    return error


def raise_for_code(code: int, what: object) -> None:
    """Raise the error of a code, except for the code of success.

    Args:
        code: The code.
        what: The subject of the call, for the message.

    Raises:
        KafkaError: The error.
    """
    error = error_of(code, what)
    if error is not None:
        raise error


def raise_if_refused(
    code: int,
    what: str,
    *,
    transactional_id: str = "",
    group: str = "",
    topic: str = "",
    operation: str = "READ",
) -> None:
    """Raise the error of a code, with the missing permission where that is the reason.

    Which operation a call needs on which resource is in Kafka's documentation, "Operations and
    Resources on Protocols".

    Args:
        code: The code.
        what: The subject of the call, for the message.
        transactional_id: The transactional id that the call uses.
        group: The group that the call uses.
        topic: The topic that the call uses.
        operation: The operation on the topic.

    Raises:
        KafkaError: The error.
    """
    missing = {
        _TRANSACTIONAL_ID_REFUSED: f"WRITE on the transactional id {transactional_id}",
        _GROUP_REFUSED: f"READ on the group {group}",
        _TOPIC_REFUSED: f"{operation} on the topic {topic}",
    }
    raise_for_code(code, f"grant the principal {missing[code]}" if code in missing else what)
