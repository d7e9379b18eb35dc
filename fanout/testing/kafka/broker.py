"""The real Apache Kafka, one node on this machine, for as long as a test needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout.testing.kafka.cluster import KafkaCluster
from fanout.testing.kafka.jars import KAFKA_VERSION
from fanout.testing.kafka.settings import PROPERTIES, check_settings

if TYPE_CHECKING:
    from collections.abc import Mapping


class KafkaBroker(KafkaCluster):
    """Run one Kafka node, broker and controller, while the `with` block lasts.

    It is a `KafkaCluster` of one node, in which each topic has one replica. The node goes on
    leading its partitions after it stood still for less than half a minute, and is let in again at
    once after `kill`. Transactions and share groups work, and retention and compaction act within
    seconds.

    Every method blocks: where an event loop runs, call it by `asyncio.to_thread`.

    Args:
        version: a released version of Apache Kafka, 4.1 or later.
        port: the port on 127.0.0.1 of the listener without security; 0 takes a free one.
        settings: more properties of the server by Kafka's names, such as `message.max.bytes`.
        listeners: more listeners than the one without security, as `KafkaCluster` takes them.
        fast: whether Java compiles for speed, which pays for a benchmark.

    Raises:
        OptionError: a setting or the name of a listener is one that the broker decides by itself.
    """

    def __init__(
        self,
        *,
        version: str = KAFKA_VERSION,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        fast: bool = False,
    ) -> None:
        super().__init__(
            nodes=1, version=version, port=port, settings=settings, listeners=listeners, fast=fast
        )

    @property
    def pid(self) -> int | None:
        """The process id of the broker; None after `kill`."""
        return self.process_id()

    def restart(self, settings: Mapping[str, str] | None = None) -> None:
        """Start the broker again on the same data and port, and wait until it answers.

        A broker that still runs is killed first.

        Args:
            settings: properties of the server that change with this start.

        Raises:
            OptionError: a setting is one that the broker decides by itself.
            SetupError: the broker does not start; the end of its log is in the message.
        """
        check_settings(settings or {})
        self.kill()
        self._settings |= settings or {}
        self._node(1).server.directory.joinpath(PROPERTIES).write_text(self._properties(1))
        self.start()
