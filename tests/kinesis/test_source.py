from __future__ import annotations

import asyncio
import math
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aioboto3
import aiobotocore.session
import psutil
import pytest
from aiobotocore.credentials import AioCredentialResolver
from aiohttp import web
from aiohttp.test_utils import TestServer

import fanout
from fanout.core.backoff import Backoff
from fanout.core.checkpoint import Checkpoint
from fanout.core.positions import Timestamp
from fanout.errors import OptionError, ServiceError, SetupError
from fanout.kinesis import KinesisSource
from fanout.kinesis.reading.decode import SCHEMA
from fanout.testing.faults import (
    CutConnection,
    CutPoll,
    IgnoreCall,
    IgnoreSubscribe,
    RefuseSubscribe,
)
from fanout.testing.kinesis.rules import KinesisRules
from tests.support.kinesis.reading import FIRST, Stream, client, eventually, next_second, session
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from fanout.core.events import Split

SECOND, THIRD, FOURTH, FIFTH = (f"shardId-{number:012}" for number in range(1, 5))
ARN = "arn:aws:kinesis:us-east-1:111122223333:stream/orders"


@asynccontextmanager
async def answering(
    handler: Callable[[web.Request], Awaitable[web.Response]],
) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_post("/", handler)
    async with TestServer(application) as server:
        yield str(server.make_url("/"))


def test_the_columns_are_those_of_a_batch() -> None:
    assert KinesisSource(stream="orders", consumer="etl").schema is SCHEMA


@pytest.mark.fault("Records come event by event, in one subscription or in many")
async def test_trim_horizon_reads_everything(stream: Stream) -> None:
    stream.put(3)
    async with stream.reading(start="TRIM_HORIZON") as reader:
        await reader.has(3)
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log


async def test_a_record_arrives_with_all_its_columns(stream: Stream) -> None:
    ((_, number),) = stream.server.put_records("orders", [("key", b"\x00data")])
    async with stream.open() as opened:
        batch = await anext(opened)
    (row,) = batch.records.to_pylist()
    assert abs(datetime.now(UTC) - row.pop("approximateArrivalTimestamp")) < timedelta(minutes=1)
    assert row == {
        "partitionKey": "key",
        "data": b"\x00data",
        "stream": "orders",
        "shardId": FIRST,
        "sequenceNumber": number,
        "subSequenceNumber": 0,
    }


async def test_the_stream_and_the_consumer_may_be_named_by_their_arns(stream: Stream) -> None:
    with client(stream) as kinesis:
        consumer = kinesis.register_stream_consumer(StreamARN=stream.arn, ConsumerName="etl")
    stream.put(3)
    arn = consumer["Consumer"]["ConsumerARN"]
    # The region is in the ARN, and nowhere else.
    session = aioboto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing")
    async with stream.reading(stream=stream.arn, consumer=arn, session=session) as reader:
        await reader.has(3)
    assert reader.log == stream.log
    assert set(Checkpoint.from_json(reader.stream.positions).splits) == {FIRST}


async def test_latest_is_pinned_to_the_clock_of_the_service(stream: Stream) -> None:
    before = int(datetime.now(UTC).timestamp()) * 1000
    async with stream.open(start="LATEST") as opened:
        position = Checkpoint.from_json(opened.positions).splits[FIRST].position
    assert isinstance(position, Timestamp)
    assert position.millis % 1000 == 0
    assert before <= position.millis <= datetime.now(UTC).timestamp() * 1000


@pytest.mark.fault("LATEST stays the moment of its first use")
async def test_latest_skips_nothing_although_the_first_calls_fail(stream: Stream) -> None:
    stream.inject(RefuseSubscribe(times=3), CutConnection(times=2))
    async with stream.reading(start="LATEST") as reader:
        await reader.until(lambda: reader.causes)
        stream.put(3)
        await reader.has(3)
    assert reader.log == stream.log


@pytest.mark.fault("LATEST stays the moment of its first use")
async def test_latest_stays_the_moment_of_its_origin(stream: Stream) -> None:
    origin = await fanout.resolve_start(stream.source(start="LATEST"))
    stream.put(3)
    async with stream.reading(start="LATEST", resume=origin) as reader:
        await reader.has(3)
    assert reader.log == stream.log


