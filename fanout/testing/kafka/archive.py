"""The classes of a started broker in one file, with which the next one starts in half the time.

Java calls it class data sharing. Java takes no notice of an archive that another Java has written,
or that belongs to other jars, and then starts as slowly as without.
"""

from __future__ import annotations

import shutil
import socket
import time
from typing import TYPE_CHECKING

from fanout.errors import SetupError
from fanout.testing.kafka.server_process import KeptServer
from fanout.testing.kafka.settings import free_ports, java_command, lay_out, server_properties

if TYPE_CHECKING:
    from pathlib import Path

_START_TIMEOUT = 90.0


def archive_classes(java: str, home: Path) -> None:
    """Start a broker and end it, and keep its classes as `libs/classes.jsa`."""
    with KeptServer(java_command(java, "-XX:ArchiveClassesAtExit=classes.jsa")) as server:
        port, controller = free_ports(2)
        properties = server_properties(
            {"PLAINTEXT": port, "CONTROLLER": controller},
            {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"},
            {},
        )
        lay_out(server.directory, home, "fanout-testing-0000000", properties)
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
