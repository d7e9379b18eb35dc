"""Topics of a running broker: make, grow, configure and delete them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, TopicPartition
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

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# The broker is on this machine: who does not answer in this many seconds does not run.
_TIMEOUT = 15.0
# What the controller says of a broker that it has not heard of for a session.
_FENCED = "All brokers are currently fenced"


class Topics:
    """Change the topics of one broker; each method blocks until the broker has done it."""

    def __init__(self, bootstrap_servers: str) -> None:
        options: dict[str, Any] = {
            "bootstrap.servers": bootstrap_servers,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            # The broker is killed on purpose; each call says by itself what went wrong.
            "log_level": 0,
            "error_cb": lambda _: None,
        }
        self._admin = AdminClient(options)

    def is_ready(self, cluster: str, timeout: float) -> bool:
        """Ask for so many seconds whether every partition is led, and a topic could be made.

        What leads a partition may have been chosen and not know of it yet; then it refuses to say
        where the partition ends. Another cluster that answers at the address has taken the broker's
        port.
        """
        try:
            metadata = self._admin.list_topics(timeout=timeout)
            probe = NewTopic("fanout-probe", 1, 1)
            made = self._admin.create_topics([probe], validate_only=True, request_timeout=timeout)
            end = OffsetSpec.latest()  # type: ignore[no-untyped-call]
            ends = {
                TopicPartition(name, number): end
                for name, topic in metadata.topics.items()
                for number in topic.partitions
            }
            led = self._admin.list_offsets(ends, request_timeout=timeout) if ends else {}
            for future in (*made.values(), *led.values()):
                future.result(timeout)
        except (KafkaException, TimeoutError):
            return False
        return metadata.cluster_id == cluster

    def create(self, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic; see `KafkaBroker.create_topic`."""
        wanted = NewTopic(topic, partitions, 1, config=dict(configs))
        self._place(lambda: self._admin.create_topics([wanted]))
        self._await_partitions(topic, partitions)

    def delete(self, topic: str) -> None:
        """Delete a topic; see `KafkaBroker.delete_topic`."""
        self._wait(self._admin.delete_topics([topic]))
        self._await_partitions(topic, 0)

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions; see `KafkaBroker.grow_topic`."""
        self._place(lambda: self._admin.create_partitions([NewPartitions(topic, partitions)]))
        self._await_partitions(topic, partitions)

    def alter(self, topic: str, configs: Mapping[str, str]) -> None:
        """Set configurations; see `KafkaBroker.alter_topic`."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self._wait(self._admin.incremental_alter_configs([resource]))

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete a partition's oldest records; see `KafkaBroker.delete_records`."""
        self._wait(self._admin.delete_records([TopicPartition(topic, partition, before)]))

    def _await_partitions(self, topic: str, count: int) -> None:
        # The controller answers before the broker, which clients ask, has heard of the change.
        deadline = time.monotonic() + _TIMEOUT
        while self._led(topic) != count:
            if time.monotonic() > deadline:
                raise StreamStateError(f"the broker did not lead {count} partitions of {topic!r}")
            time.sleep(0.01)  # a broker does not report that it has heard

    def _led(self, topic: str) -> int:
        """Count the partitions of a topic that have a leader."""
        partitions = self._admin.list_topics(topic, timeout=_TIMEOUT).topics[topic].partitions
        return sum(partition.leader >= 0 for partition in partitions.values())

    def _place(self, ask: Callable[[], dict[Any, Any]]) -> None:
        """Ask until the broker gets partitions again, after its controller missed it for long."""
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                return self._wait(ask())
            except OptionError as error:
                if _FENCED not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)  # the controller counts the broker in again at its next heartbeat

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