async def test_latest_skips_old_records_even_of_shards_that_came_from_a_split(
    stream: Stream,
) -> None:
    stream.put(3)
    stream.server.split_shard("orders", FIRST)
    stream.put(10)
    await next_second()
    async with stream.reading(start="LATEST") as reader:
        stream.log.clear()
        stream.put(10)
        await reader.has(10)
        await reader.until(lambda: reader.stream.caught_up)
    assert reader.log == stream.log


async def test_a_time_reads_what_arrived_since(stream: Stream) -> None:
    stream.put(3)
    moment = await next_second()
    stream.log.clear()
    stream.put(3)
    async with stream.reading(start=moment) as reader:
        await reader.has(3)
    assert reader.log == stream.log


async def test_a_time_is_exact_to_the_millisecond(stream: Stream) -> None:
    for _ in range(10):
        stream.put(1)
        await asyncio.sleep(0.003)
    async with stream.open() as opened:
        arrived = [
            moment
            for batch in (await opened.drain(max_wait=0.2, first_wait=math.inf)).batches
            for moment in batch.records.column("approximateArrivalTimestamp").to_pylist()
        ]
    assert len(arrived) == 10
    wanted = [moment for moment in arrived if moment >= arrived[5]]
    async with stream.open(start=arrived[5]) as opened:
        drained = await opened.drain(max_wait=0.2, first_wait=math.inf)
    assert drained.num_records == len(wanted)


@pytest.mark.parametrize("shards", [3])
async def test_each_shard_begins_where_a_mapping_says(stream: Stream) -> None:
    for shard in (FIRST, SECOND, THIRD):
        stream.put(5, shard=shard)
    start = {FIRST: stream.log[FIRST][1], SECOND: await next_second(), "*": "TRIM_HORIZON"}
    stream.log[FIRST] = stream.log[FIRST][2:]
    stream.log[SECOND] = []
    for shard in (FIRST, SECOND, THIRD):
        stream.put(1, shard=shard)
    async with stream.reading(start=start) as reader:
        await reader.has(10)
        # The children of a shard are read from their beginning, independent of its start.
        stream.server.split_shard("orders", SECOND)
        stream.put(12)
        await reader.has(22)
    assert reader.log == stream.log


@pytest.mark.parametrize(
    ("start", "error"),
    [
        ({SECOND: "LATEST", "*": "LATEST"}, rf"not listed, or no longer: {SECOND}; there are"),
        ({}, rf"no position for {FIRST}; name them"),
    ],
)
async def test_a_mapping_that_does_not_fit_the_shards_is_an_error(
    stream: Stream, start: dict[str, str], error: str
) -> None:
    with pytest.raises(OptionError, match=error):
        async with stream.open(start=start):
            pass
    assert not stream.server.statistics().subscribe_calls


async def test_a_function_says_once_where_each_shard_begins(stream: Stream) -> None:
    stream.put(5)
    asked = []

    def choose(splits: Sequence[Split]) -> dict[str, str]:
        asked.append([split.id for split in splits])
        return dict.fromkeys(asked[-1], stream.log[FIRST][1])

    source = stream.source(start=choose)
    origin = await fanout.resolve_start(source)
    async with fanout.open(source, resume=origin) as opened:
        assert (await opened.drain(max_wait=0.2, first_wait=math.inf)).num_records == 3
    assert asked == [[FIRST]]


async def test_the_watermark_follows_the_arrival(stream: Stream) -> None:
    stream.put(5)
    event_time = fanout.EventTime(out_of_orderness=2.0)
    async with stream.open(start="TRIM_HORIZON", event_time=event_time) as opened:
        drained = await opened.drain(max_records=5, first_wait=math.inf)
        assert drained.num_records == 5
        newest = opened.statistics().splits[FIRST].newest
        assert newest is not None
        assert drained.watermark == opened.watermark == newest - 2001


def parents_first(order: list[str], *families: tuple[str, str]) -> bool:
    """Return whether nothing of a parent came after something of its child."""
    last = {shard: index for index, shard in enumerate(order)}
    first = {shard: index for index, shard in reversed(list(enumerate(order)))}
    return all(
        last[parent] < first[child]
        for parent, child in families
        if parent in last and child in first
    )


