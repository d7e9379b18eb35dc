"""The addresses of Kafka brokers, as users write them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("Server", "parse_servers")

_PORT = 9092
_LAST_PORT = 65535
# An IPv6 address stands in brackets, because its colons would hide that of the port.
_SERVER = re.compile(
    r"(?:\[(?P<ipv6>[0-9a-fA-F:.%]+)\]|(?P<host>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?"
)


@final
@dataclass(frozen=True, slots=True, order=True)
class Server:
    """Where a broker listens.

    Args:
        host: Its name or address.
        port: Its port.
    """

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_servers(servers: str | Sequence[str]) -> tuple[Server, ...]:
    """Read bootstrap servers.

    Args:
        servers: `"host:port"` of each, as a sequence or in one string with commas between; the
            port is 9092 where it is left out.

    Raises:
        OptionError: There is none, or one is no such address.
    """
    texts = servers.split(",") if isinstance(servers, str) else servers
    if not texts:
        raise OptionError("bootstrap_servers must name at least one broker, as 'host:port'")
    return tuple(map(_parse, texts))


def _parse(text: str) -> Server:
    if not isinstance(text, str):
        raise OptionError(f"bootstrap_servers must be strings, not {type(text).__name__}")
    match = _SERVER.fullmatch(text.strip())
    port = _PORT if match is None or match["port"] is None else int(match["port"])
    if match is None or not 0 < port <= _LAST_PORT:
        # It is not quoted: somebody may have written a password into it, as in a URL.
        raise OptionError(
            "bootstrap_servers must be 'host:port' each, without a scheme, a user or a password; "
            "an IPv6 address stands in brackets"
        )
    return Server(match["ipv6"] or match["host"], port)
