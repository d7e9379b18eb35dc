"""A Kafka cluster as users configure it: its brokers, its security, and the client id."""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Final, final

from fanout.core.option_checks import as_sequence, check_seconds, check_text
from fanout.core.sentence import Option
from fanout.core.user_functions import check_function, drop_unawaited
from fanout.errors import OptionError
from fanout.kafka.security import Security

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PORT = 9092
_LAST_PORT = 65535
_SECRETS: Final = ("password", "key_password", "token", "ssl_context")
# An IPv6 address is in brackets, to tell its colons from the one before the port.
_SERVER = re.compile(
    r"(?:\[(?P<ipv6>[0-9a-fA-F:.%]+)\]|(?P<host>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?"
)


@final
@dataclass(frozen=True, slots=True, order=True)
class Server:
    """The address of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@final
@dataclass(frozen=True, slots=True)
class Cluster:
    """A Kafka cluster, and how to connect to it.

    Args:
        servers: Brokers to begin with, as `"host:port"`, several by commas or as a list; the port
            is 9092 where it is left out.
        security: TLS and SASL. Or a function that returns a `Security`: it is called in a thread
            whenever connections are opened, and it is what Spark's workers need, because a
            `Security` with a secret is neither sent to them nor pickled. A `KafkaShareSource` also
            calls it once when it is made, to check the options of its client.
        client_id: The beginning of the client ids in the brokers' logs, metrics and quotas.
        connect_timeout: The seconds within which a broker must have answered when a source, a sink
            or a command begins. After that first answer, calls are retried as long as before.

    Raises:
        OptionError: If a server, the security, the client id or the timeout is malformed, or a
            server would be used without TLS.
    """

    servers: str | Sequence[str]
    _: KW_ONLY
    # A function is not shown: a partial would show the password that it passes.
    security: Security | Callable[[], Security] = field(default_factory=Security, repr=False)
    client_id: str = "fanout"
    connect_timeout: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "servers", tuple(map(str, parse_servers(self.servers))))
        check_text("client_id", self.client_id, or_none=False)
        check_seconds("connect_timeout", self.connect_timeout)
        if isinstance(self.security, Security):
            for server in self.addresses:
                self.security.check_host(server.host)
        else:
            kind = "a fanout.kafka.Security, or a function that returns one"
            check_function("security", self.security, kind, is_secret=True)

    def __reduce__(self) -> tuple[Callable[[], Cluster], tuple[()]]:
        travels = self.for_workers()
        return partial(
            Cluster, **{one.name: getattr(travels, one.name) for one in fields(self)}
        ), ()

    @property
    def addresses(self) -> tuple[Server, ...]:
        """The addresses of the brokers to begin with."""
        return parse_servers(self.servers)

    def load_security(self) -> Security:
        """Return the security; call the function where it is one. It may block.

        Raises:
            OptionError: The function returns something else, or tries to end the process.
        """
        if isinstance(self.security, Security):
            return self.security
        try:
            security = self.security()
        except (SystemExit, GeneratorExit) as error:
            raise OptionError(f"the function security= raised {type(error).__name__}") from error
        if not isinstance(security, Security):
            drop_unawaited(security)
            raise OptionError(
                f"the function security= must return a fanout.kafka.Security, not "
                f"{type(security).__name__}"
            )
        return security

    def named(self, part: str) -> Cluster:
        """Return the cluster with a client id that says which part of the library connects."""
        return replace(self, client_id=f"{self.client_id}-{part}")

    def for_workers(self) -> Cluster:
        """Return the cluster in a form that can be pickled, for Spark's workers.

        Raises:
            OptionError: The security holds a secret, which is not pickled.
        """
        security = self.security
        if not isinstance(security, Security):
            return self
        if secrets := [name for name in _SECRETS if getattr(security, name) is not None]:
            raise OptionError(
                f"security holds {' and '.join(secrets)}, which is not sent to other processes: "
                f"pass a function that returns it, like security=lambda: Security(..., "
                f"password=os.environ['KAFKA_PASSWORD']), which is called where it is used"
            )
        named = {one.name: getattr(security, one.name) for one in fields(security)}
        return replace(self, security=partial(Security, **named))


def check_cluster(cluster: object) -> None:
    """Check that an option is a Cluster."""
    if not isinstance(cluster, Cluster):
        raise OptionError(
            "cluster must be a fanout.kafka.Cluster, like Cluster('broker:9093', security=...)"
        )


def parse_servers(servers: str | Sequence[str]) -> tuple[Server, ...]:
    """Read the addresses of brokers, each `"host:port"`; the port is 9092 where it is left out."""
    several = servers.split(",") if isinstance(servers, str) else servers
    texts = as_sequence("servers", several, "'host:port', or a list of them")
    if not texts:
        raise OptionError(Option("servers"), " must name at least one broker, as 'host:port'")
    return tuple(map(_parse, texts))


def _parse(text: str) -> Server:
    if not isinstance(text, str):
        raise OptionError(Option("servers"), f" must be strings, not {type(text).__name__}")
    match = _SERVER.fullmatch(text.strip())
    port = _PORT if match is None or match["port"] is None else int(match["port"])
    if match is None or not 0 < port <= _LAST_PORT:
        # It is not quoted: it may hold a password, as a URL does.
        raise OptionError(
            Option("servers"),
            " must be 'host:port' each, without a scheme, a user or a password; an IPv6 address "
            "stands in brackets",
        )
    return Server(match["ipv6"] or match["host"], port)