@pytest.mark.parametrize(
    "rules", [replace(KinesisRules.fast(), max_event_records=3)], ids=["small events"]
)
async def test_a_split_a_split_of_it_and_a_merge_are_read_to_the_end_in_order(
    stream: Stream,
) -> None:
    server = stream.server
    async with stream.reading() as reader:
        stream.put(20)
        assert server.split_shard("orders", FIRST) == (SECOND, THIRD)
        stream.put(20)
        await reader.has(40)
        assert server.split_shard("orders", SECOND) == (FOURTH, FIFTH)
        stream.put(20)
        child = server.merge_shards("orders", FIFTH, THIRD)
        stream.put(20)
        await reader.has(80)
        state = Checkpoint.from_json(reader.stream.positions).splits
    assert reader.log == stream.log
    families = [(FIRST, SECOND), (FIRST, THIRD), (SECOND, FOURTH), (SECOND, FIFTH)]
    assert parents_first(reader.order, *families, (FIFTH, child), (THIRD, child))
    assert {id_ for id_, each in state.items() if not each.ended} == {FOURTH, child}
    assert server.statistics().violations == {}


@pytest.mark.fault("A restart in the middle of a reshard, and of every reshard of many")
@pytest.mark.long
@pytest.mark.parametrize(
    "rules", [replace(KinesisRules.fast(), max_event_records=3)], ids=["small events"]
)
@pytest.mark.parametrize("taken", [0, 1, 4, 7, 10, 13])
async def test_a_restart_in_the_middle_of_a_reshard_neither_skips_nor_repeats(
    stream: Stream, taken: int
) -> None:
    stream.put(10)
    stream.server.split_shard("orders", FIRST)
    stream.put(10)
    stream.server.merge_shards("orders", SECOND, THIRD)
    stream.put(10)
    seen: dict[str, list[str]] = {}
    order = []

    def take(batch: fanout.Batch) -> int:
        order.append(batch.split.id)
        numbers = batch.records.column("sequenceNumber").to_pylist()
        seen.setdefault(batch.split.id, []).extend(numbers)
        return len(numbers)

    left = 30
    async with stream.open() as opened:
        while 30 - left < taken:
            batch = await anext(opened)
            left -= take(batch)
            await opened.acknowledge(batch)
        saved = opened.positions
    async with stream.open(resume=saved) as opened, asyncio.timeout(10):
        while left:
            left -= take(await anext(opened))
    assert seen == stream.log
    families = [(FIRST, SECOND), (FIRST, THIRD), (SECOND, FOURTH), (THIRD, FOURTH)]
    assert parents_first(order, *families)


async def test_positions_of_another_stream_are_refused(stream: Stream) -> None:
    async with stream.open() as opened:
        saved = opened.positions
    stream.server.create_stream("payments")
    with pytest.raises(fanout.PositionError, match=r"belong to .*orders .*, not to .*payments"):
        async with stream.open(resume=saved, stream="payments"):
            pass


async def test_positions_of_a_stream_that_was_deleted_and_created_again_are_refused(
    stream: Stream,
) -> None:
    stream.put(3)
    async with stream.open() as opened:
        await opened.acknowledge(await anext(opened))
        saved = opened.positions
    with client(stream) as kinesis:
        kinesis.delete_stream(StreamName="orders", EnforceConsumerDeletion=True)
    assert stream.server.create_stream("orders") == stream.arn
    stream.put(3)
    with pytest.raises(fanout.PositionError, match=r"that was deleted: .* start anew with"):
        async with stream.open(resume=saved):
            pass


@pytest.mark.fault("A consumer is of another account's stream of that name")
async def test_a_consumer_of_another_accounts_stream_is_refused_before_anything_is_read(
    stream: Stream,
) -> None:
    other = stream.arn.replace("123456789012", "222222222222")
    sentence = rf"^stream='orders' is {stream.arn} .*, but the consumer .* on {other}: set stream"
    with pytest.raises(OptionError, match=sentence):
        async with stream.open(consumer=f"{other}/consumer/etl:1"):
            pass
    assert not stream.server.statistics().subscribe_calls


async def test_polling_asks_for_no_consumer_not_even_one_of_another_account(
    stream: Stream,
) -> None:
    other = stream.arn.replace("123456789012", "222222222222")
    stream.put(1)
    async with stream.open(mode="polling", consumer=f"{other}/consumer/etl:1") as opened:
        assert (await anext(opened)).num_records == 1


