"""The real Apache Kafka on several nodes of this machine, and the faults of its nodes."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

from fanout.errors import OptionError, SetupError, StreamStateError
from fanout.testing.kafka.admin_requests import unregister_broker
from fanout.testing.kafka.jars import KAFKA_VERSION, kafka_jars
from fanout.testing.kafka.server_process import KeptServer
from fanout.testing.kafka.settings import (
    check_settings,
    defaults_of,
    java_command,
    lay_out,
    server_properties,
)
from fanout.testing.kafka.topics import Topics
from fanout.testing.ports import check_port, free_ports

if TYPE_CHECKING:
    from collections.abc import Mapping

# A node answers after less than 2 seconds; a busy machine takes several times as long.
_START_TIMEOUT = 90.0

_LISTENERS = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}

_LOG_LINES = 30

# The first share group waits for this topic: the broker makes it when the group asks, and
# asks itself again after 1.5, 3, 6, ... seconds (`PersisterStateManager` of Kafka 4.3).
_SHARE_STATE = "__share_group_state"
_SHARE_STATE_CONFIGS = {"cleanup.policy": "delete", "retention.ms": "-1"}

# How many times other ports are tried after another process took the free ones.
_PORT_ATTEMPTS = 3

# More brokers on one machine are a typing error.
_MOST_NODES = 9


@final
@dataclass(frozen=True, slots=True)
class _Node:
    server: KeptServer
    ports: dict[str, int]


class KafkaCluster:
    """Run a cluster of Kafka nodes, each broker and controller, while the `with` block lasts.

    Each is Apache Kafka itself, in a process of its own on 127.0.0.1 with its data in a temporary
    directory; the nodes are numbered from 1, and node n is in rack `rack-n`. Processes and
    directories are gone when the block ends, and also when this process is killed. The first start
    of a version downloads its jars. Transactions and share groups work, and retention and
    compaction act within seconds. A node takes about 200 MB.

    Topics, the internal ones too, have three replicas and take writes that two have in sync, as
    far as there are as many nodes. A node that dies or hangs is missed after the
    `broker.session.timeout.ms` of Kafka, 9 s, and one that is alone after 30 s. Leaders stay where
    a fault has moved them; see `move_leaders`.

    Every method blocks: where an event loop runs, call it by `asyncio.to_thread`.

    Args:
        nodes: how many nodes there are; a majority of them has to run.
        version: a released version of Apache Kafka, 4.1 or later.
        port: the port on 127.0.0.1 of the listener without security of the first node, the next
            node has the next one; 0 takes free ones.
        settings: more properties of all servers by Kafka's names, such as `message.max.bytes`.
        listeners: more listeners than the one without security, as names with one of Kafka's
            protocols each, such as `{"LOGIN": "SASL_PLAINTEXT"}`; `address` tells where each is.
            What they need, such as `listener.name.login.sasl.enabled.mechanisms`, is in `settings`.
        fast: whether Java compiles for speed what runs often. That takes as much work as a test
            gives to a broker, and pays for a benchmark.

    Raises:
        OptionError: a setting or the name of a listener is one that the cluster decides by itself,
            or there is no such number of nodes.
    """

    def __init__(
        self,
        *,
        nodes: int = 3,
        version: str = KAFKA_VERSION,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        fast: bool = False,
    ) -> None:
        if not 1 <= nodes <= _MOST_NODES:
            raise OptionError(f"nodes is a number from 1 to {_MOST_NODES}, not {nodes}")
        self.version = version
        self._numbers = range(1, nodes + 1)
        self._fast = fast
        self._port = port
        check_settings(settings or {})
        self._settings = defaults_of(nodes) | dict(settings or {})
        self._protocols = dict(listeners or {})
        if self._protocols.keys() & _LISTENERS.keys():
            raise OptionError(f"listeners has {' or '.join(_LISTENERS)}, which is there anyway")
        self._protocols |= _LISTENERS
        self._nodes: dict[int, _Node] = {}
        self._paused: set[int] = set()
        self._registered = False  # a lone node at its controller, also after it was killed
        self._cluster = ""
        self._topics: Topics | None = None

    def __enter__(self) -> Self:
        """Start the nodes and wait until they answer.

        Raises:
            SetupError: there is no Java, the jars cannot be downloaded, a port is taken, or a node
                does not start; the end of its log is in the message.
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the nodes and remove their data; idempotent."""
        nodes, self._nodes, self._topics = self._nodes, {}, None
        self._paused, self._registered = set(), False
        for node in nodes.values():
            node.server.close()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses for a client's `bootstrap.servers`, the same after a restart."""
        return ",".join(self.address("PLAINTEXT", number) for number in self._numbers)

    def address(self, listener: str, node: int = 1) -> str:
        """Tell where one of the `listeners` of a node is, the same after a restart.

        Raises:
            OptionError: there is no such listener or node.
        """
        ports = self._node(node).ports
        if listener not in ports:
            raise OptionError(f"there is no listener {listener!r}; name it in listeners")
        return f"127.0.0.1:{ports[listener]}"

    def process_id(self, node: int = 1) -> int | None:
        """Tell the process id of a node; None while it does not run."""
        return self._node(node).server.pid

    def start(self, *nodes: int) -> None:
        """Start nodes that do not run on their data and ports; without numbers, all of them.

        It waits until the nodes lead or follow each of their partitions in sync. A paused node
        does run.

        Raises:
            SetupError: a node does not start, in the message is the end of its log; or too few
                nodes run for a majority.
        """
        wanted = {number: self._node(number) for number in nodes or self._numbers}
        started = {n: node for n, node in wanted.items() if node.server.pid is None}
        deadline = time.monotonic() + _START_TIMEOUT
        for node in started.values():
            node.server.start()
        # The controller lets a lone broker in when it has forgotten its killed process, or when the
        # session of that ends. Of several nodes, the others shall see what production shows them.
        outlived = self._registered and len(self._numbers) == 1
        self._registered = True
        while started:
            outlived = outlived and not unregister_broker(self.address("CONTROLLER"), 1)
            if self._admin.are_ready(self._cluster, {*started}, timeout=0.1 if outlived else 1.0):
                break
            for node in started.values():
                if node.server.pid is None:
                    raise SetupError(self._why(node, "ended as it started"))
                if time.monotonic() > deadline:
                    raise SetupError(self._why(node, f"did not answer in {_START_TIMEOUT:.0f} s"))

    def stop(self, node: int = 1) -> None:
        """Shut a node down by SIGTERM: it gives its leaders away, and ends.

        A paused node runs on first.
        """
        self.resume(node)
        if self.process_id(node) is not None:
            self._registered = False
        self._node(node).server.terminate()

    def kill(self, node: int = 1) -> None:
        """Kill a node as a crash would, by SIGKILL, and wait until it is gone."""
        self._node(node).server.kill()
        self._paused.discard(node)

    def pause(self, node: int = 1) -> None:
        """Stop a node from running at all, by SIGSTOP: connections stay open and hang."""
        self._node(node).server.pause()
        self._paused.add(node)

    def resume(self, node: int = 1) -> None:
        """Let a paused node run on."""
        self._node(node).server.resume()
        self._paused.discard(node)

    def leaders(self, topic: str) -> dict[int, int]:
        """Tell the node that leads each partition of a topic; -1 where none does.

        Raises:
            StreamStateError: no node answers.
        """
        return self._admin.leaders()[0].get(topic, {})

    def move_leaders(self, *topics: str) -> None:
        """Let another replica lead each partition of topics; without names, of all of them.

        Internal topics count, too: who leads a partition of `__transaction_state`,
        `__consumer_offsets` or `__share_group_state` coordinates transactions or groups.

        Raises:
            OptionError: Kafka refused it, for example because a replica is not in sync.
            StreamStateError: no node answers.
        """
        self._admin.move_leaders(topics)

    def set_quotas(self, **quotas: float | None) -> None:
        """Set the quotas of all clients by Kafka's names; None removes one.

        They are `consumer_byte_rate` and `producer_byte_rate` in bytes per second and broker,
        `request_percentage` of one thread, and `controller_mutation_rate` per second.

        Raises:
            OptionError: Kafka refused it.
        """
        self._admin.set_quotas(quotas)

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        replicas: int | None = None,
    ) -> None:
        """Create a topic.

        Args:
            topic: its name.
            partitions: how many partitions it has.
            configs: Kafka's topic configurations, such as `cleanup.policy`.
            replicas: how many nodes have each partition; None is three, or all if there are fewer.

        Raises:
            OptionError: Kafka refused it, for example because the topic exists.
        """
        count = int(self._settings["default.replication.factor"]) if replicas is None else replicas
        self._admin.create(topic, partitions, configs or {}, count)

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
        ports = self._choose_ports()
        home = kafka_jars(self.version)
        # It imports pyspark, which is the Java that it looks for.
        from fanout.spark.hadoop.session_checks import require_java  # noqa: PLC0415

        options = ["-XX:SharedArchiveFile=libs/classes.jsa"]
        if not self._fast:
            options.append("-XX:TieredStopAtLevel=1")
        command = java_command(str(require_java()), *options, alone=len(self._numbers) == 1)
        self._cluster = secrets.token_urlsafe(16)
        self._nodes = {n: _Node(KeptServer(command), of_node) for n, of_node in ports.items()}
        for number, node in self._nodes.items():
            properties = self._properties(number)
            lay_out(node.server.directory, home, self._cluster, number, properties)
        self.start()
        partitions = int(self._settings["share.coordinator.state.topic.num.partitions"])
        replicas = int(self._settings["share.coordinator.state.topic.replication.factor"])
        self._admin.create(_SHARE_STATE, partitions, _SHARE_STATE_CONFIGS, replicas)

    def _properties(self, number: int) -> str:
        controllers = {n: node.ports["CONTROLLER"] for n, node in self._nodes.items()}
        ports = self._node(number).ports
        return server_properties(number, ports, controllers, self._protocols, self._settings)

    def _choose_ports(self) -> dict[int, dict[str, int]]:
        free = iter(free_ports(len(self._numbers) * len(self._protocols)))
        ports = {n: {name: next(free) for name in self._protocols} for n in self._numbers}
        for index, of_node in enumerate(ports.values()):
            if self._port:
                check_port(self._port + index)
                of_node["PLAINTEXT"] = self._port + index
        return ports

    def _why(self, node: _Node, what: str) -> str:
        sentence = f"Kafka {self.version} from {kafka_jars(self.version)} {what}; its log ends with"
        return "\n".join([sentence, *node.server.log(_LOG_LINES)])

    def _node(self, number: int) -> _Node:
        if not self._nodes:
            kind = type(self).__name__
            raise StreamStateError(f"the {kind} is not running: use it in a with statement")
        if number not in self._nodes:
            raise OptionError(f"there is no node {number}: the last one is {self._numbers[-1]}")
        return self._nodes[number]

    def _awake(self) -> list[str]:
        """Tell the addresses of the nodes that answer."""
        numbers = (number for number in self._numbers if number not in self._paused)
        return [self.address("PLAINTEXT", n) for n in numbers if self.process_id(n) is not None]

    @property
    def _admin(self) -> Topics:
        if self._topics is None:
            self._topics = Topics(self.bootstrap_servers, self._awake)
        return self._topics
