"""What members share: an embedded stream with a table, and a topic of three nodes; their faults."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import urlsplit

import boto3

from fanout.kafka import Cluster, Security
from fanout.kafka.protocol.connections import CallTimeouts, open_connections
from fanout.kafka.protocol.messages.share_groups import AlterGroupRequest
from fanout.testing import KinesisProcess, KinesisRules
from fanout.testing.kafka.cluster import KafkaCluster
from fanout.testing.kinesis.credentials import REGION
from tests.provers.cluster.records import Load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from random import Random

__all__ = ("KafkaService", "KinesisService", "Service")

_TICK: Final = 0.5
# Longer than the failover time, and than the broker's session.
_DYNAMODB_AWAY: Final = 60.0
_BROKER_AWAY: Final = 12.0


class Service(ABC):
    """A stream to share, and what puts records into it.

    Args:
        random: What faults are drawn from.
        failover: Seconds after which a member that is not heard of loses its splits.
    """

    def __init__(self, random: Random, failover: float) -> None:
        self.random = random
        self.failover = failover

    @property
    @abstractmethod
    def put(self) -> Mapping[str, int]:
        """How many records of each key are confirmed."""

    @property
    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """What a member needs to know."""

    @property
    @abstractmethod
    def faults(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """The faults of the service; each returns when it is over."""

    @abstractmethod
    async def load(self, until: asyncio.Event) -> None:
        """Put records until the event."""


@final
class _Relay:
    """A port in front of another one, which can be away."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def open(self) -> None:
        """Take connections."""
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Close all connections and take no more."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            there, back = await asyncio.open_connection(*self._target)
            both = {writer, back}
            self._writers |= both
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_copy(reader, back))
                    tasks.create_task(_copy(there, writer))
            finally:
                self._writers -= both
        writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until one side ends, and end the other."""
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@final
class KinesisService(Service):
    """An embedded stream, and a table of leases behind a port of its own."""

    def __init__(self, server: KinesisProcess, relay: _Relay, shards: int, random: Random) -> None:
        super().__init__(random, 10.0)
        self._server = server
        self._relay = relay
        self._keys = [f"key{number}" for number in range(2 * shards)]
        self._put: Counter[str] = Counter()
        server.create_stream("shared", shards)

    @classmethod
    @asynccontextmanager
    async def running(cls, splits: int, random: Random) -> AsyncIterator[KinesisService]:
        """Run the stream and the table while the block lasts."""
        with KinesisProcess(KinesisRules()) as server:
            where = urlsplit(server.endpoint_url)
            relay = _Relay(str(where.hostname), int(where.port or 0))
            await relay.open()
            made = cls(server, relay, splits, random)
            client = boto3.client(
                "kinesis",
                region_name=REGION,
                endpoint_url=server.endpoint_url,
                aws_access_key_id="key",
                aws_secret_access_key="secret",
            )
            arn = client.describe_stream_summary(StreamName="shared")
            stream = arn["StreamDescriptionSummary"]["StreamARN"]
            client.register_stream_consumer(StreamARN=stream, ConsumerName="members")
            try:
                yield made
            finally:
                await relay.close()

    @property
    def put(self) -> Mapping[str, int]:
        return self._put

    @property
    def spec(self) -> dict[str, Any]:
        return {
            "service": "kinesis",
            "stream": "shared",
            "table": "shared-app",
            "region": REGION,
            "endpoint": self._server.endpoint_url,
            "dynamodb": f"http://127.0.0.1:{self._relay.port}",
            "failover": self.failover,
            "discovery": 5.0,
            "column": "data",
        }

    @property
    def faults(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        return {
            "a shard is split": self._split,
            "two shards are merged": self._merge,
            "DynamoDB is away for 60 s": self._outage,
        }

    async def load(self, until: asyncio.Event) -> None:
        number = 0
        while not until.is_set():
            body = [
                (key, json.dumps({"key": key, "number": number}).encode()) for key in self._keys
            ]
            await asyncio.to_thread(self._server.put_records, "shared", body)
            number += 1
            self._put.update(dict.fromkeys(self._keys, 1))
            await asyncio.sleep(_TICK)

    async def _split(self) -> None:
        shard, *_ = self.random.sample(self._open_shards(), 1)
        await asyncio.to_thread(self._server.split_shard, "shared", shard["ShardId"])

    async def _merge(self) -> None:
        shards = sorted(self._open_shards(), key=lambda each: int(_range(each)["StartingHashKey"]))
        at = self.random.randrange(len(shards) - 1)
        one, other = (each["ShardId"] for each in shards[at : at + 2])
        await asyncio.to_thread(self._server.merge_shards, "shared", one, other)

    async def _outage(self) -> None:
        await self._relay.close()
        await asyncio.sleep(_DYNAMODB_AWAY)
        await self._relay.open()

    def _open_shards(self) -> list[dict[str, Any]]:
        client = boto3.client(
            "kinesis",
            region_name=REGION,
            endpoint_url=self._server.endpoint_url,
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )
        pages = client.get_paginator("list_shards").paginate(StreamName="shared")
        shards = [shard for page in pages for shard in page["Shards"]]
        return [each for each in shards if "EndingSequenceNumber" not in _numbers(each)]


def _range(shard: dict[str, Any]) -> dict[str, str]:
    return shard["HashKeyRange"]  # type: ignore[no-any-return]


def _numbers(shard: dict[str, Any]) -> dict[str, str]:
    return shard["SequenceNumberRange"]  # type: ignore[no-any-return]


@final
class KafkaService(Service):
    """A topic on three nodes."""

    def __init__(self, cluster: KafkaCluster, partitions: int, random: Random) -> None:
        super().__init__(random, 6.0)
        self._cluster = cluster
        servers = cluster.bootstrap_servers
        cluster.create_topic("shared", partitions)
        self._load = Load(servers, "shared", keys=2 * partitions, partitions=partitions)

    @classmethod
    @asynccontextmanager
    async def running(cls, splits: int, random: Random) -> AsyncIterator[KafkaService]:
        """Run the nodes while the block lasts."""
        cluster = await asyncio.to_thread(KafkaCluster().__enter__)  # it blocks
        try:
            made = await asyncio.to_thread(cls, cluster, splits, random)
            await made._set_session()
            yield made
        finally:
            await asyncio.to_thread(cluster.close)

    @property
    def put(self) -> Mapping[str, int]:
        return self._load.confirmed

    @property
    def spec(self) -> dict[str, Any]:
        return {
            "service": "kafka",
            "servers": self._cluster.bootstrap_servers,
            "topic": "shared",
            "group": "shared-app",
            "column": "value",
        }

    @property
    def faults(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        return {
            "a node is killed, and back after 12 s": self._kill,
            "the group's coordinator is killed": self._kill_coordinator,
            "all leaders move": self._move,
        }

    async def load(self, until: asyncio.Event) -> None:
        loading = asyncio.create_task(self._load.run())
        await until.wait()
        self._load.end()
        await loading

    async def _set_session(self) -> None:
        """Let the group miss a member soon."""
        cluster = Cluster(self._cluster.bootstrap_servers, security=Security(protocol="PLAINTEXT"))
        settings = {"consumer.session.timeout.ms": f"{self.failover * 1000:.0f}"}
        async with open_connections(cluster, CallTimeouts(15.0)) as connections:
            answer = await connections.send_to_any(AlterGroupRequest("shared-app", settings))
        ((code, *_),) = answer.resources
        assert code == 0

    async def _kill(self) -> None:
        await self._away(self.random.choice((1, 2, 3)))

    async def _kill_coordinator(self) -> None:
        leaders = await asyncio.to_thread(self._cluster.leaders, "__consumer_offsets")
        await self._away(leaders[_java_hash("shared-app") % len(leaders)])

    async def _away(self, node: int) -> None:
        self._cluster.kill(node)
        await asyncio.sleep(_BROKER_AWAY)
        await asyncio.to_thread(self._cluster.start, node)

    async def _move(self) -> None:
        await asyncio.to_thread(self._cluster.move_leaders, "shared")


def _java_hash(text: str) -> int:
    """Return the hash by which a broker chooses the partition of a group's offsets."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value & 0x7FFFFFFF