@pytest.mark.fault("The stream does not exist")
async def test_a_stream_that_does_not_exist_is_named(stream: Stream) -> None:
    with pytest.raises(ServiceError, match=r"^the stream 'payments' cannot be described: .*"):
        async with stream.open(stream="payments"):
            pass


async def test_a_consumer_that_does_not_exist_is_named(stream: Stream) -> None:
    arn = f"{stream.arn}/consumer/gone:1"
    with pytest.raises(ServiceError, match=rf"^the consumer '{arn}' cannot be used: "):
        async with stream.open(consumer=arn):
            pass


@pytest.mark.fault("An event announces more bytes than are allowed")
async def test_an_event_that_is_too_large_is_named_in_the_end(stream: Stream) -> None:
    stream.server.put_records("orders", [("key", bytes(5000))])
    async with stream.reading(max_event_bytes=4000) as reader:
        failure = await reader.failed()
    assert "more than the 4000 allowed" in str(failure)


@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize("status", ["CREATING", "DELETING"])
async def test_a_stream_that_is_not_active_is_named(status: str) -> None:
    summary = {
        "StreamName": "orders",
        "StreamARN": ARN,
        "StreamStatus": status,
        "StreamCreationTimestamp": 1,
        "RetentionPeriodHours": 24,
        "OpenShardCount": 1,
    }

    async def describe(_request: web.Request) -> web.Response:
        return web.json_response({"StreamDescriptionSummary": summary})

    async with answering(describe) as url:
        source = KinesisSource(stream="orders", consumer="etl", endpoint_url=url, session=session())
        with pytest.raises(ServiceError, match=f"'orders' is {status}; it must be ACTIVE"):
            async with fanout.open(source):
                pass


@pytest.mark.long
@pytest.mark.usefixtures("aws")
async def test_missing_credentials_are_a_setup_error() -> None:
    nothing = aiobotocore.session.AioSession()
    nothing.register_component("credential_provider", AioCredentialResolver(providers=[]))
    source = KinesisSource(
        stream="orders",
        consumer="etl",
        region="us-east-1",
        session=aioboto3.Session(botocore_session=nothing),
    )
    with pytest.raises(SetupError, match="no AWS credentials were found"):
        async with fanout.open(source):
            pass


@pytest.mark.usefixtures("aws")
async def test_a_profile_that_does_not_exist_is_a_setup_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "missing")
    source = KinesisSource(stream="orders", consumer="etl", region="us-east-1")
    with pytest.raises(SetupError, match=r"profile \(missing\) could not be found"):
        async with fanout.open(source):
            pass


@pytest.mark.usefixtures("aws")
async def test_a_role_that_may_not_be_assumed_is_a_service_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def sts(_request: web.Request) -> web.Response:
        body = "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>"
        return web.Response(text=body, status=403, content_type="text/xml")

    role = "arn:aws:iam::111122223333:role/reader"
    source = KinesisSource(stream="orders", consumer="etl", role_arn=role, session=session())
    async with answering(sts) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        with pytest.raises(ServiceError, match=r"AccessDenied.*AssumeRole"):
            async with fanout.open(source):
                pass


