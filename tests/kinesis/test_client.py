from __future__ import annotations

import asyncio
import json
import tomllib
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aioboto3
import aiobotocore.session
import aiohttp
import pytest
from aiobotocore.credentials import AioCredentialResolver
from aiohttp import web
from aiohttp.test_utils import TestServer
from botocore.exceptions import ClientError, EndpointConnectionError

from fanout.errors import MalformedEventError, OptionError, ServiceError, SetupError
from fanout.kinesis import KinesisSource
from fanout.kinesis.aws.api import (
    MAX_CONSUMERS,
    MAX_SHARDS,
    ConsumerDescription,
    HashRange,
    ShardDescription,
    StreamDescription,
)
from fanout.kinesis.aws.client import open_kinesis_client
from fanout.kinesis.aws.raw_bodies import SUPPORTED_AIOBOTOCORE
from fanout.kinesis.aws.role import AssumedRole
from fanout.kinesis.reading.decode import decode_event
from fanout.kinesis.reading.event_stream import FrameDecoder
from fanout.testing.kinesis.frames import encode_event

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import pyarrow as pa

    from fanout.kinesis.aws.api import KinesisClient
    from fanout.testing.kinesis.server import KinesisServer

    Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]

STREAM_ARN = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
CONSUMER_ARN = f"{STREAM_ARN}/consumer/etl:1"
LATEST = {"Type": "LATEST"}
SECRET = "canary-secret-key"


@pytest.fixture(autouse=True)
def _keys(
    monkeypatch: pytest.MonkeyPatch,
    aws: None,  # noqa: ARG001 - used for what it does
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


class Service:
    """Answer each AWS operation with what a test wrote for it, and remember the requests."""

    def __init__(self, **answers: Answer) -> None:
        self._answers = answers
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.authorizations: list[str] = []
        self.hung_up = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        operation = request.headers["X-Amz-Target"].partition(".")[2]
        body = json.loads(await request.read())
        self.requests.append((operation, body))
        self.authorizations.append(request.headers["Authorization"])
        try:
            return await self._answers[operation](request, body)
        finally:
            if request.transport is None or request.transport.is_closing():
                self.hung_up.set()


@asynccontextmanager
async def serving(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_post("/", handler)
    async with TestServer(application, handler_cancellation=True, shutdown_timeout=0.1) as server:
        yield str(server.make_url("/"))


@asynccontextmanager
async def connected(service: Service, **options: Any) -> AsyncIterator[KinesisClient]:
    options = {"stream": "orders", "region": "eu-west-1"} | options
    async with (
        serving(service.handle) as url,
        open_kinesis_client(endpoint_url=url, **options) as kinesis,
    ):
        yield kinesis


def answering(*bodies: dict[str, Any], headers: dict[str, str] | None = None) -> Answer:
    remaining = iter(bodies)

    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.Response:
        return web.json_response(next(remaining), headers=headers)

    return answer


def failing(code: str, status: int = 400) -> Answer:
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.Response:
        return web.json_response({"__type": code, "message": "no"}, status=status)

    return answer


def streaming(*chunks: bytes, endless: bool = False) -> Answer:
    async def answer(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "application/vnd.amazon.eventstream"}
        )
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if endless:
            await asyncio.Event().wait()
        return response

    return answer


async def test_raw_hook_of_this_botocore_delivers_the_body_byte_for_byte() -> None:
    sent = encode_event("initial-response", b"{}") + encode_event("SubscribeToShardEvent", b"x")
    async with (
        connected(Service(SubscribeToShard=streaming(sent[:7], sent[7:]))) as kinesis,
        kinesis.subscribe(CONSUMER_ARN, "shardId-000000000000", LATEST) as chunks,
    ):
        assert b"".join([chunk async for chunk in chunks]) == sent


async def test_a_body_that_botocore_decoded_after_all_is_a_setup_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fanout.kinesis.aws.client.deliver_raw_bodies", lambda *_: None)
    sent = encode_event("initial-response", b"{}")
    async with connected(Service(SubscribeToShard=streaming(sent))) as kinesis:
        with pytest.raises(SetupError, match="aiobotocore"):
            async with kinesis.subscribe(CONSUMER_ARN, "shardId-000000000000", LATEST):
                pass


def test_the_supported_versions_are_those_of_the_extra() -> None:
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())
    extra = project["project"]["optional-dependencies"]["kinesis"]
    assert f"aiobotocore{SUPPORTED_AIOBOTOCORE}" in extra


