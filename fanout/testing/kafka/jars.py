"""Kafka's own jars, resolved once per version and user by the Ivy that pyspark brings."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from typing import TYPE_CHECKING

from fanout.errors import SetupError
from fanout.testing.jars import cache_directory, fill_once, java_and_ivy, progress, retrieve, run
from fanout.testing.kafka.server_process import KeptServer
from fanout.testing.kafka.settings import (
    BOOTSTRAP,
    defaults_of,
    java_command,
    lay_out,
    server_properties,
)
from fanout.testing.ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

KAFKA_VERSION = "4.3.1"
_START_TIMEOUT = 90.0

_IVY = """\
<ivy-module version="2.0">
  <info organisation="fanout" module="broker"/>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{version}" conf="default"/>
    <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="2.25.4" conf="default"/>
  </dependencies>
</ivy-module>
"""

_FORMAT = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:1
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:1
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=data
"""


def kafka_jars(version: str = KAFKA_VERSION) -> Path:
    """Find the directory of a Kafka version in the user's cache, and fill it the first time.

    The cache can be copied to a machine without a network. The directory has the jars in `libs`,
    and the `bootstrap.checkpoint` of a formatted disk. The version is 4.1 or later.
    """
    home = cache_directory("kafka") / version
    return fill_once(home, lambda work: _fill(work, home, version))


def _fill(work: Path, home: Path, version: str) -> Path:
    (work / "server.properties").write_text(_FORMAT)
    with progress(f"Downloading Kafka {version} into {home}, once"):
        retrieve(
            _IVY.format(version=version),
            work,
            "kafka/libs/[artifact]-[revision].[ext]",
            f"Kafka {version} is not to be had: check version and network",
        )
        java, _ = java_and_ivy()
        format_ = [java, "-cp", "kafka/libs/*", "kafka.tools.StorageTool", "format"]
        format_ += ["-t", "fanout-testing-0000000", "-c", "server.properties"]
        format_ += ["--feature", "share.version=1"]
        run(format_, work, f"Kafka {version} does not format a data directory")
        shutil.copy(work / "data" / BOOTSTRAP, work / "kafka")
        _archive_classes(java, work / "kafka")
    return work / "kafka"


def _archive_classes(java: str, home: Path) -> None:
    """Start a broker and end it, and keep its classes as `libs/classes.jsa`."""
    # The next one starts in half the time. Java calls it class data sharing; it takes no notice of
    # an archive that another Java has written, or that belongs to other jars.
    with KeptServer(java_command(java, "-XX:ArchiveClassesAtExit=classes.jsa")) as server:
        port, controller = free_ports(2)
        properties = server_properties(
            1,
            {"PLAINTEXT": port, "CONTROLLER": controller},
            {1: controller},
            {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"},
            defaults_of(1),
        )
        lay_out(server.directory, home, "fanout-testing-0000000", 1, properties)
        server.start()
        deadline = time.monotonic() + _START_TIMEOUT
        while not _listens(port):
            if server.pid is None or time.monotonic() > deadline:
                raise SetupError("\n".join(["Kafka does not start; its log:", *server.log(30)]))
            time.sleep(0.1)  # Kafka does not report that it listens
        server.terminate()
        archive = server.directory / "classes.jsa"
        if not archive.exists():
            raise SetupError("\n".join(["Java archived no classes; its log:", *server.log(30)]))
        shutil.copy(archive, home / "libs")


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def main() -> None:
    """Fill the cache before it is needed; exit code 1 and a sentence if that cannot be done."""
    try:
        kafka_jars()
    except SetupError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
