"""Check that a port of this machine can be listened on."""

from __future__ import annotations

import socket

from fanout.core.sentence import Option
from fanout.errors import SetupError


def check_port(port: int) -> None:
    """Check that a server could listen on a port of 127.0.0.1.

    Args:
        port: the port; 0 is always free.

    Raises:
        SetupError: it cannot: the port is taken, or needs more rights.
    """
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