@pytest.mark.usefixtures("aws")
async def test_an_endpoint_that_does_not_answer_is_an_error_soon(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    source = KinesisSource(stream="orders", consumer="etl", endpoint_url=url, session=session())
    async with asyncio.timeout(20):
        with pytest.raises(ServiceError, match=r"'orders' .* endpoint does not answer .*check"):
            async with fanout.open(source):
                pass


@pytest.mark.long
@pytest.mark.usefixtures("aws")
async def test_plain_http_to_another_machine_is_refused_where_the_environment_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", "http://10.0.0.1")
    session = aioboto3.Session(
        aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1"
    )
    source = KinesisSource(stream="orders", consumer="etl", session=session)
    with pytest.raises(OptionError, match="without TLS"):
        async with fanout.open(source):
            pass


@pytest.mark.parametrize(
    "rules", [replace(KinesisRules.fast(), consumer_creating=0.3)], ids=["slow consumers"]
)
async def test_a_new_consumer_is_waited_for_however_large_the_backoff(stream: Stream) -> None:
    async with asyncio.timeout(PATIENCE):
        async with stream.open(backoff=Backoff(base=3600, cap=3600)) as opened:
            stream.put(1)
            await anext(opened)
    assert stream.server.statistics().violations == {}


@asynccontextmanager
async def nothing_left(stream: Stream) -> AsyncIterator[None]:
    """Check that the block leaves no task, socket or thread behind, here or at the server."""
    tasks, before, threads = asyncio.all_tasks(), _sockets(stream), _threads()
    yield
    assert not asyncio.all_tasks() - tasks
    assert _threads() <= threads
    # asyncio closes a socket in the next turn of the loop; the server learns it from the network.
    await eventually(lambda: _sockets(stream) <= before)
    await eventually(lambda: not stream.server.statistics().open_subscriptions)


def _sockets(stream: Stream) -> int:
    """Count the connections of this process to the server."""
    port = urlsplit(stream.server.endpoint_url).port
    connections = psutil.Process().net_connections("tcp")
    return sum(bool(each.raddr) and each.raddr.port == port for each in connections)


def _threads() -> set[threading.Thread]:
    """Return the running threads but the server's and the loop's own pool."""
    others = ("asyncio_", "uvloop_", "kinesis-")
    return {thread for thread in threading.enumerate() if not thread.name.startswith(others)}


@pytest.mark.parametrize("mode", ["efo", "polling"])
@pytest.mark.parametrize("shards", [4])
async def test_closing_leaves_no_task_no_socket_and_no_thread(stream: Stream, mode: str) -> None:
    stream.put(20)
    async with nothing_left(stream), stream.open(mode=mode) as opened:
        await anext(opened)


@pytest.mark.fault("A task is cancelled at any of its steps")
@pytest.mark.parametrize("fault", [IgnoreSubscribe(), RefuseSubscribe(times=99), None])
async def test_cancelling_leaves_no_task_no_socket_and_no_thread(
    stream: Stream, fault: Any
) -> None:
    if fault is not None:
        stream.inject(fault)

    async def read() -> None:
        async with stream.open() as opened:
            await anext(opened)

    async with nothing_left(stream):
        task = asyncio.create_task(read())
        await eventually(lambda: stream.server.statistics().subscribe_calls)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("fault", [IgnoreCall(action="GetRecords"), CutPoll(times=99), None])
async def test_cancelling_a_poll_leaves_no_task_no_socket_and_no_thread(
    stream: Stream, fault: Any
) -> None:
    if fault is not None:
        stream.inject(fault)

    async def read() -> None:
        async with stream.open(mode="polling") as opened:
            await anext(opened)

    def asked() -> bool:
        statistics = stream.server.statistics()
        return bool(statistics.poll_calls or statistics.faults)

    async with nothing_left(stream):
        task = asyncio.create_task(read())
        await eventually(asked)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def consumer_names(stream: Stream) -> list[str]:
    with client(stream) as kinesis:
        listed = kinesis.list_stream_consumers(StreamARN=stream.arn)
    return [consumer["ConsumerName"] for consumer in listed["Consumers"]]


@pytest.mark.parametrize(("deregister", "left"), [("never", ["etl"]), ("on_close", [])])
async def test_a_stream_leaves_its_consumer_or_deregisters_it(
    stream: Stream, deregister: str, left: list[str]
) -> None:
    async with stream.open(deregister=deregister):
        assert consumer_names(stream) == ["etl"]
    assert consumer_names(stream) == left


async def test_a_consumer_that_existed_outlives_the_stream(stream: Stream) -> None:
    async with stream.open(), stream.open(deregister="on_close"):
        pass
    assert consumer_names(stream) == ["etl"]


async def test_an_error_in_the_block_passes_and_the_consumer_is_deregistered(
    stream: Stream,
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with stream.open(deregister="on_close"):
            raise ZeroDivisionError
    assert consumer_names(stream) == []


async def test_a_stream_that_is_cancelled_deregisters_its_consumer(stream: Stream) -> None:
    opened = asyncio.Event()

    async def read() -> None:
        async with stream.open(deregister="on_close"):
            opened.set()
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read())
        await opened.wait()
        reading.cancel()
    assert consumer_names(stream) == []