async def test_the_hook_leaves_other_clients_of_the_session_alone() -> None:
    session = aioboto3.Session()
    sent = encode_event("initial-response", b"{}")
    async with (
        serving(Service(SubscribeToShard=streaming(sent)).handle) as url,
        open_kinesis_client(stream="orders", region="eu-west-1", endpoint_url=url, session=session),
        session.client("kinesis", region_name="eu-west-1", endpoint_url=url) as client,
    ):
        response = await client.subscribe_to_shard(
            ConsumerARN=CONSUMER_ARN, ShardId="shardId-000000000000", StartingPosition=LATEST
        )
        assert type(response["EventStream"]).__module__ == "aiobotocore.eventstream"
        response["EventStream"].close()


RECORDS = b'{"MillisBehindLatest":0,"NextShardIterator":"next","Records":[]}'


def polled(body: bytes) -> Answer:
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.Response:
        return web.Response(body=body, content_type="application/x-amz-json-1.1")

    return answer


async def test_get_records_delivers_its_size_before_its_body_byte_for_byte() -> None:
    service = Service(GetRecords=polled(RECORDS))
    async with (
        connected(service) as kinesis,
        kinesis.get_records(STREAM_ARN, "here") as unread,
    ):
        assert unread.size == len(RECORDS)
        assert b"".join([chunk async for chunk in unread.chunks]) == RECORDS
    assert service.requests == [("GetRecords", {"StreamARN": STREAM_ARN, "ShardIterator": "here"})]


async def test_get_records_may_be_limited() -> None:
    service = Service(GetRecords=polled(RECORDS))
    async with (
        connected(service) as kinesis,
        kinesis.get_records(STREAM_ARN, "here", limit=1),
    ):
        pass
    assert service.requests[0][1]["Limit"] == 1


async def test_the_connection_of_get_records_is_used_again_when_its_body_was_read() -> None:
    connections = set()

    async def answer(request: web.Request, _body: dict[str, Any]) -> web.Response:
        connections.add(request.transport)
        return web.Response(body=RECORDS)

    async with connected(Service(GetRecords=answer)) as kinesis:
        for _ in range(3):
            async with kinesis.get_records(STREAM_ARN, "here") as unread:
                assert [chunk async for chunk in unread.chunks]
    assert len(connections) == 1


async def test_leaving_get_records_with_its_body_unread_hangs_up() -> None:
    service = Service(GetRecords=streaming(b"{", endless=True))
    async with connected(service) as kinesis:
        async with kinesis.get_records(STREAM_ARN, "here") as unread:
            assert unread.size is None
        await service.hung_up.wait()


async def test_refused_records_are_asked_for_once() -> None:
    service = Service(GetRecords=failing("ProvisionedThroughputExceededException"))
    async with connected(service) as kinesis:
        with pytest.raises(ClientError, match="ProvisionedThroughputExceededException"):
            async with kinesis.get_records(STREAM_ARN, "here"):
                pass
    assert len(service.requests) == 1


async def test_a_refused_iterator_is_asked_for_once() -> None:
    service = Service(GetShardIterator=failing("ProvisionedThroughputExceededException"))
    async with connected(service) as kinesis:
        with pytest.raises(ClientError, match="ProvisionedThroughputExceededException"):
            await kinesis.get_shard_iterator(STREAM_ARN, "shardId-000000000000", LATEST)
    assert len(service.requests) == 1


async def test_records_that_botocore_decoded_after_all_are_a_setup_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fanout.kinesis.aws.client.deliver_raw_bodies", lambda *_: None)
    async with connected(Service(GetRecords=polled(RECORDS))) as kinesis:
        with pytest.raises(SetupError, match="aiobotocore"):
            async with kinesis.get_records(STREAM_ARN, "here"):
                pass


async def test_get_records_of_other_clients_of_the_session_is_decoded() -> None:
    session = aioboto3.Session()
    async with (
        serving(Service(GetRecords=polled(RECORDS)).handle) as url,
        open_kinesis_client(stream="orders", region="eu-west-1", endpoint_url=url, session=session),
        session.client("kinesis", region_name="eu-west-1", endpoint_url=url) as client,
    ):
        response = await client.get_records(StreamARN=STREAM_ARN, ShardIterator="here")
    assert response["NextShardIterator"] == "next"


