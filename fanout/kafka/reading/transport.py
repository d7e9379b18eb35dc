"""The calls for reading from Kafka, as a protocol, and their requests and answers.

`fanout.kafka.reading.client` makes these calls to real brokers. Errors pass unchanged, as the
`aiokafka.errors.KafkaError` of their code; the table in `fanout.kafka.reading.policy` decides what
they mean. Answers hold record batches as the bytes that were received.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, final

from aiokafka.errors import OffsetOutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.core.positions import Cursor
    from fanout.kafka.partitions import Partition


@final
class OffsetSpec(IntEnum):
    """An end of a partition, by its number in ListOffsets (Kafka protocol guide)."""

    EARLIEST = -2
    LATEST = -1


@final
class PartitionFetch(NamedTuple):
    """Where a fetch of a partition begins, and its size; the first batch is returned whole.

    `epoch` is the leader epoch of the record before, which finds a log that was cut off; -1 where
    it is not known. `topic_id` is the id of the topic that is read, empty where it is not known:
    the fetch is refused with `TopicReplacedError` where another topic has its name.
    """

    offset: int
    max_bytes: int
    epoch: int = -1
    topic_id: str = ""


@final
@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An aborted transaction; its records from here to its marker must be left out."""

    producer_id: int
    first_offset: int


@final
class Fetched(NamedTuple):
    """The records that a broker returned for one partition.

    Args:
        high_watermark: The offset after the last record that is replicated.
        last_stable_offset: The offset of the first record of an open transaction, else the high
            watermark; `read_committed` reads up to here.
        log_start_offset: The oldest offset that is left; None where an old broker does not report
            it.
        aborted: The aborted transactions that overlap these batches.
        batches: Record batches, one after the other. The first may begin before the requested
            offset, and the last may be cut short. They may be a view of an answer for several
            partitions, whose memory is freed when all of these are decoded.
    """

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int | None
    aborted: Sequence[AbortedTransaction]
    batches: bytes | memoryview


@final
@dataclass(frozen=True, slots=True)
class FetchRefused:
    """The error that a broker returned for one partition."""

    error: Exception


@final
class LogDivergedError(OffsetOutOfRangeError):  # type: ignore[misc]  # aiokafka is untyped
    """The log of a partition has no longer the record before a fetch, or has another one there.

    `epoch` is the last leader epoch of the log that is not later than the record's, and `end` is
    where it ends.
    """

    def __init__(self, what: str, epoch: int, end: int) -> None:
        super().__init__(what)
        self.epoch = epoch
        self.end = end


@final
class TopicReplacedError(OffsetOutOfRangeError):  # type: ignore[misc]  # aiokafka is untyped
    """The topic of a partition was deleted, and another one has its name (KIP-516)."""


@final
@dataclass(frozen=True, slots=True)
class Throttled:
    """No records because of a quota, and the seconds in which no other fetch is accepted."""

    seconds: float


FetchAnswer: TypeAlias = Fetched | FetchRefused | Throttled


class KafkaTransport(Protocol):
    """Make calls to one cluster; a cancelled call leaves no task behind."""

    @property
    def cluster_id(self) -> str:
        """The id of the cluster; if a later answer has another id, the call raises ServiceError."""

    @property
    def throttled(self) -> int:
        """How many answers came by which brokers slow this client down, for a quota."""

    async def topics(self) -> Mapping[str, Sequence[int] | Exception]:
        """List all visible topics, internal ones too, and refresh their partitions' leaders.

        A topic that cannot be described now has its error instead of the numbers of its partitions.
        """

    async def describe(self, topics: Sequence[str]) -> Mapping[str, Sequence[int] | Exception]:
        """List the partitions of some topics, or the error of a topic, and refresh the leaders."""

    def leader(self, partition: Partition) -> int | None:
        """Return the broker from which to fetch a partition; None where it is not known.

        That is the leader, or a replica near the client that the leader has named: an answer that
        names a replica has no records, and the next fetch goes to the replica.
        """

    def topic_id(self, topic: str) -> str:
        """Return the id of the topic that has a name, as it was last told; empty for none."""

    async def offsets(
        self, specs: Mapping[Partition, OffsetSpec | int]
    ) -> Mapping[Partition, int | None]:
        """Look up, at each partition's leader, one of its ends or the first record since a time.

        A time is in milliseconds since the Unix epoch; None answers it where all records are older.
        The latest end depends on the isolation level.
        """

    async def committed(
        self, group_id: str, partitions: Sequence[Partition]
    ) -> Mapping[Partition, Cursor | None]:
        """Return the position that a group has committed for each partition; None for none.

        It has the leader epoch of the record before the offset where that was committed with it.
        """

    async def commit(
        self, group_id: str, positions: Mapping[Partition, Cursor]
    ) -> Mapping[Partition, Exception]:
        """Commit the offsets behind positions, with the leader epochs, for a group without members.

        Return the errors of those that failed.
        """

    async def has_members(self, group_id: str) -> bool:
        """Return whether a group has members, who alone may commit then; False if unknown."""

    async def fetch(
        self, broker: int, fetches: Mapping[Partition, PartitionFetch], *, max_wait: float
    ) -> Mapping[Partition, FetchAnswer]:
        """Fetch from one broker, which may wait `max_wait` seconds while it has no records."""


def is_replaced(transport: KafkaTransport, partition: Partition, topic_id: str) -> bool:
    """Return whether another topic has the name of the one that had this id, if any."""
    now = transport.topic_id(partition.topic)
    return bool(topic_id and now) and topic_id != now
