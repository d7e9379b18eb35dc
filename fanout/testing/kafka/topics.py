"""Topics of a running broker: make, grow, configure and delete them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from fanout.errors import OptionError, StreamStateError
from fanout.testing.kafka.admin_requests import (
    alter_quotas,
    leaders_by_node,
    reorder_replicas,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from confluent_kafka.admin import TopicMetadata

# Seconds. The broker is on this machine; its disk, which stores each change, may be busy.
_TIMEOUT = 30.0
# What the controller says of brokers that it has not heard of for a session.
_FENCED = "All brokers are currently fenced"


class Topics:
    """Change the topics of a cluster; each method blocks until every node has heard of it.

    Args:
        bootstrap_servers: the addresses of the nodes.
        awake: returns the addresses of the nodes that run.
    """

    def __init__(self, bootstrap_servers: str, awake: Callable[[], Sequence[str]]) -> None:
        options: dict[str, Any] = {
            "bootstrap.servers": bootstrap_servers,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            # The broker is killed on purpose; each call says by itself what went wrong.
            "log_level": 0,
            "error_cb": lambda _: None,
        }
        self._admin = AdminClient(options)
        self._servers = bootstrap_servers
        self._awake = awake

    def are_ready(self, cluster: str, nodes: set[int], timeout: float) -> bool:
        """Ask for so many seconds whether nodes are in sync with each partition that they have.

        What leads a partition may have been chosen and not know of it yet; then it refuses to say
        where the partition ends. Another cluster that answers at an address has taken a node's
        port. A killed node counts as in sync until its session ends, so every node has to answer.
        """
        try:
            metadata = self._admin.list_topics(timeout=timeout)
            if metadata.cluster_id != cluster or not nodes <= metadata.brokers.keys():
                return False
            theirs = {
                TopicPartition(name, number): part
                for name, topic in metadata.topics.items()
                for number, part in topic.partitions.items()
                if nodes & {*part.replicas}
            }
            if any(nodes & {*part.replicas} - {*part.isrs} for part in theirs.values()):
                return False
            probe = NewTopic("fanout-probe", 1, len(nodes))
            made = self._admin.create_topics([probe], validate_only=True, request_timeout=timeout)
            end = OffsetSpec.latest()
            ends = dict.fromkeys(theirs, end)
            led = self._admin.list_offsets(ends, request_timeout=timeout) if ends else {}
            for future in (*made.values(), *led.values()):
                future.result(timeout)
            self.leaders()
        except (KafkaException, StreamStateError, TimeoutError):
            return False
        return True

    def leaders(self) -> list[dict[str, dict[int, int]]]:
        """Return who leads each partition of each topic, as each node that runs has heard."""
        awake = self._awake()
        if len(awake) > 1:
            return asyncio.run(leaders_by_node(awake))
        known = self._known()
        return [
            {
                name: {number: part.leader for number, part in topic.partitions.items()}
                for name, topic in known.items()
            }
        ]

    def move_leaders(self, topics: Collection[str]) -> None:
        """Let the next replica lead each partition; see `KafkaCluster.move_leaders`."""
        leaders = self.leaders()[0]
        if missing := sorted({*topics} - leaders.keys()):
            raise OptionError(f"there is no topic {', '.join(missing)}")
        plan = {
            topic: {n: _rotated(nodes, leaders[topic][n]) for n, nodes in partitions.items()}
            for topic, partitions in self._replicas(topics).items()
        }
        asyncio.run(reorder_replicas(self._servers, plan))
        self._elect({t: {n: first for n, (first, *_) in of.items()} for t, of in plan.items()})

    def set_quotas(self, quotas: Mapping[str, float | None]) -> None:
        """Set the default quotas of clients; see `KafkaCluster.set_quotas`."""
        asyncio.run(alter_quotas(self._servers, quotas))

    def create(
        self, topic: str, partitions: int, configs: Mapping[str, str], replicas: int
    ) -> None:
        """Create a topic; see `KafkaCluster.create_topic`."""
        wanted = NewTopic(topic, partitions, replicas, config=dict(configs))
        self._place(lambda: self._admin.create_topics([wanted]))
        self._await_partitions(topic, partitions)

    def delete(self, topic: str) -> None:
        """Delete a topic; see `KafkaCluster.delete_topic`."""
        self._wait(self._admin.delete_topics([topic]))
        self._await_partitions(topic, 0)

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions; see `KafkaCluster.grow_topic`."""
        self._place(lambda: self._admin.create_partitions([NewPartitions(topic, partitions)]))
        self._await_partitions(topic, partitions)

    def alter(self, topic: str, configs: Mapping[str, str]) -> None:
        """Set configurations; see `KafkaCluster.alter_topic`."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self._wait(self._admin.incremental_alter_configs([resource]))

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete a partition's oldest records; see `KafkaCluster.delete_records`."""
        self._wait(self._admin.delete_records([TopicPartition(topic, partition, before)]))

    def _elect(self, leaders: Mapping[str, Mapping[int, int]]) -> None:
        """Let the preferred replicas lead, and wait until every node has heard that they do."""
        wanted = [TopicPartition(t, number) for t, parts in leaders.items() for number in parts]
        elected = self._admin.elect_leaders(ElectionType.PREFERRED, wanted)
        for error in elected.result(_TIMEOUT).values():
            if error is not None and error.code() != KafkaError.ELECTION_NOT_NEEDED:
                raise OptionError(f"Kafka refused: {error.str()}")
        self._await(
            lambda: all(
                view[topic][number] == leader
                for view in self.leaders()
                for topic, parts in leaders.items()
                for number, leader in parts.items()
            ),
            "the nodes did not hear of their new leaders",
        )

    def _await_partitions(self, topic: str, count: int) -> None:
        # The controller answers before the brokers, which clients ask, have heard of the change.
        self._await(
            lambda: all(
                sum(leader >= 0 for leader in view.get(topic, {}).values()) == count
                for view in self.leaders()
            ),
            f"the broker did not lead {count} partitions of {topic!r}",
        )

    def _replicas(self, topics: Collection[str]) -> dict[str, dict[int, list[int]]]:
        """Return the nodes that have each partition of topics; without names, of all topics."""
        known = self._known()
        return {
            name: {number: part.replicas for number, part in topic.partitions.items()}
            for name, topic in known.items()
            if name in (topics or known)
        }

    def _known(self) -> dict[str, TopicMetadata]:
        try:
            return self._admin.list_topics(timeout=_TIMEOUT).topics
        except KafkaException as error:
            raise StreamStateError(f"no node answered within {_TIMEOUT:.0f} s") from error

    def _await(self, fact: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + _TIMEOUT
        while not fact():
            if time.monotonic() > deadline:
                raise StreamStateError(otherwise)
            time.sleep(0.01)  # a broker does not report that it has heard

    def _place(self, ask: Callable[[], dict[Any, Any]]) -> None:
        """Ask until brokers get partitions again, after their controller missed them for long."""
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                return self._wait(ask())
            except OptionError as error:
                if _FENCED not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)  # the controller counts a broker in again at its next heartbeat

    def _wait(self, futures: dict[Any, Any]) -> None:
        for future in futures.values():
            try:
                future.result(_TIMEOUT)
            except KafkaException as error:
                raise OptionError(f"Kafka refused: {error.args[0].str()}") from error
            except TimeoutError as error:
                raise StreamStateError(
                    f"Kafka did not answer within {_TIMEOUT:.0f} s; was it killed or paused?"
                ) from error


def _rotated(replicas: list[int], leader: int) -> list[int]:
    """Order replicas so that the one after the leader comes first."""
    ordered = sorted(replicas)
    after = ordered.index(leader) + 1 if leader in ordered else 0
    return ordered[after:] + ordered[:after]
