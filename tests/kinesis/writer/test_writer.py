"""The writer on the embedded Kinesis: what it puts, in which order, and through which failures."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest

from fanout.errors import (
    FanOutError,
    OptionError,
    ServiceError,
    StreamStateError,
    UnwritableRecordError,
    WriteTimeoutError,
)
from fanout.kinesis import open_writer, read_deduplication_ids
from fanout.kinesis.writing import sender
from fanout.kinesis.writing.entries import make_entries
from fanout.kinesis.writing.shard_queues import MAX_RECORDS
from fanout.testing.faults import CutPut, Fault, IgnoreCall, RefuseCall, RefuseRecords
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.virtual_time.cancellation import Cancellation, Moment
from tests.support.kinesis.reading import FIRST, eventually
from tests.support.kinesis.writers import first_occurrences, numbered, read, rows, writing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.support.kinesis.reading import Stream

BIG = bytes((1 << 20) - 5)  # with its key the most that a stream takes


def expected(count: int, keys: int) -> dict[str, list[bytes]]:
    return {f"key-{k}": [b"%d" % n for n in range(k, count, keys)] for k in range(keys)}


@pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.long), 3])
@pytest.mark.parametrize("aggregate", [False, True])
async def test_records_arrive_in_the_order_of_their_keys(
    stream: Stream, *, aggregate: bool
) -> None:
    async with writing(stream, aggregate=aggregate) as writer:
        for first in range(0, 2_000, 500):
            await writer.write(numbered(500, 40, first))
        await writer.flush()
        assert await read(stream) == expected(2_000, 40)
        await writer.write([])


async def test_a_record_batch_is_written_like_rows(stream: Stream) -> None:
    batch = pa.record_batch(
        {
            "partitionKey": ["ä", "b"],
            "data": ["text", "more"],
            "explicitHashKey": ["0", None],
        }
    )
    async with writing(stream) as writer:
        await writer.write(batch)
    assert await read(stream) == {"ä": [b"text"], "b": [b"more"]}


@pytest.mark.parametrize("shards", [2])
async def test_an_explicit_hash_key_decides_the_shard(stream: Stream) -> None:
    most = str(2**128 - 1)
    given = [{"partitionKey": "k", "data": b"1", "explicitHashKey": each} for each in ("0", most)]
    async with writing(stream, aggregate=True) as writer:
        await writer.write(given * 3)
    async with stream.open() as running:
        found = [await anext(running) for _ in range(2)]
    assert {batch.split.id for batch in found} == {FIRST, "shardId-000000000001"}


async def test_aggregation_puts_many_records_of_a_key_in_one(stream: Stream) -> None:
    async with writing(stream, aggregate=True) as writer:
        await writer.write(numbered(5_000, 2))
    assert await read(stream) == expected(5_000, 2)
    async with stream.open() as running:
        found = (await running.drain(max_records=5_000, max_wait=10.0)).batches
    numbers = {number for batch in found for number in batch.records["sequenceNumber"].to_pylist()}
    assert len(numbers) < 100


FAULTS: dict[str, list[Fault]] = {
    "some records fail": [RefuseRecords(every=3, times=5)],
    "all records fail": [RefuseRecords(times=3)],
    "a shard throttles": [
        RefuseRecords(shard=FIRST, code="ProvisionedThroughputExceededException", times=4)
    ],
    "calls fail": [
        RefuseCall(action="PutRecords", status=500, code="InternalFailure", times=2),
        RefuseCall(action="PutRecords", status=503, html=True, call=2),
        RefuseCall(action="PutRecords", code="LimitExceededException", call=3),
    ],
    "answers are lost": [CutPut(times=2), CutPut(call=3)],
}


@pytest.mark.fault("Some records of a call fail, or a shard throttles")
@pytest.mark.long
@pytest.mark.parametrize("shards", [2])
@pytest.mark.parametrize("aggregate", [False, True])
@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
async def test_no_record_is_lost_and_each_key_keeps_its_order(
    stream: Stream, faults: list[Fault], *, aggregate: bool
) -> None:
    stream.inject(*faults)
    async with writing(stream, aggregate=aggregate) as writer:
        await writer.write(numbered(3_000, 30))
    found = await read(stream)
    assert {key: first_occurrences(data) for key, data in found.items()} == expected(3_000, 30)
    repeated = sum(map(len, found.values())) - 3_000
    assert (repeated > 0) is any(isinstance(fault, CutPut) for fault in faults)
    assert stream.server.statistics().faults


@pytest.mark.fault("Some records of a call fail, or a shard throttles")
async def test_only_the_failed_records_are_put_again(stream: Stream) -> None:
    stream.inject(RefuseRecords(every=2))
    async with writing(stream) as writer:
        await writer.write(numbered(100, 100))
    found = await read(stream)
    assert found == expected(100, 100)


@pytest.mark.fault("Some records of a call fail, or a shard throttles")
@pytest.mark.long
@pytest.mark.parametrize("rules", [KinesisRules(heartbeat=0.05, put_records_per_second=200)])
@pytest.mark.parametrize("shards", [2])
async def test_the_limits_of_a_shard_are_kept_by_waiting(stream: Stream) -> None:
    async with writing(stream) as writer:
        await writer.write(numbered(900, 90))
    assert await read(stream) == expected(900, 90)


@pytest.mark.fault("Shards are split and merged while records are put")
@pytest.mark.long
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("aggregate", [False, True])
async def test_resharding_while_writing_loses_nothing_and_keeps_the_order(
    stream: Stream, *, aggregate: bool
) -> None:
    server = stream.server
    async with writing(stream, aggregate=aggregate) as writer:
        for first in range(0, 3_000, 500):
            await writer.write(numbered(500, 25, first))
            if first == 500:
                children = await asyncio.to_thread(server.split_shard, "orders", FIRST)
            if first == 1_500:
                stream.inject(RefuseRecords(every=2, times=2))
                merged = await asyncio.to_thread(server.merge_shards, "orders", *children)
        # Every key is now queued for the shard that has it.
        queues = writer._sender._queues
        await eventually(lambda: merged in queues._shards.ids and FIRST not in queues._shards.ids)
    found = await read(stream, discovery_interval=0.1)
    assert found == expected(3_000, 25)


async def test_a_call_after_the_block_is_refused_at_once(stream: Stream) -> None:
    async with writing(stream) as writer:
        await writer.write(rows(("a", b"1")))
    calls: list[Callable[[], Awaitable[None]]]
    calls = [lambda: writer.write(rows(("a", b"2"))), writer.flush]
    for call in calls * 2:
        with pytest.raises(StreamStateError, match="the writer is closed"):
            await call()


async def test_what_tasks_have_written_when_the_block_is_left_is_there(stream: Stream) -> None:
    given = numbered(300, 25)
    async with writing(stream, max_bytes_in_flight=1_000) as writer:
        tasks = [asyncio.create_task(writer.write([row])) for row in given]
        await asyncio.sleep(0)
    assert set(await asyncio.gather(*tasks, return_exceptions=True)) == {None}
    assert await read(stream, discovery_interval=0.1) == expected(300, 25)


async def test_a_flush_that_waits_when_the_block_is_left_ends(stream: Stream) -> None:
    stream.inject(IgnoreCall(action="PutRecords"))
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - nothing is flushed then
        async with writing(stream) as writer:
            await writer.write(rows(("a", b"1")))
            flushing = asyncio.create_task(writer.flush())
            await asyncio.sleep(0)
            raise ZeroDivisionError
    with pytest.raises(StreamStateError, match="the writer is closed"):
        await flushing


async def test_waiting_bytes_are_bounded(stream: Stream) -> None:
    stream.inject(IgnoreCall(action="PutRecords"))
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - nothing is flushed then
        async with writing(stream, max_bytes_in_flight=1_000) as writer:
            await writer.write(rows(("a", bytes(900))))
            waiting = asyncio.create_task(writer.write(rows(("b", bytes(900)))))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not waiting.done()
            waiting.cancel()
            await asyncio.wait([waiting])
            raise ZeroDivisionError


@pytest.mark.fault("A task is cancelled while it writes: the writer goes on")
@pytest.mark.long
@pytest.mark.parametrize("moment", Moment)
async def test_a_call_that_is_cancelled_leaves_the_writer_as_it_was(
    stream: Stream, moment: Moment
) -> None:
    step, beyond, first = 0, False, 0
    async with writing(stream, max_bytes_in_flight=20) as writer:
        while not beyond:
            step += 1
            cancellation = Cancellation(step, moment)

            async def work(first: int = first) -> None:
                await writer.write(numbered(6, 2, first))
                await writer.flush()

            await cancellation.run(work())
            first += 6
            beyond = cancellation.beyond
        await writer.flush()
    assert step > 3
    found = await read(stream)
    for data in found.values():
        numbers = [int(value) for value in data]
        assert numbers == sorted(set(numbers)), "in order, and none twice"
    assert b"%d" % (first - 1) in found["key-1"]


@pytest.mark.fault("A put is denied, or its credentials expire")
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (
            RefuseCall(action="PutRecords", code="AccessDeniedException", times=9),
            "grant kinesis:PutRecords and kinesis:ListShards",
        ),
        (
            RefuseCall(action="PutRecords", code="ResourceNotFoundException", times=9),
            "check the stream's name",
        ),
        (
            RefuseCall(action="PutRecords", code="ValidationException", times=9),
            "records cannot be put into the stream",
        ),
        (
            RefuseCall(action="PutRecords", code="KMSAccessDeniedException", times=9),
            "grant kms:GenerateDataKey",
        ),
    ],
)
async def test_what_the_service_refuses_for_good_is_an_error_that_says_what_to_do(
    stream: Stream, fault: Fault, says: str
) -> None:
    stream.inject(fault)
    with pytest.raises(ServiceError, match=says):  # noqa: PT012 - leaving the block flushes
        async with writing(stream) as writer:
            await writer.write(rows(("a", "1")))
            for call in (writer.flush(), writer.flush(), writer.write(rows(("a", "2")))):
                with pytest.raises(ServiceError, match=says):
                    await call


@pytest.mark.fault("A put is denied, or its credentials expire")
async def test_credentials_that_expire_are_renewed(stream: Stream) -> None:
    async with writing(stream) as writer:
        await writer.write(rows(("a", "1")))
        await writer.flush()
        stream.inject(RefuseCall(action="PutRecords", code="ExpiredTokenException"))
        await writer.write(rows(("a", "2")))
    assert await read(stream) == {"a": [b"1", b"2"]}


@pytest.mark.fault("Records are never taken")
@pytest.mark.parametrize(
    "fault",
    [
        RefuseRecords(times=1_000, code="ProvisionedThroughputExceededException"),
        RefuseCall(action="PutRecords", status=500, code="InternalFailure", times=1_000),
    ],
)
async def test_records_that_are_never_taken_are_an_error_in_time(
    stream: Stream, fault: Fault
) -> None:
    stream.inject(fault)
    with pytest.raises(WriteTimeoutError, match="within delivery_timeout") as caught:
        async with writing(stream, delivery_timeout=0.3) as writer:
            await writer.write(rows(("a", "1")))
    assert caught.value.retryable


@pytest.mark.fault("The answer to a put is lost or never comes")
async def test_a_call_without_an_answer_is_made_again(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "_CALL_TIMEOUT", 2.0)  # the second call ends within it
    stream.inject(IgnoreCall(action="PutRecords"))
    async with writing(stream) as writer:
        await writer.write(rows(("a", "1")))
    assert await read(stream) == {"a": [b"1"]}


async def test_a_stream_that_does_not_exist_is_an_error(stream: Stream) -> None:
    with pytest.raises(ServiceError, match="the shards of 'elsewhere' cannot be listed"):
        async with writing(stream, stream="elsewhere"):
            raise AssertionError


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([{"data": b"canary"}], "a record has no partitionKey, and the service does not"),
        ([{"partitionKey": "k"}], "no column 'data'"),
        (rows(("", b"canary")), "must have 1 to 256 characters"),
        (rows(("k" * 257, b"canary")), "must have 1 to 256 characters"),
        (
            rows(("k", bytes(1 << 20))),
            r"a record takes 1048577 bytes .* more than the 1048576 that",
        ),
        ([{"partitionKey": "k", "data": b"canary", "headers": 1}], "'headers' that Kinesis cannot"),
        ([{"partitionKey": "k", "data": 1.5}], "'data' of a row cannot be made binary"),
        ([{"partitionKey": None, "data": b"canary"}], "a record has no partitionKey"),
        (
            [{"partitionKey": "k", "data": b"canary", "explicitHashKey": "-1"}],
            "an explicit hash key that is not a number",
        ),
        (
            [{"partitionKey": "k", "data": b"canary", "deduplicationId": b"short"}],
            "the deduplicationId of a record must have 16 bytes",
        ),
        (pa.record_batch({"partitionKey": [1], "data": [b"x"]}), None),
        (pa.record_batch({"partitionKey": ["k"], "data": [1.5]}), "'data' has the type double"),
    ],
)
async def test_what_kinesis_has_no_place_for_is_refused_before_it_is_put(
    stream: Stream, given: Any, says: str | None
) -> None:
    async with writing(stream) as writer:
        if says is None:
            await writer.write(given)
            return
        with pytest.raises(UnwritableRecordError, match=says) as caught:
            await writer.write(given)
        assert "canary" not in str(caught.value)
        await writer.write(rows(("k", b"2")))
    assert await read(stream) == {"k": [b"2"]}


async def test_many_and_large_records_fit_into_calls(stream: Stream) -> None:
    async with writing(stream) as writer:
        await writer.write(numbered(2 * MAX_RECORDS, MAX_RECORDS + 1))
        await writer.write(rows(*((f"big-{n}", BIG) for n in range(8))))
    found = await read(stream)
    assert len(found) == MAX_RECORDS + 1 + 8
    assert found["big-7"] == [BIG]


@pytest.mark.fault("The answer to a put is lost or never comes")
async def test_ids_are_read_back_and_records_without_one_stay(stream: Stream) -> None:
    ids = [UUID(int=n).bytes for n in (1, 2)]
    async with writing(stream) as writer:
        await writer.write(
            [
                {"partitionKey": "k", "data": b"", "deduplicationId": ids[0]},
                {"partitionKey": "k", "data": b"two", "deduplicationId": ids[1]},
            ]
        )
        await writer.write(rows(("k", b"three")))
    async with stream.open(decode=read_deduplication_ids) as running:
        drained = await running.drain(max_records=3, max_wait=10.0)
    found = [row for batch in drained.batches for row in batch.records.to_pylist()]
    assert [(row["data"], row["deduplicationId"]) for row in found] == [
        (b"", ids[0]),
        (b"two", ids[1]),
        (b"three", None),
    ]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"stream": "no name"}, "neither a stream's name nor its ARN"),
        ({"max_record_bytes": 0}, "max_record_bytes=0 must be from 1"),
        ({"max_record_bytes": 11 << 20}, "must be from 1 to 10485760"),
        ({"max_bytes_in_flight": 0}, "max_bytes_in_flight=0 must be at least 1"),
        ({"delivery_timeout": 0}, "delivery_timeout=0 must be more than 0"),
        ({"endpoint_url": "http://example.com"}, "would be used without TLS"),
        ({"region": 1}, "region must be a string"),
        (
            {"stream": "arn:aws:kinesis:eu-west-1:111122223333:stream/s", "region": "us-east-1"},
            "contradicts the ARN",
        ),
    ],
)
def test_malformed_options_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        open_writer(**{"stream": "orders"} | wrong)


def test_entries_are_checked_before_the_first_is_made() -> None:
    with pytest.raises(FanOutError):
        make_entries(rows(("k", b"12"), ("", b"123")))
