"""One stream and one consumer, at AWS or embedded, and what a test does with them."""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

import fanout
from fanout.errors import RemoteError
from fanout.kinesis import KinesisSource
from fanout.kinesis.reading.decode import ShardEvent, decode_event
from fanout.kinesis.reading.event_stream import MAX_FRAME_BYTES, EventStreamFrame, FrameDecoder
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.support.kinesis.reading import session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fanout.kinesis.aws.api import KinesisClient

# More than the network and a busy machine take; the service's own figures come on top.
PATIENCE = 20.0
# A clock that is read twice, here and there, may differ by this.
_SLACK = 0.2
_ONCE = Config(retries={"total_max_attempts": 1})
_STANDARD = Config(retries={"mode": "standard", "total_max_attempts": 8})


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A stream that exists, and a consumer of ours.

    Args:
        figures: The service's figures, by which the tests wait.
        stream: The stream's name or ARN.
        arn: Its ARN.
        shard: An open shard of it, into which every record of a test goes.
        hash_keys: The range of its hash keys, both ends included.
        consumer_arn: The consumer's ARN; it is ACTIVE.
        prefix: The prefix of the names of our consumers and of our partition keys.
        client: A boto3 client.
        producer: One that calls once: a record that is put again after an error that hides a
            success would come twice.
        where: How `KinesisSource` and `open_kinesis_client` find the service.
    """

    figures: KinesisRules
    stream: str
    arn: str
    shard: str
    hash_keys: range
    consumer_arn: str
    prefix: str
    client: Any
    producer: Any
    where: dict[str, Any]
    # When the consumer last subscribed, by the monotonic clock: all tests keep its pace together.
    subscribed: list[float] = field(default_factory=lambda: [float("-inf")])

    def key(self, name: str = "") -> str:
        """Make a unique partition key of a record that lands in the shard."""
        while True:
            key = f"{self.prefix}-{name}{uuid.uuid4().hex}"
            digest = hashlib.md5(key.encode(), usedforsecurity=False).digest()
            if int.from_bytes(digest, "big") in self.hash_keys:
                return key

    async def put(self, key: str, *data: bytes) -> list[str]:
        """Put records in order, and return their sequence numbers."""
        return await asyncio.to_thread(self._put, key, data)

    def _put(self, key: str, data: tuple[bytes, ...]) -> list[str]:
        numbers: list[str] = []
        for each in data:
            after = {"SequenceNumberForOrdering": numbers[-1]} if numbers else {}
            numbers.append(self._put_record(PartitionKey=key, Data=each, **after))
        return numbers

    def _put_record(self, **record: Any) -> str:
        while True:
            try:
                placed = self.producer.put_record(StreamARN=self.arn, **record)
            except self.producer.exceptions.ProvisionedThroughputExceededException:
                time.sleep(1)  # a shard takes 1 MiB a second
            else:
                return str(placed["SequenceNumber"])

    @asynccontextmanager
    async def subscribe(
        self, kinesis: KinesisClient, kind: str, *, at_once: bool = False, **value: Any
    ) -> AsyncIterator[Subscription]:
        """Subscribe, when the one before is old enough to be taken over unless `at_once`."""
        if not at_once:
            await self.spacing()
        position = {"Type": kind, **value}
        async with kinesis.subscribe(self.consumer_arn, self.shard, position) as chunks:
            self.subscribed[0] = time.monotonic()
            yield Subscription(chunks, self)

    async def spacing(self) -> None:
        """Wait until the consumer may subscribe again."""
        pause = max(self.figures.takeover_after, self.figures.call_interval)
        due = self.subscribed[0] + pause + (_SLACK if pause else 0)
        await asyncio.sleep(due - time.monotonic())

    @asynccontextmanager
    async def open(
        self, *, resume: str | None = None, **options: Any
    ) -> AsyncIterator[fanout.FanOut]:
        """Open the stream through the library."""
        await self.spacing()
        source = KinesisSource(
            stream=self.stream, consumer=self.consumer_arn, **self.where, **options
        )
        try:
            async with fanout.open(source, resume=resume) as stream:
                yield stream
        finally:
            self.subscribed[0] = time.monotonic()


class Subscription:
    """The open response of one SubscribeToShard call."""

    def __init__(self, chunks: AsyncIterator[bytes], service: Service) -> None:
        self._chunks = chunks
        self._service = service
        self._decoder = FrameDecoder(MAX_FRAME_BYTES)

    async def frame(self) -> EventStreamFrame | None:
        """Return the next frame; None when the service has ended the response."""
        async with asyncio.timeout(self._service.figures.heartbeat + PATIENCE):
            while (frame := self._decoder.next_frame()) is None:
                chunk = await anext(self._chunks, None)
                if chunk is None:
                    self._decoder.close()
                    return None
                self._decoder.feed(chunk)
        return frame

    async def event(self) -> ShardEvent | None:
        """Return the next event; None when the service has ended the response.

        Raises:
            RemoteError: The service has ended it with an exception.
        """
        while (frame := await self.frame()) is not None:
            if frame.message_type != "event":
                raise RemoteError(str(frame.exception_type), "")
            if frame.event_type == "SubscribeToShardEvent":
                return decode_event(
                    frame.payload, stream=self._service.stream, shard_id=self._service.shard
                )
        return None

    async def records(self, key: str, count: int) -> tuple[list[dict[str, Any]], str]:
        """Read until so many records of a key have come; return them, and the continuation."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            event = await self.event()
            assert event is not None, "the subscription ended before all records came"
            assert event.continuation is not None, "the shard has ended: it was resharded"
            found += [row for row in event.records.to_pylist() if row["partitionKey"] == key]
            continuation = event.continuation
        return found, continuation

    async def end(self) -> str | None:
        """Read to the end; return the name of the exception that ended it, or None."""
        try:
            while await self.event() is not None:
                pass
        except RemoteError as error:
            return error.code
        return None


