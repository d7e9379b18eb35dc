"""Errors of Kafka's protocol that name the permission that is missing."""

from __future__ import annotations

from typing import Final

from fanout.kafka.protocol.layouts import check

__all__ = ("check_permitted",)

_TRANSACTIONAL_ID_REFUSED: Final = 53
_GROUP_REFUSED: Final = 30
_TOPIC_REFUSED: Final = 29


def check_permitted(
    code: int,
    what: str,
    *,
    transactional_id: str = "",
    group: str = "",
    topic: str = "",
    operation: str = "READ",
) -> None:
    """Raise the error of a code unless it says that there is none.

    Which operation a call needs of which resource is in Kafka's documentation, "Operations and
    Resources on Protocols".

    Args:
        code: The code.
        what: What it is about, for the message.
        transactional_id: The transactional id that is used.
        group: The group that is used.
        topic: The topic that is used.
        operation: What is done with the topic.

    Raises:
        KafkaError: The error.
    """
    missing = {
        _TRANSACTIONAL_ID_REFUSED: f"WRITE on the transactional id {transactional_id}",
        _GROUP_REFUSED: f"READ on the group {group}",
        _TOPIC_REFUSED: f"{operation} on the topic {topic}",
    }
    check(code, f"grant the principal {missing[code]}" if code in missing else what)
