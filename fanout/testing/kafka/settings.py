"""The configuration of nodes that are broker and controller each, small and quick."""

from __future__ import annotations

import secrets
import shutil
from typing import TYPE_CHECKING

from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

BOOTSTRAP = "bootstrap.checkpoint"
PROPERTIES = "server.properties"

_LOGGING = """\
<Configuration status="ERROR">
  <Appenders>
    <Console name="out"><PatternLayout pattern="%d{ISO8601} %p %m (%c)%n"/></Console>
  </Appenders>
  <Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""

_OWN = {
    "process.roles": "broker,controller",
    "log.dirs": "data",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
}

_OF_THE_NODE = {"node.id", "broker.rack", "controller.quorum.voters", "listeners"} | {
    "listener.security.protocol.map"
}

_DEFAULTS = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    # A test waits for what takes minutes in production.
    "group.initial.rebalance.delay.ms": "0",
    "group.share.record.lock.duration.ms": "1000",
    "group.share.min.record.lock.duration.ms": "1000",
    # A member hears of its partitions with its second heartbeat.
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.heartbeat.interval.ms": "200",
    "group.share.min.session.timeout.ms": "1000",
    # A group hands its partitions out once a second otherwise.
    "group.share.assignment.interval.ms": "0",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.assignment.interval.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "200",
    "log.cleaner.backoff.ms": "100",
    # Memory that one node of few topics does not need.
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.cleaner.io.buffer.size": "131072",
    "log.index.size.max.bytes": "1048576",
}

# Nobody takes the place of a lone broker whose machine stands still. A new process of a broker
# tries for a minute to be let in.
_ALONE = {"broker.session.timeout.ms": "30000", "broker.heartbeat.interval.ms": "200"}
_TOGETHER = {
    # Leaders stay where a fault or a test has put them.
    "auto.leader.rebalance.enable": "false",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
# A topic of records and each internal topic.
_REPLICAS = (
    ("default.replication.factor", "min.insync.replicas"),
    ("offsets.topic.replication.factor", None),
    ("transaction.state.log.replication.factor", "transaction.state.log.min.isr"),
    ("share.coordinator.state.topic.replication.factor", "share.coordinator.state.topic.min.isr"),
)


def defaults_of(nodes: int) -> dict[str, str]:
    """Return the properties of a cluster of so many nodes that a caller can set otherwise."""
    replicas = {name: str(min(3, nodes)) for name, _ in _REPLICAS}
    in_sync = {name: str(min(2, nodes)) for _, name in _REPLICAS if name}
    return _DEFAULTS | (_ALONE if nodes == 1 else _TOGETHER) | replicas | in_sync


def check_settings(settings: Mapping[str, str]) -> None:
    """Check that the caller's settings leave alone what the broker decides by itself."""
    own = sorted(settings.keys() & (_OWN.keys() | _OF_THE_NODE))
    if own:
        raise OptionError(f"settings has {', '.join(own)}, which the nodes decide by themselves")


def server_properties(
    node: int,
    ports: Mapping[str, int],
    controllers: Mapping[int, int],
    protocols: Mapping[str, str],
    settings: Mapping[str, str],
) -> str:
    """Write `server.properties` of a node, with data below the directory that it runs in.

    Ports and protocols are by the name of a listener; `CONTROLLER` is one, whose ports at all nodes
    are in `controllers`.
    """
    voters = (f"{number}@127.0.0.1:{port}" for number, port in controllers.items())
    properties = {
        **settings,
        **_OWN,
        "node.id": f"{node}",
        "broker.rack": f"rack-{node}",
        "controller.quorum.voters": ",".join(voters),
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
    }
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def java_command(java: str, *options: str, alone: bool = True) -> list[str]:
    """Compose the command line of a node, to be run in a directory that `lay_out` has filled."""
    heap = ("-Xms256m", "-Xmx768m") if alone else ("-Xms64m", "-Xmx256m")
    memory = (*heap, "-XX:+UseSerialGC")
    logging = "-Dlog4j2.configurationFile=log4j2.xml"
    return [java, *memory, logging, *options, "-cp", "libs/*", "kafka.Kafka", PROPERTIES]


def lay_out(directory: Path, home: Path, cluster: str, node: int, properties: str) -> None:
    """Fill a node's empty directory: jars of `home`, configuration, an empty formatted disk."""
    # The archive of classes holds for the path "libs", wherever the cache is.
    (directory / "libs").symlink_to(home / "libs")
    (directory / PROPERTIES).write_text(properties)
    (directory / "log4j2.xml").write_text(_LOGGING)
    data = directory / "data"
    data.mkdir()
    identity = f"version=1\nnode.id={node}\ncluster.id={cluster}\n"
    (data / "meta.properties").write_text(f"{identity}directory.id={secrets.token_urlsafe(16)}\n")
    shutil.copy(home / BOOTSTRAP, data)