@contextmanager
def deregistering(client: Any, stream_arn: str, name: str) -> Iterator[None]:
    """Deregister the consumer of this name when the block ends, also by an error."""
    try:
        yield
    finally:
        try:
            client.deregister_stream_consumer(StreamARN=stream_arn, ConsumerName=name)
        except client.exceptions.ResourceNotFoundException:
            pass  # it was not registered, or its test has deregistered it
        except BaseException as error:
            error.add_note(f"it may stay: fanout consumers deregister {stream_arn} {name} --yes")
            raise


@contextmanager
def _serving(
    *,
    settings: dict[str, Any],
    stream: str,
    figures: KinesisRules,
    prefix: str,
    where: dict[str, Any],
) -> Iterator[Service]:
    """Register a consumer of our own for as long as the block runs."""
    client = boto3.client("kinesis", **settings, config=_STANDARD)
    producer = boto3.client("kinesis", **settings, config=_ONCE)
    key = "StreamARN" if stream.startswith("arn:") else "StreamName"
    summary = client.describe_stream_summary(**{key: stream})["StreamDescriptionSummary"]
    arn = summary["StreamARN"]
    shards = client.list_shards(StreamARN=arn)["Shards"]
    shard = next(
        each for each in shards if "EndingSequenceNumber" not in each["SequenceNumberRange"]
    )
    bounds = shard["HashKeyRange"]
    name = f"{prefix}-{uuid.uuid4().hex}"
    with closing(producer), closing(client), deregistering(client, arn, name):
        made = client.register_stream_consumer(StreamARN=arn, ConsumerName=name)["Consumer"]
        _await_active(client, made["ConsumerARN"])
        yield Service(
            figures=figures,
            stream=stream,
            arn=arn,
            shard=shard["ShardId"],
            hash_keys=range(int(bounds["StartingHashKey"]), int(bounds["EndingHashKey"]) + 1),
            consumer_arn=made["ConsumerARN"],
            prefix=prefix,
            client=client,
            producer=producer,
            where=where,
        )


def _await_active(client: Any, consumer_arn: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        described = client.describe_stream_consumer(ConsumerARN=consumer_arn)
        if described["ConsumerDescription"]["ConsumerStatus"] == "ACTIVE":
            return
        time.sleep(1)
    raise TimeoutError(f"the consumer {consumer_arn} is not ACTIVE after a minute")


@contextmanager
def embedded(rules: KinesisRules, prefix: str) -> Iterator[Service]:
    """Serve the tests from an embedded Kinesis of our own."""
    with KinesisServer(rules) as server:
        server.create_stream("conformance", shards=2)
        where = {"endpoint_url": server.endpoint_url, "session": session()}
        with _serving(
            settings=server.client_options,
            stream="conformance",
            figures=rules,
            prefix=prefix,
            where=where,
        ) as service:
            yield service


@contextmanager
def at_aws(stream: str, prefix: str) -> Iterator[Service]:
    """Serve the tests from a stream at AWS, with the credentials and region of the machine."""
    region = KinesisSource(stream=stream, consumer=prefix).resolved_region
    # The defaults of the rules are the service's own figures.
    with _serving(
        settings={"region_name": region},
        stream=stream,
        figures=KinesisRules(),
        prefix=prefix,
        where={"region": region},
    ) as service:
        yield service
