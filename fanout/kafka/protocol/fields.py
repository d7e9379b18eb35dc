"""How Kafka's protocol lays out partitions and their errors in requests and answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    KafkaError,
    NoError,
    NotCoordinatorForGroupError,
    UnknownError,
    for_code,
)

from fanout.kafka.partitions import Partition
from fanout.kafka.reading.transport import AbortedTransaction, Fetched

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = (
    "by_topic",
    "error_of",
    "fetched",
    "has_moved",
    "numbers_by_topic",
    "partition_rows",
    "raise_for_code",
    "raise_if_refused",
)


_MOVED = {NotCoordinatorForGroupError.errno, GroupCoordinatorNotAvailableError.errno}


def by_topic(
    fields: Mapping[Partition, tuple[Any, ...]],
) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Return the rows of a request, topic by topic: each partition's number, then its fields."""
    topics: dict[str, list[tuple[Any, ...]]] = {}
    for partition, values in fields.items():
        topics.setdefault(partition.topic, []).append((partition.number, *values))
    return list(topics.items())


def numbers_by_topic(partitions: Iterable[Partition]) -> list[tuple[str, list[int]]]:
    """Return the rows of a request that has nothing but the partitions' numbers."""
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition.number)
    return list(topics.items())


def partition_rows(response: Any) -> Iterator[tuple[Any, ...]]:
    """Yield each partition of an answer, and its fields after it."""
    for topic, partitions in response.topics:
        for number, *fields in partitions:
            yield Partition(topic, number), *fields


def error_of(code: int, what: object) -> KafkaError | None:
    """Return the error of a code, None where it says that there is none.

    Args:
        code: The code.
        what: What it is about, for the message.
    """
    if code == NoError.errno:
        return None
    kind = for_code(code)
    # aiokafka 0.14 knows the codes up to 79.
    error: KafkaError = kind(f"{what} (code {code})" if kind is UnknownError else str(what))
    return error


def raise_for_code(code: int, what: object) -> None:
    """Raise the error of a code unless it says that there is none.

    Raises:
        KafkaError: The error.
    """
    error = error_of(code, what)
    if error is not None:
        raise error


def has_moved(response: Any) -> bool:
    """Return whether an answer about a group's offsets says that another coordinates the group."""
    codes = {getattr(response, "error_code", 0), *(row[-1] for row in partition_rows(response))}
    return not codes.isdisjoint(_MOVED)


def fetched(
    high_watermark: int, last_stable_offset: int, *fields: Any
) -> tuple[Fetched, int | None]:
    """Read the fields of a partition that was fetched, of versions 4 to 11 of the answer.

    Returns:
        What was fetched, and the replica that the leader names to be read instead.
    """
    start, aborted, replica, batches = -1, fields[-2], -1, fields[-1]
    match fields:
        case (_, _):  # version 4
            pass
        case (start, _, _):  # since version 5
            pass
        case (start, aborted, replica, _):  # since version 11
            pass
        case _:
            raise AssertionError("aiokafka reads a version of the answer that is not known here")
    answer = Fetched(
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=start if start >= 0 else None,
        aborted=[AbortedTransaction(producer_id, offset) for producer_id, offset in aborted or ()],
        batches=batches or b"",
    )
    return answer, replica if replica >= 0 else None


_TRANSACTIONAL_ID_REFUSED: Final = 53

_GROUP_REFUSED: Final = 30

_TOPIC_REFUSED: Final = 29


def raise_if_refused(
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
    raise_for_code(code, f"grant the principal {missing[code]}" if code in missing else what)
