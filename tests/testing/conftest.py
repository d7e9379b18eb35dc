"""A real boto3 client on an embedded server, with one stream and one consumer."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config

from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.support.patience import PATIENCE
from tests.testing.wires import PLAIN, Wire, speaking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIRST = "shardId-000000000000"
ONCE = Config(retries={"total_max_attempts": 1}, read_timeout=PATIENCE)


class Kinesis:
    def __init__(self, server: KinesisServer, shards: int, scope: ExitStack, wire: Wire) -> None:
        self.server = server
        self._scope = scope
        self._wire = wire
        self._subscriptions = scope.enter_context(ExitStack())
        self.client = self.connect()
        self.stream_arn = server.create_stream("orders", shards)
        self.consumer_arn = self.register("etl")

    def connect(self, config: Config = ONCE) -> Any:
        client = boto3.client("kinesis", **self.server.client_options, config=config)
        self._scope.enter_context(closing(client))
        self._scope.enter_context(speaking(client, self._wire))
        return client

    def register(self, name: str) -> str:
        answer = self.client.register_stream_consumer(StreamARN=self.stream_arn, ConsumerName=name)
        return str(answer["Consumer"]["ConsumerARN"])

    def put(self, *data: bytes, shard: str | None = None) -> list[str]:
        placed = self.server.put_records("orders", [("key", each) for each in data], shard=shard)
        return [number for _, number in placed]

    def close_subscriptions(self) -> None:
        self._subscriptions.close()

    def subscribe(
        self, kind: str = "TRIM_HORIZON", *, shard: str = FIRST, consumer: str = "", **value: Any
    ) -> Iterator[dict[str, Any]]:
        answer = self.client.subscribe_to_shard(
            ConsumerARN=consumer or self.consumer_arn,
            ShardId=shard,
            StartingPosition={"Type": kind, **value},
        )
        stream = self._subscriptions.enter_context(closing(answer["EventStream"]))
        return (event["SubscribeToShardEvent"] for event in stream)


# Every SDK that speaks HTTP/2 calls SubscribeToShard in JSON, and the others in CBOR.
WIRES = [PLAIN, Wire(cbor=True), Wire(http2=True), Wire(http2=True, cbor=True)]


@pytest.fixture(
    params=[pytest.param(wire, marks=[] if wire == PLAIN else pytest.mark.long) for wire in WIRES],
    ids=str,
)
def wire(request: pytest.FixtureRequest) -> Wire:
    """What the client speaks."""
    wire: Wire = request.param
    return wire


@pytest.fixture
def start(wire: Wire) -> Iterator[Callable[..., Kinesis]]:
    with ExitStack() as scope:

        def start(rules: KinesisRules | None = None, shards: int = 1) -> Kinesis:
            server = scope.enter_context(KinesisServer(rules or KinesisRules.fast()))
            return Kinesis(server, shards, scope, wire)

        yield start


@pytest.fixture
def kinesis(start: Callable[..., Kinesis]) -> Kinesis:
    return start()
