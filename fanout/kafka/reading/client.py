"""Make the calls for reading from Kafka, with aiokafka's classes of Kafka's protocol.

The versions of the answers are described in aiokafka's `consumer/fetcher.py`. Brokers before Kafka
0.11 are refused: they have no transactions, and create topics that a client merely describes.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from aiokafka.errors import (
    IncompatibleBrokerVersion,
    KafkaError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
)
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.offset import OffsetRequest

from fanout.kafka.partitions import Partition, by_topic, numbers_by_topic, partition_rows
from fanout.kafka.protocol.cluster_metadata import ClusterMetadata
from fanout.kafka.protocol.connections import Lane
from fanout.kafka.protocol.coordinators import Coordinators, CoordinatorType
from fanout.kafka.protocol.error_codes import check_complete, error_of, raise_for_code
from fanout.kafka.protocol.messages.consumer_groups import (
    ConsumerMembersRequest,
    GroupCommitRequest,
    StoredOffsetsRequest,
    stored_offsets,
)
from fanout.kafka.protocol.messages.fetch import CheckedFetchRequest, diverging_epoch
from fanout.kafka.reading.near_replicas import NearReplicas
from fanout.kafka.reading.offsets import cursor_before, epoch_at, next_offset
from fanout.kafka.reading.transport import (
    AbortedTransaction,
    Fetched,
    FetchRefused,
    LogDivergedError,
    Throttled,
    TopicReplacedError,
    is_replaced,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from fanout.core.positions import Cursor
    from fanout.kafka.protocol.connections import Connections
    from fanout.kafka.reading.consumer_options import ConsumerOptions
    from fanout.kafka.reading.transport import (
        FetchAnswer,
        KafkaTransport,
        OffsetSpec,
        PartitionFetch,
    )

IsolationLevel: TypeAlias = Literal["read_committed", "read_uncommitted"]

# The protocol guide's value for a consumer that is no broker.
_CONSUMER = -1


async def start_client(
    connections: Connections,
    options: ConsumerOptions,
    *,
    client_rack: str = "",
    isolation_level: IsolationLevel = "read_committed",
) -> KafkaTransport:
    """Return the calls for reading from a cluster, after the first of them.

    With a rack, replicas in the same rack are read.

    Raises:
        KafkaError: If no broker answers, or they are older than Kafka 0.11.
    """
    client = _Client(
        connections,
        client_rack=client_rack,
        isolation_level=int(isolation_level == "read_committed"),
        options=options,
    )
    await client.start()
    return client


@final
class _Client:
    """A KafkaTransport over the connections to one cluster."""

    def __init__(
        self,
        connections: Connections,
        *,
        client_rack: str,
        isolation_level: int,
        options: ConsumerOptions,
    ) -> None:
        self._connections = connections
        self._near = NearReplicas(client_rack)
        self._isolation_level = isolation_level
        self._options = options
        self._metadata = ClusterMetadata(connections)
        self._groups = Coordinators(connections, CoordinatorType.GROUP)

    async def start(self) -> None:
        await self._metadata.refresh([])

    @property
    def cluster_id(self) -> str:
        return self._metadata.cluster_id

    @property
    def throttled(self) -> int:
        return self._connections.throttled

    async def topics(self) -> Mapping[str, Sequence[int] | Exception]:
        return await self._metadata.refresh(None)

    async def describe(self, topics: Sequence[str]) -> Mapping[str, Sequence[int] | Exception]:
        return await self._metadata.refresh(topics)

    def leader(self, partition: Partition) -> int | None:
        replica = self._near.of(partition)
        return self._metadata.leader(partition) if replica is None else replica

    def topic_id(self, topic: str) -> str:
        return self._metadata.topic_id(topic)

    async def offsets(
        self, specs: Mapping[Partition, OffsetSpec | int]
    ) -> Mapping[Partition, int | None]:
        leaders = await self._by_leader(specs)
        found: dict[Partition, int | None] = {}
        for leader, partitions in leaders.items():
            topics = by_topic({partition: (specs[partition],) for partition in partitions})
            request = OffsetRequest(_CONSUMER, self._isolation_level, topics)
            try:
                response = await self._connections.send(leader, request)
                for partition, code, _, offset in partition_rows(response.topics):
                    raise_for_code(code, partition)
                    found[partition] = offset if offset >= 0 else None
                check_complete(partitions, found, "a look-up of offsets")
            except KafkaError:
                # The next attempt refreshes the leaders first.
                for partition in partitions:
                    self._metadata.forget_leader(partition)
                raise
        return found

    async def committed(
        self, group_id: str, partitions: Sequence[Partition]
    ) -> Mapping[Partition, Cursor | None]:
        request = StoredOffsetsRequest(group_id, numbers_by_topic(partitions))
        response = await self._groups.send(group_id, request)
        raise_for_code(response.error_code, group_id)
        found: dict[Partition, Cursor | None] = {}
        for partition, offset, epoch, code in stored_offsets(response):
            raise_for_code(code, partition)
            found[partition] = cursor_before(offset, epoch) if offset >= 0 else None
        # A partition that is missing must not count as one without a committed offset.
        check_complete(partitions, found, "a look-up of committed offsets")
        return found

    async def commit(
        self, group_id: str, positions: Mapping[Partition, Cursor]
    ) -> Mapping[Partition, Exception]:
        rows = {p: (next_offset(at), epoch_at(at), "") for p, at in positions.items()}
        request = GroupCommitRequest(group_id, by_topic(rows))
        response = await self._groups.send(group_id, request)
        errors = {p: error_of(code, p) for p, code, *_ in partition_rows(response.topics)}
        check_complete(positions, errors, "a commit")
        return {partition: error for partition, error in errors.items() if error is not None}

    async def has_members(self, group_id: str) -> bool:
        asked = (ConsumerMembersRequest(group_id), DescribeGroupsRequest([group_id]))
        # The first is of the new protocol, the second of the classic one.
        for request, members in zip(asked, (7, 5), strict=True):
            with suppress(IncompatibleBrokerVersion):
                response = await self._groups.send(group_id, request)
                (found,) = response.groups
                if found[0] == 0 and found[members]:
                    return True
        return False

    async def fetch(
        self, broker: int, fetches: Mapping[Partition, PartitionFetch], *, max_wait: float
    ) -> Mapping[Partition, FetchAnswer]:
        refused = {
            each: FetchRefused(TopicReplacedError(f"{each} is of another topic by the same name"))
            for each, one in fetches.items()
            if is_replaced(self, each, one.topic_id)
        }
        if refused:
            fetches = {each: one for each, one in fetches.items() if each not in refused}
            if not fetches:
                return refused
        # `by_topic` and `partition_rows` would take 6 % of the instructions of a fetch.
        topics: dict[str, list[tuple[int, int, int, int]]] = {}
        for each, one in fetches.items():
            row = (each.number, one.offset, one.max_bytes, one.epoch)
            topics.setdefault(each.topic, []).append(row)
        options = self._options
        limits = (round(max_wait * 1000), options.fetch_min_bytes, options.fetch_max_bytes)
        request = CheckedFetchRequest(
            (*limits, self._isolation_level), list(topics.items()), self._near.rack
        )
        try:
            response = await self._connections.send(broker, request, Lane.FETCHES)
            # The answer as a whole has an error code since version 7.
            raise_for_code(getattr(response, "error_code", 0), f"a fetch from broker {broker}")
        except KafkaError:
            self._near.leave(fetches)
            raise
        answers: dict[Partition, FetchAnswer] = {**refused}
        if response.throttle_time_ms > 0:
            # An answer to a fetch beyond a quota has no topics (KIP-219).
            throttled = Throttled(response.throttle_time_ms / 1000)
            answers.update(dict.fromkeys(fetches, throttled))
        for topic, partitions, *_ in response.topics:
            for number, code, *fields in partitions:
                partition = Partition(topic, number)
                answers[partition] = self._answer(broker, partition, code, fields)
        return answers

    def _answer(
        self, broker: int, partition: Partition, code: int, fields: Sequence[Any]
    ) -> FetchAnswer:
        error = error_of(code, partition)
        if error is None and (cut := diverging_epoch(fields[-1])) is not None:
            error = LogDivergedError(f"{partition} has lost the record before its reader", *cut)
        if error is None:
            answer, replica = read_fetched(*fields)
            if replica is not None:
                self._near.use(partition, replica)
            return answer
        self._near.leave([partition])
        if isinstance(error, OffsetOutOfRangeError) and broker != self._metadata.leader(partition):
            # A replica lags behind its leader; only the leader knows whether records are lost.
            error = NotLeaderForPartitionError(f"{partition} has no such offset on broker {broker}")
        return FetchRefused(error)

    async def _by_leader(
        self, partitions: Collection[Partition]
    ) -> Mapping[int, Sequence[Partition]]:
        """Group partitions by their leaders; leaders that are not known are requested once."""
        metadata = self._metadata
        if unknown := {each.topic for each in partitions if metadata.leader(each) is None}:
            await metadata.refresh(unknown)
        leaders: defaultdict[int, list[Partition]] = defaultdict(list)
        for partition in partitions:
            leader = metadata.leader(partition)
            if leader is None:
                raise metadata.error(partition)
            leaders[leader].append(partition)
        return leaders


def read_fetched(
    high_watermark: int, last_stable_offset: int, *fields: Any
) -> tuple[Fetched, int | None]:
    """Read the fields of one partition in an answer of Fetch, versions 4 to 12.

    Also return the replica that the leader names to be read instead; None for none.
    """
    if isinstance(fields[-1], dict):  # tagged fields, since version 12
        fields = fields[:-1]
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
        # Some brokers leave it out where no transaction is open.
        last_stable_offset=last_stable_offset if last_stable_offset >= 0 else high_watermark,
        log_start_offset=start if start >= 0 else None,
        aborted=[AbortedTransaction(producer_id, at) for producer_id, at, *_ in aborted or ()],
        batches=batches or b"",
    )
    return answer, replica if replica >= 0 else None
