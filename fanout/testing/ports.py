"""Choose ports of this machine to listen on, or check them."""

from __future__ import annotations

import secrets
import socket

from fanout.core.sentence import Option
from fanout.errors import SetupError

# Systems give outgoing connections and port 0 numbers above this range, so that no process takes a
# broker's port by chance while it restarts.
_PORTS = range(20_000, 32_768)


def check_port(port: int) -> None:
    """Check that a server could listen on a port of 127.0.0.1; 0 is always free."""
    with socket.socket() as probe:
        # As servers bind: a connection of before that still lingers does not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError as error:
            raise SetupError(
                Option("port", port),
                f" cannot be used on 127.0.0.1: {error.strerror}; pass another one, or ",
                Option("port", 0),
                " for a free one",
            ) from error


def free_ports(count: int) -> list[int]:
    """Choose distinct ports on 127.0.0.1 that are free."""
    ports: set[int] = set()
    while len(ports) < count:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe:
            # As the broker binds: a connection of before that still lingers does not matter.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.add(port)
    return list(ports)
