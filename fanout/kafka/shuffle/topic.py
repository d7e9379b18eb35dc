"""The topic of a shuffle: create it, and check its configuration and number of partitions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Final, final

from aiokafka.errors import (
    KafkaError,
    NotControllerError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from aiokafka.protocol.admin import CreateTopicsRequest, DescribeConfigsRequest

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.option_checks import at_least_one
from fanout.errors import OptionError, ServiceError
from fanout.kafka.protocol.cluster_metadata import fetch_metadata
from fanout.kafka.protocol.connections import CallTimeouts
from fanout.kafka.protocol.error_codes import raise_for_code, raise_if_refused
from fanout.kafka.protocol.first_contact import open_cluster
from fanout.kafka.protocol.retries import with_retries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.kafka.cluster import Cluster
    from fanout.kafka.protocol.connections import Connections
    from fanout.kafka.reading.transport import KafkaTransport

_TOPIC: Final = 2  # the type of the resource in requests about configurations

_CONFIGS: Final = ("cleanup.policy", "retention.ms", "retention.bytes")

_FOR_EVER: Final = -1

_WAITS: Final = Backoff(base=0.02, cap=1.0)

_REQUEST_SECONDS: Final = 30.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleTopic:
    """The requirements on the topic of a shuffle. It is never compacted.

    The number of partitions never changes. Records are kept for `retention` at least, None for
    ever:
    writers and readers may be stopped for that long.
    """

    name: str
    partition_count: int
    retention: timedelta | None
    replication_factor: int

    def __post_init__(self) -> None:
        for name in ("partition_count", "replication_factor"):
            at_least_one(name, getattr(self, name))
        if self.retention is not None and self.retention <= timedelta(0):
            raise OptionError(f"retention={self.retention} must be more than 0, or None")

    @property
    def retention_millis(self) -> int:
        """The value of Kafka's `retention.ms`."""
        if self.retention is None:
            return _FOR_EVER
        return self.retention // timedelta(milliseconds=1)


@final
class _NotThereYetError(KafkaError):  # type: ignore[misc]  # aiokafka is untyped
    """The topic was created, and is not known to every broker yet."""

    retriable = True


async def ensure_topic(cluster: Cluster, topic: ShuffleTopic) -> None:
    """Create a topic if it does not exist, and check its configuration."""
    jitter = FullJitter(_WAITS, Random())  # noqa: S311 - it spreads attempts
    timeouts = CallTimeouts(_REQUEST_SECONDS)
    async with open_cluster(cluster.named("shuffle"), timeouts) as connections:
        doing = f"the topic {topic.name!r} can be neither found nor created"
        replicas = await with_retries(doing, lambda: _find_or_create(connections, topic), jitter)
        check_partition_count(topic.name, len(replicas), topic.partition_count)
        doing = f"the configuration of the topic {topic.name!r} cannot be read"
        configs = await with_retries(doing, lambda: _configs(connections, topic.name), jitter)
    _check(topic, min(replicas), configs)


async def _find_or_create(connections: Connections, topic: ShuffleTopic) -> list[int]:
    """Return the number of replicas of each partition; create the topic if it does not exist."""
    response = await fetch_metadata(connections, [topic.name])
    (found,) = response.topics
    code = found.error_code
    if code == UnknownTopicOrPartitionError.errno:
        await _create(connections, response.controller, topic)
        raise _NotThereYetError(f"{topic.name} was just created")
    raise_if_refused(code, topic.name, topic=topic.name, operation="DESCRIBE")
    return [*found.replicas.values()]


async def _create(connections: Connections, controller: int, topic: ShuffleTopic) -> None:
    # Brokers have a default for each; a default retention.bytes could delete records too early.
    configs = {
        "cleanup.policy": "delete",
        "retention.ms": str(topic.retention_millis),
        "retention.bytes": str(_FOR_EVER),
    }
    wanted: Any = (
        topic.name,
        topic.partition_count,
        topic.replication_factor,
        [],
        [*configs.items()],
    )
    request = CreateTopicsRequest([wanted], round(_REQUEST_SECONDS * 1000), validate_only=False)
    response = await connections.send(controller, request)
    ((_, code, *message),) = response.topic_errors
    if code == NotControllerError.errno:
        raise _NotThereYetError("the controller is another broker now")
    if code != TopicAlreadyExistsError.errno:
        what = message[0] if message and message[0] else topic.name
        raise_if_refused(code, what, topic=topic.name, operation="CREATE")


async def _configs(connections: Connections, name: str) -> Mapping[str, str]:
    response = await connections.send_to_any(DescribeConfigsRequest([(_TOPIC, name, [*_CONFIGS])]))
    ((code, _, _, _, entries),) = response.resources
    raise_for_code(code, f"grant the principal DESCRIBE_CONFIGS on the topic {name}")
    return {key: value for key, value, *_ in entries if value is not None}


def _check(topic: ShuffleTopic, replicas: int, configs: Mapping[str, str]) -> None:
    # Compatible brokers do not report all of them.
    for_ever = str(_FOR_EVER)
    if "compact" in configs.get("cleanup.policy", ""):
        raise ServiceError(
            f"the topic {topic.name!r} is compacted, so that records and watermarks are deleted: "
            f"set its cleanup.policy to delete, or use another topic"
        )
    kept, wanted = int(configs.get("retention.ms", for_ever)), topic.retention_millis
    if kept != _FOR_EVER and (wanted == _FOR_EVER or kept < wanted):
        raise ServiceError(
            f"the topic {topic.name!r} keeps records for {kept} ms (retention.ms), less than "
            f"retention={topic.retention}: raise it, or lower retention"
        )
    if (size := int(configs.get("retention.bytes", for_ever))) != _FOR_EVER:
        raise ServiceError(
            f"the topic {topic.name!r} keeps {size} bytes of a partition (retention.bytes), and "
            f"deletes older records before their time: set it to -1, or use another topic"
        )
    if replicas < topic.replication_factor:
        raise ServiceError(
            f"the topic {topic.name!r} has {replicas} replicas, fewer than replication_factor="
            f"{topic.replication_factor}: add replicas, or lower replication_factor"
        )


def check_partition_count(
    topic: str, found: int, expected: int | None, *, by: str = "partition_count"
) -> None:
    """Check the number of partitions of a topic, which `by` expects; None for any number."""
    if expected not in {None, found}:
        raise ServiceError(
            f"the topic {topic!r} has {found} partitions, and by {by} it has {expected}: "
            f"keys would move to other partitions; write to a new topic"
        )


@final
class PartitionCounts:
    """Check the numbers of partitions of topics; with another number keys would move."""

    def __init__(self, transport: KafkaTransport, expected: int | None) -> None:
        self._transport = transport
        self._expected = expected
        self._found: dict[str, int] = {}
        self._announced: dict[str, int] = {}

    def check(self, found: Mapping[str, int]) -> None:
        """Compare the numbers of partitions of topics with the expected and announced ones."""
        for topic, count in found.items():
            required = {
                "partition_count": self._expected,
                "what its writers announce": self._announced.get(topic),
            }
            for where, number in required.items():
                check_partition_count(topic, count, number, by=where)
        self._found.update(found)

    async def check_announced(self, topic: str, number: int) -> None:
        """Compare the number of partitions that producers announce with the one of the topic."""
        self._announced[topic] = number
        if self._found.get(topic) == number:
            return
        match (await self._transport.describe([topic]))[topic]:
            case Exception() as error:
                raise error
            case numbers:
                self.check({topic: len(numbers)})
