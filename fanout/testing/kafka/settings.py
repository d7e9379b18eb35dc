"""The configuration of the broker: one node that is broker and controller, small and quick."""

from __future__ import annotations

import secrets
import shutil
from typing import TYPE_CHECKING

from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

BOOTSTRAP = "bootstrap.checkpoint"

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
    "node.id": "1",
    "log.dirs": "data",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
}

_OF_THE_PORTS = {"controller.quorum.voters", "listeners", "listener.security.protocol.map"}

DEFAULTS = {
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
    # A member hears of its partitions with its second heartbeat.
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.heartbeat.interval.ms": "200",
    "group.share.min.session.timeout.ms": "1000",
    # A group hands its partitions out once a second otherwise.
    "group.share.assignment.interval.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "200",
    "log.segment.delete.delay.ms": "200",
    "log.cleaner.backoff.ms": "100",
    # A killed broker is let in again when its session has ended, which takes 9 s by default.
    "broker.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "200",
    # Memory that one node of few topics does not need.
    "log.cleaner.dedupe.buffer.size": "2097152",
    "log.cleaner.io.buffer.size": "131072",
    "log.index.size.max.bytes": "1048576",
}


def check_settings(settings: Mapping[str, str]) -> None:
    """Check that the caller's settings leave alone what the broker decides by itself."""
    own = sorted(settings.keys() & (_OWN.keys() | _OF_THE_PORTS))
    if own:
        raise OptionError(f"settings has {', '.join(own)}, which the KafkaBroker decides by itself")


def server_properties(
    ports: Mapping[str, int], protocols: Mapping[str, str], settings: Mapping[str, str]
) -> str:
    """Write `server.properties`, with data below the directory that the broker runs in.

    Ports and protocols are by the name of a listener; `CONTROLLER` is one.
    """
    properties = {
        **DEFAULTS,
        **settings,
        **_OWN,
        "controller.quorum.voters": f"1@127.0.0.1:{ports['CONTROLLER']}",
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
    }
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def java_command(java: str, *options: str) -> list[str]:
    """Compose the command line of a broker, to be run in a directory that `lay_out` has filled."""
    memory = ("-Xms256m", "-Xmx768m", "-XX:+UseSerialGC")
    logging = "-Dlog4j2.configurationFile=log4j2.xml"
    return [java, *memory, logging, *options, "-cp", "libs/*", "kafka.Kafka", "server.properties"]


def lay_out(directory: Path, home: Path, cluster: str, properties: str) -> None:
    """Fill a broker's empty directory: jars of `home`, configuration, an empty formatted disk."""
    # The archive of classes holds for the path "libs", wherever the cache is.
    (directory / "libs").symlink_to(home / "libs")
    (directory / "server.properties").write_text(properties)
    (directory / "log4j2.xml").write_text(_LOGGING)
    data = directory / "data"
    data.mkdir()
    identity = f"version=1\nnode.id=1\ncluster.id={cluster}\n"
    (data / "meta.properties").write_text(f"{identity}directory.id={secrets.token_urlsafe(16)}\n")
    shutil.copy(home / BOOTSTRAP, data)