@pytest.mark.parametrize(
    ("position", "sent"),
    [
        (LATEST, {"ShardIteratorType": "LATEST"}),
        (
            {"Type": "AT_SEQUENCE_NUMBER", "SequenceNumber": "7"},
            {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": "7"},
        ),
        (
            {"Type": "AT_TIMESTAMP", "Timestamp": 1700000000.123},
            {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": 1700000000.123},
        ),
    ],
)
async def test_get_shard_iterator_takes_the_position_of_a_subscription(
    position: dict[str, Any], sent: dict[str, Any]
) -> None:
    service = Service(GetShardIterator=answering({"ShardIterator": "here"}))
    async with connected(service) as kinesis:
        found = await kinesis.get_shard_iterator(STREAM_ARN, "shardId-000000000000", position)
    assert found == "here"
    shard = {"StreamARN": STREAM_ARN, "ShardId": "shardId-000000000000"}
    assert service.requests == [("GetShardIterator", shard | sent)]


@pytest.fixture
def stored(kinesis_server: KinesisServer) -> tuple[str, str]:
    """Store one record in a stream of two shards; return its shard and sequence number."""
    kinesis_server.create_stream("orders", shards=2)
    ((shard_id, sequence_number),) = kinesis_server.put_records("orders", [("key", b"data")])
    return shard_id, sequence_number


async def test_the_embedded_kinesis_takes_every_call(
    kinesis_server: KinesisServer, stored: tuple[str, str]
) -> None:
    shard_id, sequence_number = stored
    async with open_kinesis_client(
        stream="orders", region="us-east-1", endpoint_url=kinesis_server.endpoint_url
    ) as kinesis:
        described = await kinesis.describe_stream()
        assert shard_id in {each.shard_id for each in await kinesis.list_shards()}
        consumer = await kinesis.register_consumer(described.arn, "etl")
        assert await kinesis.describe_consumer(arn=consumer.arn) == (
            await kinesis.describe_consumer(stream_arn=described.arn, name="etl")
        )
        horizon = {"Type": "TRIM_HORIZON"}
        async with kinesis.subscribe(consumer.arn, shard_id, horizon) as chunks:
            records = await first_records(chunks)
        iterator = await kinesis.get_shard_iterator(described.arn, shard_id, horizon)
        async with kinesis.get_records(described.arn, iterator) as unread:
            body = json.loads(b"".join([chunk async for chunk in unread.chunks]))
        assert [record["SequenceNumber"] for record in body["Records"]] == [sequence_number]
        await kinesis.deregister_consumer(consumer.arn)
    assert records["data"].to_pylist() == [b"data"]
    assert records["sequenceNumber"].to_pylist() == [sequence_number]


async def first_records(chunks: AsyncIterator[bytes]) -> pa.RecordBatch:
    decoder = FrameDecoder()
    async for chunk in chunks:
        decoder.feed(chunk)
        while (frame := decoder.next_frame()) is not None:
            if frame.event_type != "SubscribeToShardEvent":
                continue
            event = decode_event(frame.payload, stream="orders", shard_id="any")
            if event.records.num_rows:
                return event.records
    raise AssertionError("the subscription ended without a record")


async def test_subscribe_sends_the_consumer_the_shard_and_the_position() -> None:
    service = Service(SubscribeToShard=streaming())
    position = {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": "7"}
    async with (
        connected(service) as kinesis,
        kinesis.subscribe(CONSUMER_ARN, "shardId-000000000000", position),
    ):
        pass
    body = {
        "ConsumerARN": CONSUMER_ARN,
        "ShardId": "shardId-000000000000",
        "StartingPosition": position,
    }
    assert service.requests == [("SubscribeToShard", body)]


async def test_leaving_a_subscription_hangs_up_an_endless_body() -> None:
    service = Service(SubscribeToShard=streaming(b"first", endless=True))
    async with connected(service) as kinesis:
        async with kinesis.subscribe(CONSUMER_ARN, "shardId-000000000000", LATEST) as chunks:
            assert await anext(chunks) == b"first"
        await service.hung_up.wait()


@pytest.mark.fault("The pool of connections is smaller than the number of shards")
@pytest.mark.parametrize("operation", ["SubscribeToShard", "GetRecords"])
async def test_a_pool_limit_lower_than_the_shard_count_holds_no_shard_up(operation: str) -> None:
    """botocore's own limit is 10, and the call beyond it waits until another one ends."""
    service = Service(**{operation: streaming(b"first", endless=True)})
    async with connected(service) as kinesis, AsyncExitStack() as calls, asyncio.timeout(10):
        for shard in range(50):
            if operation == "SubscribeToShard":
                call = kinesis.subscribe(CONSUMER_ARN, f"shardId-{shard:012}", LATEST)
                chunks = await calls.enter_async_context(call)
            else:
                polling = kinesis.get_records(STREAM_ARN, f"iterator-{shard}")
                chunks = (await calls.enter_async_context(polling)).chunks
            assert await anext(chunks) == b"first"


async def test_an_error_inside_a_subscription_hangs_up() -> None:
    service = Service(SubscribeToShard=streaming(b"first", endless=True))
    async with connected(service) as kinesis:
        with pytest.raises(ZeroDivisionError):
            async with kinesis.subscribe(CONSUMER_ARN, "shardId-000000000000", LATEST):
                raise ZeroDivisionError
        await service.hung_up.wait()


async def test_cancellation_while_waiting_for_a_chunk_hangs_up() -> None:
    service = Service(SubscribeToShard=streaming(b"first", endless=True))
    waiting = asyncio.Event()

    async def consume(kinesis: KinesisClient) -> None:
        async with kinesis.subscribe(CONSUMER_ARN, "shardId-000000000000", LATEST) as chunks:
            async for _ in chunks:
                waiting.set()

    async with connected(service) as kinesis, asyncio.TaskGroup() as tasks:
        consumer = tasks.create_task(consume(kinesis))
        await waiting.wait()
        consumer.cancel()
        await service.hung_up.wait()


@pytest.mark.fault("An answer comes after its call was given up")
async def test_cancellation_while_subscribing_hangs_up() -> None:
    asked = asyncio.Event()

    async def silence(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def consume(kinesis: KinesisClient) -> None:
        async with kinesis.subscribe(CONSUMER_ARN, "shardId-000000000000", LATEST):
            raise AssertionError

    service = Service(SubscribeToShard=silence)
    async with connected(service) as kinesis, asyncio.TaskGroup() as tasks:
        consumer = tasks.create_task(consume(kinesis))
        await asked.wait()
        consumer.cancel()
        await service.hung_up.wait()


@pytest.mark.fault("A connection is closed or reset anywhere")
async def test_a_body_cut_off_by_the_network_raises_the_network_error() -> None:
    async def cut(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(b"first")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with (
        connected(Service(SubscribeToShard=cut)) as kinesis,
        kinesis.subscribe(CONSUMER_ARN, "shardId-000000000000", LATEST) as chunks,
    ):
        assert await anext(chunks) == b"first"
        with pytest.raises(aiohttp.ClientPayloadError):
            await anext(chunks)


@pytest.mark.fault("The service throttles, or fails with a 5xx")
async def test_a_refused_subscription_is_asked_for_once() -> None:
    service = Service(SubscribeToShard=failing("LimitExceededException"))
    async with connected(service) as kinesis:
        with pytest.raises(ClientError, match="LimitExceededException"):
            async with kinesis.subscribe(CONSUMER_ARN, "shardId-000000000000", LATEST):
                pass
    assert len(service.requests) == 1


async def test_a_failing_control_call_is_retried_by_botocore() -> None:
    answer = in_turn(failing("InternalFailure", 500), answering({"Shards": []}))
    async with connected(Service(ListShards=answer)) as kinesis:
        assert await kinesis.list_shards() == []


SUMMARY: dict[str, dict[str, Any]] = {
    "StreamDescriptionSummary": {
        "StreamName": "orders",
        "StreamARN": STREAM_ARN,
        "StreamStatus": "ACTIVE",
        "RetentionPeriodHours": 24,
        "StreamCreationTimestamp": 0,
        "EnhancedMonitoring": [],
        "OpenShardCount": 1,
    }
}


async def test_describe_stream_tells_the_services_time() -> None:
    date = {"Date": "Fri, 20 Nov 2026 08:00:01 GMT"}
    service = Service(DescribeStreamSummary=answering(SUMMARY, headers=date))
    async with connected(service) as kinesis:
        assert await kinesis.describe_stream() == StreamDescription(
            name="orders",
            arn=STREAM_ARN,
            status="ACTIVE",
            created=datetime(1970, 1, 1, tzinfo=UTC),
            server_time=datetime(2026, 11, 20, 8, 0, 1, tzinfo=UTC),
            retention_hours=24,
            open_shards=1,
            consumers=None,
            key_id=None,
        )


@pytest.mark.parametrize(
    ("mode", "on_demand"),
    [({}, False), ({"StreamMode": "PROVISIONED"}, False), ({"StreamMode": "ON_DEMAND"}, True)],
)
async def test_the_mode_of_a_stream_is_told(mode: dict[str, str], on_demand: bool) -> None:  # noqa: FBT001 - a parameter of the test
    summary = SUMMARY["StreamDescriptionSummary"] | {"StreamModeDetails": mode}
    answer = answering({"StreamDescriptionSummary": summary})
    async with connected(Service(DescribeStreamSummary=answer)) as kinesis:
        assert (await kinesis.describe_stream()).on_demand is on_demand


@pytest.mark.parametrize(
    ("encryption", "key_id"),
    [
        ({"EncryptionType": "NONE", "KeyId": "alias/old"}, None),
        ({"EncryptionType": "KMS", "KeyId": "alias/aws/kinesis"}, "alias/aws/kinesis"),
    ],
)
async def test_describe_stream_tells_the_key_and_the_consumers(
    encryption: dict[str, str], key_id: str | None
) -> None:
    summary = SUMMARY["StreamDescriptionSummary"] | encryption | {"ConsumerCount": 3}
    service = Service(DescribeStreamSummary=answering({"StreamDescriptionSummary": summary}))
    async with connected(service) as kinesis:
        described = await kinesis.describe_stream()
    assert (described.key_id, described.consumers) == (key_id, 3)


async def test_an_unreadable_date_is_a_service_error() -> None:
    service = Service(DescribeStreamSummary=answering(SUMMARY, headers={"Date": "today"}))
    async with connected(service) as kinesis:
        with pytest.raises(ServiceError, match="Date header"):
            await kinesis.describe_stream()


@pytest.mark.parametrize(
    ("stream", "sent"),
    [("orders", {"StreamName": "orders"}), (STREAM_ARN, {"StreamARN": STREAM_ARN})],
)
async def test_a_stream_is_named_or_given_by_arn(stream: str, sent: dict[str, str]) -> None:
    service = Service(DescribeStreamSummary=answering(SUMMARY))
    async with connected(service, stream=stream) as kinesis:
        await kinesis.describe_stream()
    assert service.requests == [("DescribeStreamSummary", sent)]


def shard(number: int, **more: Any) -> dict[str, Any]:
    return {
        "ShardId": f"shardId-{number:012}",
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "1"},
        "SequenceNumberRange": {"StartingSequenceNumber": "1"},
    } | more


async def test_list_shards_follows_the_pages_by_token_alone() -> None:
    service = Service(
        ListShards=answering({"Shards": [shard(0)], "NextToken": "more"}, {"Shards": [shard(1)]})
    )
    async with connected(service) as kinesis:
        shards = await kinesis.list_shards()
    assert [each.shard_id for each in shards] == ["shardId-000000000000", "shardId-000000000001"]
    assert [body for _, body in service.requests] == [
        {"StreamName": "orders"},
        {"NextToken": "more"},
    ]


async def test_list_shards_tells_parents_and_closed_shards() -> None:
    closed = {"StartingSequenceNumber": "1", "EndingSequenceNumber": "2"}
    page = {
        "Shards": [
            shard(0, SequenceNumberRange=closed),
            shard(2, ParentShardId="shardId-000000000000"),
            shard(
                3,
                ParentShardId="shardId-000000000000",
                AdjacentParentShardId="shardId-000000000001",
            ),
        ]
    }
    keys = HashRange(0, 1)
    async with connected(Service(ListShards=answering(page))) as kinesis:
        assert await kinesis.list_shards() == [
            ShardDescription("shardId-000000000000", (), 1, 2, keys),
            ShardDescription("shardId-000000000002", ("shardId-000000000000",), 1, None, keys),
            ShardDescription(
                "shardId-000000000003",
                ("shardId-000000000000", "shardId-000000000001"),
                first=1,
                last=None,
                hash_range=keys,
            ),
        ]


@pytest.mark.parametrize("empty", [{"Shards": []}, {}], ids=["no entry", "no list"])
async def test_a_page_without_shards_may_be_followed_by_others(empty: dict[str, Any]) -> None:
    pages = (empty | {"NextToken": "1"}, {"Shards": [shard(0)], "NextToken": "2"}, empty)
    async with connected(Service(ListShards=answering(*pages))) as kinesis:
        assert [each.shard_id for each in await kinesis.list_shards()] == ["shardId-000000000000"]


def in_turn(*answers: Answer) -> Answer:
    remaining = iter(answers)

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await next(remaining)(request, body)

    return answer


@pytest.mark.fault("The service throttles, fails or lets a page token expire while a stream is")
async def test_a_listing_whose_page_token_expires_begins_anew() -> None:
    begun = answering({"Shards": [shard(0)], "NextToken": "old"})
    expired = failing("ExpiredNextTokenException")
    pages = answering({"Shards": [shard(0)], "NextToken": "new"}, {"Shards": [shard(1)]})
    service = Service(ListShards=in_turn(begun, expired, pages, pages))
    async with connected(service) as kinesis:
        shards = await kinesis.list_shards()
    assert [each.shard_id[-1] for each in shards] == ["0", "1"]
    assert [body.get("NextToken") for _, body in service.requests] == [None, "old", None, "new"]


async def test_page_tokens_that_expire_twice_are_the_error_of_the_service() -> None:
    begun = answering(*[{"Shards": [shard(0)], "NextToken": "old"}] * 2)
    expired = failing("ExpiredNextTokenException")
    async with connected(Service(ListShards=in_turn(begun, expired, begun, expired))) as kinesis:
        with pytest.raises(ClientError, match="ExpiredNextTokenException"):
            await kinesis.list_shards()


async def test_an_answer_without_an_iterator_is_malformed() -> None:
    async with connected(Service(GetShardIterator=answering({}))) as kinesis:
        with pytest.raises(MalformedEventError, match="no iterator"):
            await kinesis.get_shard_iterator(STREAM_ARN, "shardId-000000000000", LATEST)


async def test_a_page_token_that_comes_twice_is_a_service_error() -> None:
    page = {"Shards": [], "NextToken": "again"}
    async with connected(Service(ListShards=answering(page, page))) as kinesis:
        with pytest.raises(ServiceError, match="token twice"):
            await kinesis.list_shards()


@pytest.mark.long
async def test_as_many_shards_are_listed_as_an_account_may_open() -> None:
    page = {"Shards": [shard(number) for number in range(20_000)]}
    async with connected(Service(ListShards=answering(page))) as kinesis:
        assert len(await kinesis.list_shards()) == 20_000


@pytest.mark.long
async def test_a_listing_beyond_the_limit_is_a_service_error() -> None:
    page = {"Shards": [shard(number) for number in range(MAX_SHARDS + 1)], "NextToken": "more"}
    async with connected(Service(ListShards=answering(page))) as kinesis:
        with pytest.raises(ServiceError, match="more than 50000 shards"):
            await kinesis.list_shards()


CREATED = datetime(2026, 11, 20, 8, 0, 1, tzinfo=UTC)
CONSUMER = {
    "ConsumerName": "etl",
    "ConsumerARN": CONSUMER_ARN,
    "ConsumerStatus": "CREATING",
    "ConsumerCreationTimestamp": CREATED.timestamp(),
}


async def test_register_consumer_returns_its_arn_and_status() -> None:
    service = Service(RegisterStreamConsumer=answering({"Consumer": CONSUMER}))
    async with connected(service) as kinesis:
        consumer = await kinesis.register_consumer(STREAM_ARN, "etl")
    assert consumer == ConsumerDescription("etl", CONSUMER_ARN, "CREATING", CREATED)
    assert service.requests == [
        ("RegisterStreamConsumer", {"StreamARN": STREAM_ARN, "ConsumerName": "etl"})
    ]


async def test_the_tags_of_a_consumer_are_sent_when_it_is_registered() -> None:
    service = Service(RegisterStreamConsumer=answering({"Consumer": CONSUMER}))
    async with connected(service) as kinesis:
        await kinesis.register_consumer(STREAM_ARN, "etl", {"team": "orders"})
    assert service.requests[0][1]["Tags"] == {"team": "orders"}


async def test_list_consumers_follows_the_pages_of_its_stream() -> None:
    second = CONSUMER | {"ConsumerName": "audit", "ConsumerStatus": "DELETING"}
    service = Service(
        ListStreamConsumers=answering(
            {"Consumers": [CONSUMER], "NextToken": "more"}, {"Consumers": [second]}
        )
    )
    async with connected(service) as kinesis:
        assert await kinesis.list_consumers(STREAM_ARN) == [
            ConsumerDescription("etl", CONSUMER_ARN, "CREATING", CREATED),
            ConsumerDescription("audit", CONSUMER_ARN, "DELETING", CREATED),
        ]
    assert [body for _, body in service.requests] == [
        {"StreamARN": STREAM_ARN},
        {"StreamARN": STREAM_ARN, "NextToken": "more"},
    ]


async def test_a_listing_of_consumers_that_goes_in_circles_is_a_service_error() -> None:
    page = {"Consumers": [], "NextToken": "again"}
    async with connected(Service(ListStreamConsumers=answering(page, page))) as kinesis:
        with pytest.raises(ServiceError, match="token twice"):
            await kinesis.list_consumers(STREAM_ARN)


async def test_more_consumers_than_a_stream_can_have_are_a_service_error() -> None:
    page = {"Consumers": [CONSUMER] * (MAX_CONSUMERS + 1), "NextToken": "more"}
    async with connected(Service(ListStreamConsumers=answering(page))) as kinesis:
        with pytest.raises(ServiceError, match="more than 1000 consumers"):
            await kinesis.list_consumers(STREAM_ARN)


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({"arn": CONSUMER_ARN}, {"ConsumerARN": CONSUMER_ARN}),
        (
            {"stream_arn": STREAM_ARN, "name": "etl"},
            {"StreamARN": STREAM_ARN, "ConsumerName": "etl"},
        ),
    ],
)
async def test_a_consumer_is_described_by_arn_or_by_name(
    asked: dict[str, str], sent: dict[str, str]
) -> None:
    description = CONSUMER | {"StreamARN": STREAM_ARN, "ConsumerStatus": "ACTIVE"}
    service = Service(DescribeStreamConsumer=answering({"ConsumerDescription": description}))
    async with connected(service) as kinesis:
        consumer = await kinesis.describe_consumer(**asked)
    assert consumer == ConsumerDescription("etl", CONSUMER_ARN, "ACTIVE", CREATED)
    assert service.requests == [("DescribeStreamConsumer", sent)]


@pytest.mark.fault("The service describes a consumer without its ARN, or not at all")
@pytest.mark.parametrize(
    ("answer", "missing"),
    [
        (
            {"ConsumerDescription": {"ConsumerName": "etl", "ConsumerStatus": "ACTIVE"}},
            "ConsumerARN",
        ),
        ({"ConsumerDescription": {}}, "ConsumerName"),
        ({}, "ConsumerName"),
    ],
)
async def test_a_description_without_what_it_must_have_is_a_service_error(
    answer: dict[str, Any], missing: str
) -> None:
    async with connected(Service(DescribeStreamConsumer=answering(answer))) as kinesis:
        with pytest.raises(ServiceError, match=f"a consumer without its {missing}"):
            await kinesis.describe_consumer(stream_arn=STREAM_ARN, name="etl")


async def test_deregister_consumer_sends_its_arn() -> None:
    service = Service(DeregisterStreamConsumer=answering({}))
    async with connected(service) as kinesis:
        await kinesis.deregister_consumer(CONSUMER_ARN)
    assert service.requests == [("DeregisterStreamConsumer", {"ConsumerARN": CONSUMER_ARN})]


async def test_a_client_error_passes_unchanged() -> None:
    service = Service(DescribeStreamSummary=failing("ResourceNotFoundException"))
    async with connected(service) as kinesis:
        with pytest.raises(ClientError) as caught:
            await kinesis.describe_stream()
    assert caught.value.response["Error"]["Code"] == "ResourceNotFoundException"


async def test_an_unreachable_endpoint_passes_botocores_error(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with open_kinesis_client(stream="s", region="eu-west-1", endpoint_url=url) as kinesis:
        with pytest.raises(EndpointConnectionError):
            async with kinesis.subscribe(CONSUMER_ARN, "shardId-000000000000", LATEST):
                pass


async def test_an_endpoint_without_tls_is_refused() -> None:
    with pytest.raises(OptionError, match="without TLS"):
        async with open_kinesis_client(
            stream="s", region="eu-west-1", endpoint_url="http://10.0.0.1"
        ):
            pass


async def test_an_endpoint_without_tls_in_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", "http://10.0.0.1:4567")
    with pytest.raises(OptionError, match="without TLS"):
        async with open_kinesis_client(stream="s", region="eu-west-1"):
            pass


async def test_plain_http_elsewhere_is_allowed_when_spelled_out() -> None:
    async with open_kinesis_client(
        stream="s", region="eu-west-1", endpoint_url="http://10.0.0.1:1", insecure=True
    ):
        pass


async def test_missing_credentials_are_a_setup_error() -> None:
    nothing = aiobotocore.session.AioSession()
    nothing.register_component("credential_provider", AioCredentialResolver(providers=[]))
    session = aioboto3.Session(botocore_session=nothing)
    with pytest.raises(SetupError, match="credentials"):
        async with open_kinesis_client(stream="s", region="eu-west-1", session=session):
            pass


async def test_a_missing_region_is_a_setup_error() -> None:
    with pytest.raises(SetupError, match="region"):
        async with open_kinesis_client(stream="s"):
            pass


async def test_the_region_may_come_from_the_session() -> None:
    service = Service(ListShards=answering({"Shards": []}))
    session = aioboto3.Session(region_name="ap-south-1")
    async with connected(service, region=None, session=session) as kinesis:
        await kinesis.list_shards()
    assert "/ap-south-1/kinesis/" in service.authorizations[0]


def role_credentials(key: str, expiration: str) -> str:
    return f"""<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
      <AssumeRoleResult><Credentials><AccessKeyId>{key}</AccessKeyId>
      <SecretAccessKey>{SECRET}</SecretAccessKey><SessionToken>token</SessionToken>
      <Expiration>{expiration}</Expiration></Credentials></AssumeRoleResult>
    </AssumeRoleResponse>"""


ROLE = "arn:aws:iam::111122223333:role/reader"


@pytest.mark.fault("Credentials expire during a subscription")
async def test_a_role_is_assumed_again_when_its_credentials_expire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # botocore renews credentials that have less than 10 minutes left before it uses them.
    soon = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    answers = iter([role_credentials("ROLEONE", soon), role_credentials("ROLETWO", later)])
    asked: list[object] = []

    async def sts(request: web.Request) -> web.Response:
        asked.append((await request.post())["RoleArn"])
        return web.Response(text=next(answers), content_type="text/xml")

    service = Service(ListShards=answering({"Shards": []}, {"Shards": []}))
    async with serving(sts) as sts_url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts_url)
        async with connected(service, role=AssumedRole(arn=ROLE)) as kinesis:
            assert asked == [ROLE]
            await kinesis.list_shards()
            await kinesis.list_shards()
    assert asked == [ROLE, ROLE]
    assert all("ROLETWO" in each for each in service.authorizations)


async def test_retries_of_the_environment_do_not_reach_the_client_of_a_role(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    throttled = "<ErrorResponse><Error><Code>Throttling</Code></Error></ErrorResponse>"
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    answers = iter([(throttled, 400), (role_credentials("ROLE", later), 200)])

    async def sts(_request: web.Request) -> web.Response:
        text, status = next(answers)
        return web.Response(text=text, status=status, content_type="text/xml")

    def refuse(_client: object) -> None:
        raise AssertionError("the client follows the environment")

    monkeypatch.setattr("aiobotocore.retries.adaptive.register_retry_handler", refuse)
    monkeypatch.setenv("AWS_RETRY_MODE", "adaptive")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    service = Service(ListShards=answering({"Shards": []}))
    async with serving(sts) as sts_url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts_url)
        async with connected(service, role=AssumedRole(arn=ROLE)) as kinesis:
            await kinesis.list_shards()
    assert "ROLE" in service.authorizations[0]


async def test_a_role_that_may_not_be_assumed_fails_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def sts(_request: web.Request) -> web.Response:
        body = "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>"
        return web.Response(text=body, status=403, content_type="text/xml")

    async with serving(sts) as sts_url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts_url)
        role = AssumedRole(arn=ROLE)
        with pytest.raises(ClientError, match="AccessDenied"):
            async with open_kinesis_client(stream="s", region="eu-west-1", role=role):
                pass


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, {"RoleSessionName": "fanout"}),
        ({"external_id": "a-7"}, {"RoleSessionName": "fanout", "ExternalId": "a-7"}),
        ({"role_session_name": "orders@etl"}, {"RoleSessionName": "orders@etl"}),
    ],
)
async def test_a_role_is_assumed_with_its_external_id_and_session_name(
    options: dict[str, str], sent: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, object]] = []

    async def sts(request: web.Request) -> web.Response:
        asked.append(dict(await request.post()))
        later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        return web.Response(text=role_credentials("ROLE", later), content_type="text/xml")

    source = KinesisSource(stream="orders", mode="polling", role_arn=ROLE, **options)  # type: ignore[arg-type]
    async with serving(sts) as sts_url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts_url)
        async with connected(Service(), role=source.role):
            pass
    call = {"Action": "AssumeRole", "Version": "2011-06-15", "RoleArn": ROLE}
    assert asked == [call | sent]
