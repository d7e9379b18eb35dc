"""The configuration of the broker: one node that is broker and controller, small and quick."""

from __future__ import annotations

import secrets
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("JVM_OPTIONS", "LOGGING", "free_ports", "meta_properties", "server_properties")

# Throughput is best with the collector that has no threads of its own, on machines this small.
JVM_OPTIONS = ("-Xms256m", "-Xmx768m", "-XX:+UseSerialGC", "-Dlog4j2.configurationFile=log4j2.xml")

LOGGING = """\
<Configuration status="ERROR">
  <Appenders>
    <Console name="out"><PatternLayout pattern="%d{ISO8601} %p %m (%c)%n"/></Console>
  </Appenders>
  <Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""

# Systems give outgoing connections and port 0 numbers above this range, so that nobody takes a
# broker's port by chance while it restarts.
_PORTS = range(20_000, 32_768)

_DEFAULTS = {
    "auto.create.topics.enable": "false",
    # One node holds each internal topic; the share coordinator does not start with less said.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    # A test waits for what takes minutes in production.
    "group.initial.rebalance.delay.ms": "0",
    "group.share.record.lock.duration.ms": "1000",
    "group.share.min.record.lock.duration.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "200",
    "log.segment.delete.delay.ms": "200",
    "log.cleaner.backoff.ms": "100",
    # A killed broker is let in again when its session has ended, which takes 9 s by default.
    "broker.session.timeout.ms": "1400",
    "broker.heartbeat.interval.ms": "200",
    # Memory that one node of few topics does not need.
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.cleaner.io.buffer.size": "131072",
    "log.index.size.max.bytes": "1048576",
}


def free_ports(count: int) -> list[int]:
    """Choose distinct ports on 127.0.0.1 that nobody listens at."""
    ports: set[int] = set()
    while len(ports) < count:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.add(port)
    return list(ports)


def server_properties(port: int, controller: int, settings: Mapping[str, str]) -> str:
    """Write `server.properties`, with data below the directory that the broker runs in.

    Args:
        port: where clients connect.
        controller: where the controller listens.
        settings: what the caller wants different, by Kafka's names.

    Returns:
        The text of the file.
    """
    properties = {
        **_DEFAULTS,
        **settings,
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": "data",
    }
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def meta_properties() -> str:
    """Write `meta.properties`, which gives a data directory its cluster."""
    cluster, directory = (secrets.token_urlsafe(16) for _ in range(2))
    return f"version=1\nnode.id=1\ncluster.id={cluster}\ndirectory.id={directory}\n"
