"""Polling, end to end: what was put arrives, once and in order, and the service is not overrun."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fanout.core.checkpoint import Checkpoint
from fanout.core.positions import Cursor, Timestamp
from fanout.errors import SplitFailedError, SubscribeTimeoutError, SubscriptionSilentError
from fanout.kinesis.writing.kpl_format import encode_aggregate
from fanout.testing.faults import CutPoll, EmptyPoll, Fault, IgnoreCall, RefuseCall
from fanout.testing.kinesis.rules import KinesisRules
from tests.support.kinesis.reading import FIRST, Reader, Stream, client, eventually

if TYPE_CHECKING:
    from fanout.core.positions import Position

SECOND, THIRD, _FOURTH, FIFTH = (f"shardId-{number:012}" for number in range(1, 5))
MODES = ("efo", "polling")


def throttled(action: str, times: int = 1) -> RefuseCall:
    code = "ProvisionedThroughputExceededException"
    return RefuseCall(action=action, code=code, times=times)


def rules(**changes: float) -> KinesisRules:
    return replace(KinesisRules.fast(), **changes)  # type: ignore[arg-type]


# A rest after a large answer is added to each timeout.
NO_LIMIT = rules(polled_bytes_per_second=0)
WITHOUT_RESTS = pytest.mark.parametrize("rules", [NO_LIMIT], ids=["no rests"])


def position(checkpoint: str) -> Position:
    return Checkpoint.from_json(checkpoint).splits[FIRST].position


async def test_polling_reads_what_is_there_and_what_comes(stream: Stream) -> None:
    stream.put(3)
    async with stream.reading(mode="polling") as reader:
        await reader.has(3)
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
    assert not reader.causes


async def test_polling_registers_no_consumer_and_subscribes_to_nothing(stream: Stream) -> None:
    stream.put(3)
    async with stream.reading(mode="polling", consumer=None) as reader:
        await reader.has(3)
    with client(stream) as kinesis:
        assert kinesis.list_stream_consumers(StreamARN=stream.arn)["Consumers"] == []
    assert stream.server.statistics().subscribe_calls == {}


async def test_polling_leaves_the_consumer_that_is_named_alone(stream: Stream) -> None:
    with client(stream) as kinesis:
        kinesis.register_stream_consumer(StreamARN=stream.arn, ConsumerName="etl")
        async with stream.open(mode="polling", deregister="on_close"):
            pass
        (consumer,) = kinesis.list_stream_consumers(StreamARN=stream.arn)["Consumers"]
    assert consumer["ConsumerName"] == "etl"


@pytest.mark.parametrize("shards", [4])
async def test_every_shard_is_polled(stream: Stream) -> None:
    stream.put(200)
    async with stream.reading(mode="polling") as reader:
        await reader.has(200)
    assert reader.log == stream.log
    assert len(reader.log) == 4


async def test_latest_is_pinned_to_the_clock_of_the_service(stream: Stream) -> None:
    stream.inject(throttled("GetShardIterator", times=2), throttled("GetRecords", times=2))
    async with stream.reading(mode="polling", start="LATEST") as reader:
        await reader.until(lambda: len(reader.causes) >= 2)
        stream.put(3)
        await reader.has(3)
    assert reader.log == stream.log


@pytest.mark.fault("LATEST stays the moment of its first use")
async def test_a_time_without_records_stays_the_position(stream: Stream) -> None:
    async with stream.reading(mode="polling", start="LATEST") as reader:
        await eventually(lambda: stream.server.statistics().poll_calls.get(FIRST, 0) >= 3)
        assert isinstance(position(reader.stream.positions), Timestamp)
        stream.put(1)
        await reader.has(1)
    assert position(reader.stream.positions) == Cursor(int(stream.log[FIRST][0]))


async def test_an_idle_shard_is_caught_up(stream: Stream) -> None:
    stream.put(1)
    async with stream.reading(mode="polling") as reader:
        await reader.has(1)
        await eventually(lambda: reader.stream.caught_up)
        assert reader.stream.statistics().lag == 0


RECOVERABLE: list[tuple[Fault, str]] = [
    (throttled("GetRecords"), "ProvisionedThroughputExceededException"),
    (throttled("GetShardIterator"), "ProvisionedThroughputExceededException"),
    (RefuseCall(action="GetRecords", code="InternalFailure", status=500), "InternalFailure"),
    (RefuseCall(action="GetShardIterator", code="InternalFailure", status=500), "InternalFailure"),
    (RefuseCall(action="GetRecords", code="KMSThrottlingException"), "KMSThrottlingException"),
    (RefuseCall(action="GetRecords", status=503, html=True), "503"),
    (CutPoll(), "ClientPayloadError"),
]


@pytest.mark.parametrize(("fault", "cause"), RECOVERABLE)
async def test_after_a_first_call_that_fails_every_record_arrives_once_and_in_order(
    stream: Stream, fault: Fault, cause: str
) -> None:
    stream.put(3)
    stream.inject(fault)
    async with stream.reading(mode="polling") as reader:
        await reader.until(lambda: reader.causes)
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
    assert reader.kinds == [cause]


@pytest.mark.long
@pytest.mark.parametrize("rules", [rules(max_poll_records=2)], ids=["small answers"])
@pytest.mark.parametrize(
    ("fault", "cause"), [each for each in RECOVERABLE if "Iterator" not in repr(each)]
)
async def test_a_fault_in_the_middle_of_a_backlog_neither_skips_nor_repeats(
    stream: Stream, fault: Fault, cause: str
) -> None:
    stream.put(10)
    later: Any = fault
    stream.inject(replace(later, call=3))
    async with stream.reading(mode="polling") as reader:
        await reader.has(10)
    assert reader.log == stream.log
    assert reader.kinds == [cause]


@WITHOUT_RESTS
async def test_a_poll_without_an_answer_is_a_silence(stream: Stream) -> None:
    stream.put(3)
    stream.inject(IgnoreCall(action="GetRecords", call=3))
    async with stream.reading(mode="polling", silence_timeout=0.3) as reader:
        await reader.until(lambda: reader.causes)
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
    assert isinstance(reader.causes[0], SubscriptionSilentError)


@WITHOUT_RESTS
@pytest.mark.parametrize("action", ["GetRecords", "GetShardIterator"])
async def test_first_calls_without_an_answer_are_made_again(stream: Stream, action: str) -> None:
    stream.put(3)
    stream.inject(IgnoreCall(action=action))
    async with stream.reading(mode="polling", subscribe_timeout=0.3) as reader:
        await reader.has(3)
    assert reader.log == stream.log
    assert isinstance(reader.causes[0], SubscribeTimeoutError)


@pytest.mark.fault("The very first call is denied")
@pytest.mark.parametrize("action", ["GetRecords", "GetShardIterator"])
async def test_a_denied_first_call_is_fatal_and_the_only_one(stream: Stream, action: str) -> None:
    stream.inject(RefuseCall(action=action, times=10))
    async with stream.reading(mode="polling") as reader:
        failure = await reader.failed()
    assert f"grant kinesis:{action} on the stream" in str(failure)
    assert stream.server.statistics().faults == {"RefuseCall": 1}


async def test_a_poll_that_is_denied_later_is_made_again(stream: Stream) -> None:
    stream.put(3)
    async with stream.reading(mode="polling") as reader:
        await reader.has(3)
        stream.inject(RefuseCall(action="GetRecords"))
        await reader.until(lambda: reader.causes)
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log


async def test_an_iterator_that_expired_is_replaced_without_a_word(stream: Stream) -> None:
    stream.put(3)
    async with stream.reading(mode="polling") as reader:
        await reader.has(3)
        stream.inject(RefuseCall(action="GetRecords", code="ExpiredIteratorException"))
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
    assert not reader.causes


async def test_a_new_iterator_that_has_expired_is_a_failure(stream: Stream) -> None:
    stream.put(3)
    expired = RefuseCall(action="GetRecords", code="ExpiredIteratorException", times=2)
    async with stream.reading(mode="polling") as reader:
        await reader.has(3)
        stream.inject(expired)
        await reader.until(lambda: reader.causes)
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
    assert reader.kinds == ["ExpiredIteratorException"]


async def test_empty_answers_behind_the_tip_are_polled_on(stream: Stream) -> None:
    stream.put(3)
    stream.inject(EmptyPoll(times=5))
    async with stream.reading(mode="polling") as reader:
        await reader.has(3)
    assert reader.log == stream.log
    assert not reader.causes


async def test_max_retries_failures_in_a_row_are_fatal(stream: Stream) -> None:
    stream.inject(throttled("GetRecords", times=3))
    async with stream.reading(mode="polling", max_retries=2) as reader:
        failure = await reader.failed()
    assert "max_retries=2" in str(failure)


async def test_an_answer_that_is_too_large_is_named_in_the_end(stream: Stream) -> None:
    stream.put(100)
    async with stream.reading(mode="polling", max_event_bytes=1000) as reader:
        with pytest.raises(SplitFailedError, match=r"GetRecords announces \d+ bytes, more than"):
            await reader.has(1)


@pytest.mark.parametrize("rules", [rules(max_poll_records=3)], ids=["small answers"])
async def test_a_split_a_split_of_it_and_a_merge_are_polled_to_the_end_in_order(
    stream: Stream,
) -> None:
    server = stream.server
    async with stream.reading(mode="polling") as reader:
        stream.put(20)
        server.split_shard("orders", FIRST)
        stream.put(20)
        await reader.has(40)
        server.split_shard("orders", SECOND)
        stream.put(20)
        child = server.merge_shards("orders", FIFTH, THIRD)
        stream.put(20)
        await reader.has(80)
    assert reader.log == stream.log
    assert not reader.causes
    assert child in reader.log


async def read_by_turns(stream: Stream, count: int, *, size: int) -> list[str]:
    """Read so many records at a time, each time in the other mode, and go on where it stopped."""
    read: list[str] = []
    resume, turn = None, 0
    while len(read) < count:
        mode = MODES[turn % 2]
        async with stream.open(resume=resume, mode=mode) as opened:
            drained = await opened.drain(max_records=size, first_wait=math.inf)
            for batch in drained.batches:
                read += batch.records.column("data").cast("string").to_pylist()
            await opened.acknowledge(drained)
            resume, turn = opened.positions, turn + 1
    return read


async def test_a_stream_changes_its_mode_between_any_two_runs(stream: Stream) -> None:
    stream.put(20)
    assert await read_by_turns(stream, 20, size=3) == [str(number) for number in range(20)]


@pytest.mark.long
@pytest.mark.fault("A restart in the middle of an aggregated record neither repeats nor skips a")
async def test_a_stream_changes_its_mode_in_the_middle_of_an_aggregated_record(
    stream: Stream,
) -> None:
    data = [str(number) for number in range(30)]
    records = [data[start : start + 5] for start in range(0, 30, 5)]
    stream.server.put_records(
        "orders",
        [("key", encode_aggregate([("key", each.encode()) for each in part])) for part in records],
    )
    assert await read_by_turns(stream, 30, size=3) == data


@pytest.mark.long
async def test_a_stream_changes_its_mode_while_it_is_split(stream: Stream) -> None:
    stream.put(10)
    server, resume, read = stream.server, None, Reader()
    for turn, mode in enumerate(MODES * 3):
        async with stream.reading(resume=resume, mode=mode) as reader:
            stream.put(10)
            if turn in {1, 4}:
                server.split_shard("orders", FIRST if turn == 1 else SECOND)
            await reader.has(stream.put_in_all - read.count)
            resume = reader.stream.positions
        for shard, numbers in reader.log.items():
            read.log[shard] += numbers
    assert read.log == stream.log


async def test_an_idle_position_of_a_consumer_is_gone_on_from(stream: Stream) -> None:
    stream.put(1)
    async with stream.reading() as reader:
        await reader.has(1)
        read = Cursor(int(stream.log[FIRST][0]))
        await eventually(lambda: position(reader.stream.positions) != read)
        resume = reader.stream.positions
    stream.log.clear()
    stream.put(3)
    async with stream.reading(resume=resume, mode="polling") as reader:
        await reader.has(3)
    assert reader.log == stream.log


@pytest.mark.parametrize(
    "rules", [replace(rules(), polls_per_second=5, max_poll_records=2)], ids=["real rates"]
)
async def test_no_rate_of_the_service_is_broken_when_a_subscription_fails(stream: Stream) -> None:
    stream.put(10)
    stream.inject(CutPoll(call=2), CutPoll(call=3))
    async with stream.reading(mode="polling") as reader:
        await reader.has(10)
    assert reader.log == stream.log
    assert reader.kinds == ["ClientPayloadError"] * 2
    assert stream.server.statistics().violations == {}


async def test_a_rest_of_the_shard_is_no_silence_of_the_service(stream: Stream) -> None:
    records = [("key", bytes(100_000))] * 25
    stream.server.put_records("orders", records)
    async with stream.reading(mode="polling", silence_timeout=0.2) as reader:
        await reader.has(25)
        stream.put(1)
        await reader.has(26)
    assert not reader.causes
    assert stream.server.statistics().violations == {}


@pytest.mark.parametrize("rules", [replace(rules(), polls_per_second=5)], ids=["real rates"])
async def test_two_pollers_of_one_shard_get_in_each_others_way_and_lose_nothing(
    stream: Stream,
) -> None:
    async with stream.reading(mode="polling") as one, stream.reading(mode="polling") as other:
        for _ in range(3):
            stream.put(10)
            await one.has(stream.put_in_all)
            await other.has(stream.put_in_all)
    assert one.log == other.log == stream.log


async def test_a_stream_that_is_deleted_ends_the_polling_with_its_name(stream: Stream) -> None:
    stream.put(3)
    with client(stream) as kinesis:
        async with stream.reading(mode="polling", discovery_interval=60) as reader:
            await reader.has(3)
            await asyncio.to_thread(
                kinesis.delete_stream, StreamName="orders", EnforceConsumerDeletion=True
            )
            failure = await reader.failed()
    assert "the stream 'orders' is gone: it was deleted" in str(failure)


async def poll_two_of_six_and_expire(stream: Stream) -> str:
    """Leave four records unread until they have expired, and put six more."""
    stream.put(6)
    async with stream.open(mode="polling") as opened:
        await opened.acknowledge(await opened.drain(max_records=2, first_wait=math.inf))
        saved = opened.positions
    stream.server.expire("orders")
    stream.log.clear()
    stream.put(6)
    return saved


async def test_records_that_expired_before_they_were_polled_end_the_stream(stream: Stream) -> None:
    saved = await poll_two_of_six_and_expire(stream)
    async with stream.reading(resume=saved, mode="polling") as reader:
        failure = await reader.failed()
    assert "is past the stream's retention" in str(failure)
    assert reader.count == 0


async def test_records_that_expired_are_a_counted_gap_where_that_is_allowed(
    stream: Stream,
) -> None:
    saved = await poll_two_of_six_and_expire(stream)
    async with stream.reading(resume=saved, mode="polling", on_data_loss="earliest") as reader:
        await reader.has(6)
        assert reader.stream.statistics().splits[FIRST].gaps == 1
    assert reader.log == stream.log


async def test_an_idle_shard_whose_records_have_expired_is_polled_on(stream: Stream) -> None:
    stream.put(3)
    async with stream.reading(mode="polling") as reader:
        await reader.has(3)
        stream.server.expire("orders")
        stream.inject(throttled("GetRecords"))
        await reader.until(lambda: reader.causes)
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
