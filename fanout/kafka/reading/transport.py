"""The calls that reading from Kafka needs, as a protocol, and what they answer.

Errors pass unchanged, as the `aiokafka.errors.KafkaError` of their code: what they mean is decided
in one table, by the caller. The answers carry record batches as the bytes that came over the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.kafka.partitions import Partition

__all__ = (
    "AbortedTransaction",
    "FetchAnswer",
    "FetchRefused",
    "Fetched",
    "KafkaTransport",
    "OffsetSpec",
    "PartitionFetch",
)


@final
class OffsetSpec(IntEnum):
    """An end of a partition, by the number that ListOffsets has for it (Kafka protocol guide)."""

    EARLIEST = -2
    LATEST = -1


@final
@dataclass(frozen=True, slots=True)
class PartitionFetch:
    """What is wanted of one partition.

    Args:
        offset: The first offset that is wanted.
        max_bytes: About how many bytes; the first batch comes whole, however large it is.
    """

    offset: int
    max_bytes: int


@final
@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """A transaction that was aborted: its records up to its marker are to be left out.

    Args:
        producer_id: Who wrote it.
        first_offset: The offset of its first record in the partition.
    """

    producer_id: int
    first_offset: int


@final
@dataclass(frozen=True, slots=True)
class Fetched:
    """What a broker had of one partition.

    Args:
        high_watermark: The offset after the last record that is replicated.
        last_stable_offset: The offset of the first record of an open transaction, else the high
            watermark; `read_committed` reads up to here.
        log_start_offset: The oldest offset that is left; None where the broker is too old to say.
        aborted: The aborted transactions that touch these batches.
        batches: Record batches, one after the other; the first may begin before the wanted offset,
            and the last may be cut short. They may be a view of an answer to several partitions,
            whose memory is free when the last of these has been decoded.
    """

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int | None
    aborted: Sequence[AbortedTransaction]
    batches: bytes | memoryview


@final
@dataclass(frozen=True, slots=True)
class FetchRefused:
    """What a broker said instead.

    Args:
        error: The error of its code.
    """

    error: Exception


FetchAnswer: TypeAlias = Fetched | FetchRefused


class KafkaTransport(Protocol):
    """Talk to one cluster; a cancelled call leaves no task behind."""

    @property
    def cluster_id(self) -> str:
        """The cluster's own id; where another one answers later, calls raise ServiceError."""

    async def topics(self) -> Mapping[str, Sequence[int] | Exception]:
        """List every topic that we may see, internal ones included, with its partitions' numbers.

        A topic that cannot be described now has its error instead. Who leads which partition is
        learnt anew as well.
        """

    async def describe(self, topics: Sequence[str]) -> Mapping[str, Sequence[int] | Exception]:
        """List the partitions of some topics, or the error that the cluster has for a topic.

        Who leads which partition is learnt anew as well.
        """

    def leader(self, partition: Partition) -> int | None:
        """Return the broker to fetch a partition from, as far as is known; None in an election.

        That is its leader, or a replica near the client that the leader has named: an answer that
        names one has no records, and the next fetch goes there.
        """

    async def offsets(
        self, wanted: Mapping[Partition, OffsetSpec | int]
    ) -> Mapping[Partition, int | None]:
        """Look offsets up at the partitions' leaders.

        Args:
            wanted: An edge, or milliseconds since the Unix epoch for the first record that is not
                older. The latest edge is that of the isolation level.

        Returns:
            The offset of each; None where no record is that young.
        """

    async def committed(
        self, group_id: str, partitions: Sequence[Partition]
    ) -> Mapping[Partition, int | None]:
        """Return the next offset that a group has committed for each; None where there is none."""

    async def commit(
        self, group_id: str, offsets: Mapping[Partition, int]
    ) -> Mapping[Partition, Exception]:
        """Commit next offsets for a group without members; return the partitions that failed."""

    async def fetch(
        self, broker: int, wanted: Mapping[Partition, PartitionFetch], *, max_wait: float
    ) -> Mapping[Partition, FetchAnswer]:
        """Fetch from one broker.

        Args:
            broker: Who leads the partitions.
            wanted: What is wanted of each.
            max_wait: Seconds for which the broker may wait where it has nothing to send.
        """
