"""The real Apache Kafka, one node on this machine, for as long as a test needs it."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Self

from fanout.errors import OptionError, SetupError, StreamStateError
from fanout.testing.kafka.jars import KAFKA_VERSION, kafka_jars
from fanout.testing.kafka.server_process import KeptServer
from fanout.testing.kafka.settings import (
    DEFAULTS,
    check_settings,
    java_command,
    lay_out,
    server_properties,
)
from fanout.testing.kafka.topics import Topics
from fanout.testing.ports import check_port, free_ports

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

# A broker answers after less than 2 seconds; a busy machine takes several times as long.
_START_TIMEOUT = 90.0

_LISTENERS = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}

_LOG_LINES = 30

# The first share group waits for this topic: the broker makes it when the group asks, and
# asks itself again after 1.5, 3, 6, ... seconds (`PersisterStateManager` of Kafka 4.3).
_SHARE_STATE = "__share_group_state"
_SHARE_STATE_CONFIGS = {"cleanup.policy": "delete", "retention.ms": "-1"}

# How many times other ports are tried after another process took the free ones.
_PORT_ATTEMPTS = 3


class KafkaBroker:
    """Run one Kafka node, broker and controller, while the `with` block lasts.

    It is Apache Kafka itself, in a process of its own, on 127.0.0.1 at `port`, with its data
    in a temporary directory. Process and directory are gone when the block ends, and also when
    this process is killed. The first start of a version downloads its jars; see `kafka_jars`.
    Transactions and share groups work, and retention and compaction act within a second.

    Every method blocks: where an event loop runs, call it by `asyncio.to_thread`.

    Args:
        version: a released version of Apache Kafka, 4.1 or later.
        port: the port on 127.0.0.1 of the listener without security; 0 takes a free one.
        settings: more properties of the server by Kafka's names, such as `message.max.bytes`.
        listeners: more listeners than the one without security, as names with one of Kafka's
            protocols each, such as `{"LOGIN": "SASL_PLAINTEXT"}`; `address` tells where each is.
            What they need, such as `listener.name.login.sasl.enabled.mechanisms`, is in `settings`.
        fast: whether Java compiles for speed what runs often. That takes as much work as a test
            gives to a broker, and pays for a benchmark.

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
        self.version = version
        self._fast = fast
        self._port = port
        self._settings = dict(settings or {})
        check_settings(self._settings)
        self._protocols = dict(listeners or {})
        if self._protocols.keys() & _LISTENERS.keys():
            raise OptionError(f"listeners has {' or '.join(_LISTENERS)}, which is there anyway")
        self._protocols |= _LISTENERS
        self._server: KeptServer | None = None
        self._cluster = ""
        self._ports: dict[str, int] = {}
        self._topics: Topics | None = None

    def __enter__(self) -> Self:
        """Start the broker and wait until it answers.

        Raises:
            SetupError: there is no Java, the jars cannot be downloaded, the port is taken, or the
                broker does not start; the end of its log is in the message.
        """
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                self._open()
            except SetupError as error:
                self.close()
                if "Address already in use" not in str(error) or attempt == _PORT_ATTEMPTS:
                    raise
            except BaseException:
                self.close()
                raise
            else:
                break
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the broker and remove its data; idempotent."""
        server, self._server, self._topics = self._server, None, None
        if server is not None:
            server.close()

    @property
    def bootstrap_servers(self) -> str:
        """The address for a client's `bootstrap.servers`, the same after a restart."""
        return self.address("PLAINTEXT")

    def address(self, listener: str) -> str:
        """Tell where one of the `listeners` is, the same after a restart.

        Raises:
            OptionError: there is no such listener.
        """
        _ = self._running
        if listener not in self._ports:
            raise OptionError(f"there is no listener {listener!r}; name it in listeners")
        return f"127.0.0.1:{self._ports[listener]}"

    @property
    def pid(self) -> int | None:
        """The process id of the broker; None after `kill`."""
        return self._running.pid

    def kill(self) -> None:
        """Kill the broker as a crash would, by SIGKILL, and wait until it is gone."""
        self._running.kill()

    def restart(self) -> None:
        """Start the broker again on the same data and port, and wait until it answers.

        A broker that still runs is killed first.

        Raises:
            SetupError: the broker does not start; the end of its log is in the message.
        """
        self._running.kill()
        self._start()

    def pause(self) -> None:
        """Stop the broker from running at all, by SIGSTOP: connections stay open and hang."""
        self._running.pause()

    def resume(self) -> None:
        """Let a paused broker run on."""
        self._running.resume()

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic.

        Args:
            topic: its name.
            partitions: how many partitions it has.
            configs: Kafka's topic configurations, such as `cleanup.policy`.

        Raises:
            OptionError: Kafka refused it, for example because the topic exists.
        """
        self._admin.create(topic, partitions, configs or {})

    def delete_topic(self, topic: str) -> None:
        """Delete a topic.

        Raises:
            OptionError: Kafka refused it, for example because there is no such topic.
        """
        self._admin.delete(topic)

    def grow_topic(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic until it has as many as `partitions`.

        Raises:
            OptionError: Kafka refused it, for example because the topic has more.
        """
        self._admin.grow(topic, partitions)

    def alter_topic(self, topic: str, configs: Mapping[str, str]) -> None:
        """Set configurations of a topic and leave its others as they are.

        Args:
            topic: its name.
            configs: Kafka's topic configurations, such as `retention.ms`.

        Raises:
            OptionError: Kafka refused it, for example because there is no such configuration.
        """
        self._admin.alter(topic, configs)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the records of a partition whose offset is less than `before`.

        Raises:
            OptionError: Kafka refused it, for example because the partition ends earlier.
        """
        self._admin.delete_records(topic, partition, before)

    def _open(self) -> None:
        check_port(self._port)
        home = kafka_jars(self.version)
        # It imports pyspark, which is the Java that it looks for.
        from fanout.spark.hadoop.session_checks import require_java  # noqa: PLC0415

        options = ["-XX:SharedArchiveFile=libs/classes.jsa"]
        if not self._fast:
            options.append("-XX:TieredStopAtLevel=1")
        self._server = KeptServer(java_command(str(require_java()), *options))
        self._cluster = secrets.token_urlsafe(16)
        self._ports = dict(zip(self._protocols, free_ports(len(self._protocols)), strict=True))
        if self._port:
            self._ports["PLAINTEXT"] = self._port
        properties = server_properties(self._ports, self._protocols, self._settings)
        lay_out(self._server.directory, home, self._cluster, properties)
        self._start()
        partitions = (DEFAULTS | self._settings)["share.coordinator.state.topic.num.partitions"]
        self._admin.create(_SHARE_STATE, int(partitions), _SHARE_STATE_CONFIGS)

    def _start(self) -> None:
        server, admin = self._running, self._admin
        deadline = time.monotonic() + _START_TIMEOUT
        server.start()
        while not admin.is_ready(self._cluster, timeout=1.0):
            if server.pid is None:
                raise SetupError(self._why("ended as it started"))
            if time.monotonic() > deadline:
                raise SetupError(self._why(f"did not answer in {_START_TIMEOUT:.0f} s"))

    def _why(self, what: str) -> str:
        sentence = f"Kafka {self.version} from {kafka_jars(self.version)} {what}; its log ends with"
        return "\n".join([sentence, *self._running.log(_LOG_LINES)])

    @property
    def _running(self) -> KeptServer:
        if self._server is None:
            raise StreamStateError("the KafkaBroker is not running: use it in a with statement")
        return self._server

    @property
    def _admin(self) -> Topics:
        if self._topics is None:
            self._topics = Topics(self.bootstrap_servers)
        return self._topics
