"""The real Apache Kafka, one node on this machine, for as long as a test needs it."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fanout.errors import OptionError, SetupError, StreamStateError
from fanout.testing.kafka import keeper
from fanout.testing.kafka.jars import BOOTSTRAP, KAFKA_VERSION, kafka_jars
from fanout.testing.kafka.settings import (
    JVM_OPTIONS,
    LOGGING,
    check_settings,
    free_ports,
    meta_properties,
    server_properties,
)
from fanout.testing.kafka.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = ("KafkaBroker",)

# A broker answers after some 3 seconds; a busy machine takes several times as long.
_START_TIMEOUT = 90.0

_LISTENERS = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}

# How many times other ports are tried when somebody took those that were free.
_PORT_ATTEMPTS = 3


class KafkaBroker:
    """Run one Kafka node, broker and controller, while the `with` block lasts.

    It is Apache Kafka itself, in a process of its own, at a free port of 127.0.0.1, with its data
    in a temporary directory. Process and directory are gone when the block ends, and also when
    this process is killed. The first start of a version downloads its jars; see `kafka_jars`.
    Transactions and share groups work, and retention and compaction act within a second.

    Every method blocks: where an event loop runs, call it by `asyncio.to_thread`.

    Args:
        version: a released version of Apache Kafka, 4.1 or later.
        settings: more properties of the server by Kafka's names, such as `message.max.bytes`.
        listeners: more listeners than the one without security, as names with one of Kafka's
            protocols each, such as `{"LOGIN": "SASL_PLAINTEXT"}`; `address` tells where each is.
            What they need, such as `listener.name.login.sasl.enabled.mechanisms`, is in `settings`.

    Raises:
        OptionError: a setting or the name of a listener is one that the broker decides by itself.
    """

    def __init__(
        self,
        *,
        version: str = KAFKA_VERSION,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
    ) -> None:
        self.version = version
        self._settings = dict(settings or {})
        check_settings(self._settings)
        self._protocols = dict(listeners or {})
        if self._protocols.keys() & _LISTENERS.keys():
            raise OptionError(f"listeners has {' or '.join(_LISTENERS)}, which is there anyway")
        self._protocols |= _LISTENERS
        self._keeper: subprocess.Popen[str] | None = None
        self._orders = threading.Lock()
        self._directory = Path()
        self._cluster = ""
        self._ports: dict[str, int] = {}
        self._topics: Topics | None = None

    def __enter__(self) -> Self:
        """Start the broker and wait until it answers.

        Raises:
            SetupError: there is no Java, the jars cannot be downloaded, or the broker does not
                start; the end of its log is in the message.
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
        """End the broker and remove its data."""
        self.close()

    def close(self) -> None:
        """End the broker and remove its data; idempotent."""
        process, self._keeper, self._topics = self._keeper, None, None
        if process is not None:
            process.communicate("end\n")

    @property
    def bootstrap_servers(self) -> str:
        """The address for a client's `bootstrap.servers`, the same after a restart."""
        return self.address("PLAINTEXT")

    def address(self, listener: str) -> str:
        """Tell where one of the `listeners` is, the same after a restart.

        Raises:
            OptionError: there is no such listener.
        """
        self._require_open()
        if listener not in self._ports:
            raise OptionError(f"there is no listener {listener!r}; name it in listeners")
        return f"127.0.0.1:{self._ports[listener]}"

    @property
    def pid(self) -> int | None:
        """The process id of the broker; None after `kill`."""
        return self._order("state")

    def kill(self) -> None:
        """Kill the broker as a crash would, by SIGKILL, and wait until it is gone."""
        self._order("kill")

    def restart(self) -> None:
        """Start the broker again on the same data and port, and wait until it answers.

        A broker that still runs is killed first.

        Raises:
            SetupError: the broker does not start; the end of its log is in the message.
        """
        self._order("kill")
        self._start()

    def pause(self) -> None:
        """Stop the broker from running at all, by SIGSTOP: connections stay open and hang."""
        self._order("pause")

    def resume(self) -> None:
        """Let a paused broker run on."""
        self._order("resume")

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

    @property
    def _admin(self) -> Topics:
        self._require_open()
        if self._topics is None:
            self._topics = Topics(self.bootstrap_servers)
        return self._topics

    def _open(self) -> None:
        home = kafka_jars(self.version)
        # It imports pyspark, which `kafka_jars` has found.
        from fanout.spark.session import require_java  # noqa: PLC0415

        command = [str(require_java()), *JVM_OPTIONS, "-cp", f"{home / 'libs'}/*"]
        command += ["kafka.Kafka", "server.properties"]
        # A session of its own: Ctrl-C in a terminal reaches the caller, which then closes this.
        self._keeper = subprocess.Popen(  # noqa: S603 - our own interpreter and file
            [sys.executable, "-IS", keeper.__file__, json.dumps(command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._directory = Path(self._answer()["directory"])
        self._cluster = secrets.token_urlsafe(16)
        self._ports = dict(zip(self._protocols, free_ports(len(self._protocols)), strict=True))
        properties = server_properties(self._ports, self._protocols, self._settings)
        (self._directory / "server.properties").write_text(properties)
        (self._directory / "log4j2.xml").write_text(LOGGING)
        data = self._directory / "data"
        data.mkdir()
        (data / "meta.properties").write_text(meta_properties(self._cluster))
        shutil.copy(home / BOOTSTRAP, data)
        self._start()

    def _start(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        self._order("start")
        while not self._admin.is_ready(self._cluster, timeout=1.0):
            if self._order("state") is None:
                raise SetupError(self._why(f"Kafka {self.version} ended as it started"))
            if time.monotonic() > deadline:
                raise SetupError(
                    self._why(f"Kafka {self.version} did not answer in {_START_TIMEOUT:.0f} s")
                )

    def _why(self, what: str) -> str:
        lines = (self._directory / keeper.LOG_FILE).read_text(errors="replace").splitlines()
        cache = kafka_jars(self.version)
        return "\n".join([f"{what} (its jars are in {cache}); its log ends with", *lines[-30:]])

    def _require_open(self) -> subprocess.Popen[str]:
        if self._keeper is None:
            raise StreamStateError("the KafkaBroker is not running: use it in a with statement")
        return self._keeper

    def _order(self, order: str) -> int | None:
        with self._orders:
            process = self._require_open()
            assert process.stdin is not None
            process.stdin.write(order + "\n")
            process.stdin.flush()
            pid: int | None = self._answer()["pid"]
        return pid

    def _answer(self) -> dict[str, Any]:
        stdout = self._require_open().stdout
        assert stdout is not None
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer
