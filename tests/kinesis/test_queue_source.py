"""A queue as a source: each record once, acknowledged when it is asked for, hidden meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest

import fanout
from fanout.decoding import Avro, SchemaRegistry
from fanout.errors import AcknowledgementError, OptionError, ServiceError
from fanout.kinesis import KinesisQueueSource
from fanout.kinesis.queue.client import QueueClient
from fanout.testing.faults import RefuseCall
from tests.support.avro_records import ORDER, ORDERS, framed, written
from tests.support.kinesis.queue import QUEUE, STREAM, EmbeddedWork, numbers_of
from tests.support.kinesis.reading import eventually
from tests.support.schema_registry import embedded_registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.core.fan_out import FanOut


@pytest.fixture
def work(aws: None) -> Iterator[EmbeddedWork]:  # noqa: ARG001 - used for what it does
    with EmbeddedWork() as work:
        yield work


async def take(stream: FanOut, count: int) -> Counter[int]:
    """Take and acknowledge so many records."""
    seen: Counter[int] = Counter()
    async with asyncio.timeout(60):
        async for batch in stream:
            seen.update(numbers_of(batch))
            await stream.acknowledge(batch)
            if seen.total() >= count:
                return seen
    raise AssertionError("the stream ended")


async def first(stream: FanOut) -> Any:
    async with asyncio.timeout(60):
        async for batch in stream:
            if batch.num_records:
                return batch
    raise AssertionError("the stream ended")


@pytest.mark.parametrize(
    "receivers", [3, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 16))]
)
async def test_every_record_comes_once_however_many_receivers_there_are(
    work: EmbeddedWork, receivers: int
) -> None:
    work.put(range(2_000))
    async with fanout.open(work.source(receivers=receivers)) as stream:
        assert await take(stream, 2_000) == Counter(range(2_000))
        counts = stream.lending.statistics
        assert (counts.acquired, counts.accepted, counts.expired) == (2_000, 2_000, 0)
        assert counts.pending_records == 0
    assert work.acknowledged()


async def test_the_columns_are_those_of_the_record(work: EmbeddedWork) -> None:
    work.put([7])
    async with fanout.open(work.source()) as stream:
        batch = await first(stream)
        assert batch.records.schema == work.source().schema
        (row,) = batch.records.to_pylist()
        assert (row["data"], row["partitionKey"]) == (b"7", "key-7")
        assert (row["stream"], row["queue"], row["receiveCount"]) == (STREAM, QUEUE, 1)
        assert row["approximateArrivalTimestamp"] is not None
        await stream.acknowledge(batch)


async def test_what_is_not_acknowledged_comes_back_when_the_stream_closes(
    work: EmbeddedWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, received = QueueClient.receive, list[Any]()

    async def receive_and_count(client: QueueClient, *args: Any, **options: Any) -> Any:
        answer = await receive(client, *args, **options)
        received.extend(answer)
        return answer

    monkeypatch.setattr(QueueClient, "receive", receive_and_count)
    work.put(range(10))
    async with fanout.open(work.source(visibility_timeout=600)) as stream:
        batch = await first(stream)
        work.put(range(10, 30))  # these are not in the batch, however fast they are received
        await eventually(lambda: len(received) == 30)
        await stream.acknowledge(batch)
        done = numbers_of(batch)
    async with fanout.open(work.source()) as stream:
        rest = await take(stream, 30 - len(done))
        assert rest == Counter(set(range(30)) - set(done))


@pytest.mark.long
async def test_giving_back_is_tried_again_when_the_stream_closes(work: EmbeddedWork) -> None:
    work.put([1])
    async with fanout.open(work.source(visibility_timeout=600)) as stream:
        await first(stream)
        action = "UpdateQueueRecordsVisibility"
        work.server.inject(RefuseCall(action=action, code="ThrottlingException", times=2))
    async with fanout.open(work.source()) as stream:
        assert await take(stream, 1) == Counter([1])


@pytest.mark.long  # it waits for as long as a close may take
async def test_giving_back_does_not_wait_for_what_the_service_refuses_at_a_close(
    work: EmbeddedWork,
) -> None:
    work.put([1])
    async with fanout.open(work.source(visibility_timeout=600)) as stream:
        batch = await first(stream)
        work.server.inject(
            RefuseCall(action="AcknowledgeQueueRecords", code="ThrottlingException", times=9_999)
        )
        settling = asyncio.create_task(stream.acknowledge(batch))
        work.put([2])
        assert numbers_of(await first(stream)) == [2]
    with pytest.raises(AcknowledgementError):
        await settling
    async with fanout.open(work.source()) as stream:
        assert numbers_of(await first(stream)) == [2]


async def test_a_record_stays_hidden_while_its_batch_is_worked_on(work: EmbeddedWork) -> None:
    work.put(range(10))
    async with fanout.open(work.source(visibility_timeout=4)) as stream:
        batches = [await first(stream)]
        while sum(each.num_records for each in batches) < 10:
            batches.append(await first(stream))
        await asyncio.sleep(6)
        assert await asyncio.to_thread(work.receive) == []
        for batch in batches:
            await stream.acknowledge(batch)
        assert stream.lending.statistics.redelivered == 0
    assert work.acknowledged()


async def test_a_released_batch_comes_again(work: EmbeddedWork) -> None:
    work.put([1])
    async with fanout.open(work.source()) as stream:
        batch = await first(stream)
        await stream.lending.release(batch)
        again = await first(stream)
        assert again.records.column("receiveCount").to_pylist() == [2]
        assert again.records.column("recordId").equals(batch.records.column("recordId"))
        await stream.acknowledge(again)


async def test_a_rejected_record_becomes_a_dead_letter_and_is_not_delivered_again(
    work: EmbeddedWork,
) -> None:
    work.put([1])
    async with fanout.open(work.source()) as stream:
        batch = await first(stream)
        await stream.lending.reject(batch, [0], reason="no such order")
        work.put([2])
        other = await first(stream)
        assert numbers_of(other) == [2]
        await stream.acknowledge(other)
        await eventually(lambda: stream.lending.statistics.dead_letters)
        assert stream.lending.statistics.rejected == 1
    (dead,) = await asyncio.to_thread(lambda: work.receive(dead=True))
    assert dead["Data"] == b"1"


async def test_a_record_that_is_stolen_while_it_is_held_is_delivered_once(
    work: EmbeddedWork,
) -> None:
    """The queue makes it visible, as if its time were over; the stream receives it again."""
    work.put([1])
    async with fanout.open(work.source()) as stream:
        batch = await first(stream)
        (queue,) = work.server._stream(STREAM).queues
        with queue.stream.lock:
            (receipt,) = queue._by_receipt
            assert queue.settle(receipt, 0, dead=False) is None
        await eventually(lambda: stream.lending.statistics.repeated)
        await stream.acknowledge(batch)
        work.put([2])
        assert await take(stream, 1) == Counter([2])
    assert work.acknowledged()


async def test_a_lost_lock_is_told_by_the_acknowledgement(work: EmbeddedWork) -> None:
    work.put([1])
    async with fanout.open(work.source(receivers=1)) as stream:
        batch = await first(stream)
        stream.capabilities.lending.pause()  # type: ignore[union-attr]
        (queue,) = work.server._stream(STREAM).queues
        with queue.stream.lock:
            (record,) = queue._by_receipt.values()
            queue._forget(record)
        with pytest.raises(AcknowledgementError, match=batch.records["recordId"][0].as_py()):
            await stream.acknowledge(batch)


@pytest.mark.parametrize(
    "fault",
    [
        RefuseCall(action="AcknowledgeQueueRecords", code="ThrottlingException", times=3),
        pytest.param(
            RefuseCall(action="ReceiveQueueRecords", code="ThrottlingException", times=3),
            marks=pytest.mark.long,
        ),
        RefuseCall(action="ReceiveQueueRecords", code="InternalFailureException", times=3),
    ],
    ids=lambda fault: f"{fault.action}-{fault.code}",
)
async def test_what_the_service_refuses_for_now_is_tried_again(
    work: EmbeddedWork, fault: RefuseCall
) -> None:
    work.put(range(100))
    work.server.inject(fault)
    backoff = fanout.Backoff(base=0.01, cap=0.1)
    async with fanout.open(work.source(backoff=backoff)) as stream:
        assert await take(stream, 100) == Counter(range(100))
    assert work.acknowledged()


async def test_a_queue_that_is_deleted_ends_the_stream(work: EmbeddedWork) -> None:
    work.put([1])
    async with fanout.open(work.source()) as stream:
        await take(stream, 1)
        await asyncio.to_thread(work.call, "DeleteQueue", QueueARN=work.arn)
        with pytest.raises(fanout.FanOutError, match="the queue is gone"):
            await first(stream)


async def test_schemas_come_from_a_registry(work: EmbeddedWork) -> None:
    with embedded_registry() as embedded:
        number = embedded.register("orders-value", ORDER)
        payloads = framed(number, written(ORDER, ORDERS))
        work.server.put_records(STREAM, [("key", each) for each in payloads])
        decode = Avro(ORDER, registry=SchemaRegistry(embedded.url))
        found: list[Any] = []
        async with fanout.open(work.source(decode=decode)) as stream:
            while len(found) < len(ORDERS):
                batch = await first(stream)
                found += batch.records.select(list(ORDERS[0])).to_pylist()
                await stream.acknowledge(batch)
    assert sorted(found, key=lambda row: row["id"]) == ORDERS


async def test_decode_may_leave_out_and_refuse_records(work: EmbeddedWork) -> None:
    def decode(records: Any) -> Any:
        if b"3" in records.column("data").to_pylist():
            raise ValueError("three")
        return records.slice(0, max(0, records.num_rows))

    # A call that waits for records when its stream closes may take the next one, and nobody has it
    # until its visibility timeout is over.
    soon: dict[str, Any] = {"decode": decode, "visibility_timeout": 4}
    work.put(range(6))
    async with fanout.open(work.source(**soon, on_bad_record="dead_letter")) as stream:
        assert await take(stream, 5) == Counter([0, 1, 2, 4, 5])
        assert stream.lending.statistics.rejected == 1
    work.put([3])
    async with fanout.open(work.source(**soon)) as stream:
        with pytest.raises(fanout.FanOutError, match="decode failed"):
            await first(stream)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": "a b"}, "neither a stream's name"),
        ({"queue": "a/b"}, "neither a queue's name"),
        ({"receivers": 0}, "receivers"),
        ({"visibility_timeout": 3}, "from 4 to 43200"),
        ({"max_poll_records": 10_000}, "max_poll_records"),
        ({"on_bad_record": "gap"}, "on_bad_record"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        KinesisQueueSource(**({"stream": "a", "queue": "b"} | options))


async def test_a_queue_that_is_not_there_is_an_error(work: EmbeddedWork) -> None:
    with pytest.raises(ServiceError, match="has no queue 'other'"):
        async with fanout.open(work.source("other")):
            pass
    async with fanout.open(work.source(work.arn)):
        pass


async def test_other_clients_of_the_session_know_no_queues(work: EmbeddedWork) -> None:
    source = work.source()
    before = deepcopy(await operations_of(source.session))
    work.put([1])
    async with fanout.open(source) as stream:
        await take(stream, 1)
    assert await operations_of(source.session) == before


async def operations_of(session: Any) -> Any:
    """Return the operations of a new client of a session."""
    async with session.client("kinesis", region_name="us-east-1") as client:
        return client.meta.service_model._service_description["operations"]
