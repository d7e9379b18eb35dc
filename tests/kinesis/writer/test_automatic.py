"""The writer where the service distributes the records (RecordDistributionStrategy AUTO)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import aioboto3
import pytest

from fanout.core.backoff import Backoff, FullJitter
from fanout.errors import ServiceError, UnwritableRecordError
from fanout.kinesis.aws.api import MAX_HASH_KEY, HashRange, PutResult, ShardDescription
from fanout.kinesis.writing.entries import QueuedRecord
from fanout.kinesis.writing.sender import PutSender
from fanout.kinesis.writing.shard_queues import OpenShards, ShardQueues
from fanout.kinesis.writing.stream_settings import StreamSettings
from fanout.kinesis.writing.write_options import KinesisWriteOptions
from fanout.testing.faults import CutPut, Fault, RefuseCall, RefuseRecords
from fanout.testing.kinesis.credentials import REGION
from tests.support.kinesis.reading import FIRST, eventually
from tests.support.kinesis.writers import first_occurrences, numbered, read, rows, writing
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.support.kinesis.reading import Stream

USER = "USER_PARTITION_KEY"
MIB = 1 << 20
DENIED = RefuseCall(action="DescribeStreamSummary", code="AccessDeniedException")


@pytest.fixture
def shards() -> int:
    return 4


class Calls(Counter[str]):
    """The calls of the clients of a session, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.session = aioboto3.Session(
            region_name=REGION, aws_access_key_id="testing", aws_secret_access_key="testing"
        )
        self.session.events.register("before-parameter-build.kinesis.*", self._count)

    def _count(self, model: Any, **_: Any) -> None:
        self[model.name] += 1


def keyless(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"data": b"%d" % n} for n in range(first, first + count)]


async def test_records_without_a_key_are_written_and_read(stream: Stream) -> None:
    stream.distribute()
    calls = Calls()
    async with writing(stream, session=calls.session) as writer:
        for first in range(0, 1_000, 250):
            await writer.write(keyless(250, first))
        await writer.write(rows(("ann", b"1")))
    assert calls["ListShards"] == 1
    assert calls["DescribeStreamSummary"] <= 2
    found: dict[Any, list[bytes]] = dict(await read(stream))
    assert sorted(found.pop(None), key=int) == [b"%d" % n for n in range(1_000)]
    assert found == {"ann": [b"1"]}


@pytest.mark.long
async def test_no_shard_is_guessed_and_no_order_is_kept(stream: Stream) -> None:
    stream.distribute()
    calls = Calls()
    async with writing(stream, session=calls.session) as writer:
        for first in range(0, 1_000, 50):
            await writer.write(numbered(50, 50, first))
        await writer.flush()
        before = writer.statistics().requests
        await writer.write(numbered(500, 1, 1_000))
        await writer.flush()
        assert writer.statistics().requests - before == 4, "a key does not wait for itself"
    assert calls["ListShards"] == 1
    assert sum(map(len, (await read(stream)).values())) == 1_500


FAULTS: dict[str, list[Fault]] = {
    "some records fail": [RefuseRecords(every=3, times=5)],
    "a shard throttles": [
        RefuseRecords(shard=FIRST, code="ProvisionedThroughputExceededException", times=4)
    ],
    "answers are lost": [CutPut(times=2), CutPut(call=3)],
    "the stream cannot be described at once": [
        RefuseCall(action="DescribeStreamSummary", code="LimitExceededException", times=4)
    ],
}


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(faults, id=name, marks=[] if name == "some records fail" else pytest.mark.long)
        for name, faults in FAULTS.items()
    ],
)
async def test_no_record_is_lost(stream: Stream, faults: list[Fault]) -> None:
    stream.distribute()
    stream.inject(*faults)
    async with writing(stream) as writer:
        await writer.write(keyless(2_000))
    found: dict[Any, list[bytes]] = dict(await read(stream))
    assert {*found[None]} == {b"%d" % n for n in range(2_000)}
    repeated = len(found[None]) - 2_000
    assert (repeated > 0) is any(isinstance(fault, CutPut) for fault in faults)


@pytest.mark.parametrize("strategy", [None, USER])
async def test_elsewhere_a_record_without_a_key_is_refused(
    stream: Stream, strategy: str | None
) -> None:
    if strategy is not None:
        stream.distribute(strategy)
    async with writing(stream) as writer:
        with pytest.raises(UnwritableRecordError, match="no partitionKey") as refused:
            await writer.write([*rows(("ann", b"1")), *keyless(1)])
        assert str(refused.value).endswith(
            "(RecordDistributionStrategy AUTO): give each record a key"
        )
        stream.distribute()
        await writer.write(keyless(1))
    assert await read(stream) == {None: [b"0"]}


@pytest.mark.long
async def test_without_the_permission_to_describe_the_stream_keys_are_needed(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.distribute()
    stream.inject(DENIED)
    async with writing(stream, aggregate=True) as writer:
        await writer.write(numbered(200, 20))
        with pytest.raises(UnwritableRecordError, match=r"may not call kinesis:DescribeStreamSumm"):
            await writer.write(keyless(1))
        with pytest.raises(UnwritableRecordError, match="max_record_bytes=1048576"):
            await writer.write(rows(("ann", bytes(MIB))))
    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert [each for each in warnings if "may not call DescribeStreamSummary" in each] == [
        warnings[0]
    ]
    assert sum(map(len, (await read(stream)).values())) == 200


async def test_an_aggregate_is_made_only_where_keys_decide(stream: Stream) -> None:
    stream.distribute()
    async with writing(stream, aggregate=True) as writer:
        await writer.write(numbered(400, 2))
        await writer.flush()
        stream.distribute(USER)
        await asyncio.sleep(0.3)
        await writer.write(numbered(1, 1, 400))
        await eventually(lambda: not writer._sender._queues.automatic)
        await writer.write(numbered(400, 2, 401))
    alone: Counter[str] = Counter()
    async with stream.open() as running:
        while not running.caught_up:
            for batch in (await running.drain(max_wait=0.1)).batches:
                alone.update(batch.records["sequenceNumber"].to_pylist())
    assert sum(alone.values()) == 801
    assert 401 < len(alone) < 450


async def test_a_writer_follows_a_stream_that_is_switched_and_back(stream: Stream) -> None:
    stream.distribute(USER)
    async with writing(stream) as writer:
        queues = writer._sender._queues
        await writer.write(numbered(100, 10))
        await writer.flush()
        stream.distribute()
        await writer.write(numbered(100, 10, 100))
        await eventually(lambda: queues.automatic)
        await writer.write(keyless(100, 200))
        await writer.flush()
        stream.distribute(USER)
        await asyncio.sleep(0.3)
        await writer.write(numbered(10, 10, 300))
        await eventually(lambda: not queues.automatic)
        await writer.flush()
        stream.inject(RefuseRecords(every=2, times=5))
        await writer.write(numbered(500, 10, 310))
    found: dict[Any, list[bytes]] = dict(await read(stream))
    assert sorted(found.pop(None), key=int) == [b"%d" % n for n in range(200, 300)]
    every = [int(data) for each in found.values() for data in each]
    assert sorted(every) == [*range(200), *range(300, 810)]
    for numbers in found.values():
        last = [int(data) for data in numbers if int(data) >= 310]
        assert last == sorted(last), "a key has its order again"


async def test_a_stream_that_is_switched_back_takes_no_record_without_a_key(stream: Stream) -> None:
    async def write() -> None:
        async with writing(stream) as writer:
            await writer.write(keyless(1))
            await writer.flush()
            stream.distribute(USER)
            await writer.write(keyless(1))

    stream.distribute()
    with pytest.raises(UnwritableRecordError, match="a record has no partitionKey, and") as refused:
        await write()
    assert refused.value.__cause__ is not None


@pytest.mark.parametrize("most", [None, pytest.param(10 * MIB, marks=pytest.mark.long)])
async def test_the_limit_of_a_record_is_the_streams_own(stream: Stream, most: int | None) -> None:
    options = {} if most is None else {"max_record_bytes": most}
    async with writing(stream, **options) as writer:
        too_large = rows(("k", bytes(10 * MIB - 1)))
        with pytest.raises(UnwritableRecordError, match=r"than the 1048576 that 'orders' takes"):
            await writer.write(too_large)
        stream.limit_records(10 * MIB)
        await writer.write(too_large)
        with pytest.raises(UnwritableRecordError, match=r"10 MiB at most"):
            await writer.write(rows(("k", bytes(10 * MIB))))
    assert [len(each) for each in (await read(stream))["k"]] == [10 * MIB - 1]


async def test_a_limit_that_is_lowered_ends_the_writer_with_its_reason(stream: Stream) -> None:
    async def write() -> None:
        async with writing(stream) as writer:
            await writer.write(rows(("k", bytes(2 * MIB))))
            await writer.flush()
            stream.limit_records(MIB)
            await writer.write(rows(("k", bytes(MIB))))

    stream.limit_records(10 * MIB)
    with pytest.raises(UnwritableRecordError, match=r"takes 1048577 bytes .* the 1048576 that"):
        await write()


async def test_a_smaller_limit_of_the_users_own_holds(stream: Stream) -> None:
    async with writing(stream, max_record_bytes=10) as writer:
        with pytest.raises(UnwritableRecordError, match=r"11 bytes .* max_record_bytes=10"):
            await writer.write(rows(("k", bytes(10))))


async def test_a_stream_that_cannot_be_described_is_an_error(stream: Stream) -> None:
    stream.inject(RefuseCall(action="DescribeStreamSummary", code="ValidationException"))
    async with writing(stream) as writer:
        with pytest.raises(ServiceError, match="the stream 'orders' cannot be described"):
            await writer.write(keyless(1))
        with pytest.raises(UnwritableRecordError):
            await writer.write(keyless(1))
        await writer.write(rows(("k", b"1")))
    assert first_occurrences((await read(stream))["k"]) == [b"1"]


class Large:
    """A service of 64 shards that is slow, and counts the bytes that it is sent at a time."""

    def __init__(self) -> None:
        self.calls = self.sent = self.most = 0

    async def put_records(self, records: Sequence[Mapping[str, Any]]) -> list[PutResult]:
        nbytes = sum(len(record["Data"]) for record in records)
        assert nbytes <= 10 * MIB
        self.calls += 1
        self.sent += nbytes
        self.most = max(self.most, self.sent)
        await asyncio.sleep(1)
        self.sent -= nbytes
        return [PutResult("any")] * len(records)


@in_virtual_time
async def test_large_records_to_many_shards_stay_within_the_bytes_in_flight() -> None:
    service: Any = Large()
    options = KinesisWriteOptions(stream="orders", max_record_bytes=10 * MIB)
    each = MAX_HASH_KEY // 64
    shards = [
        ShardDescription(f"{n}", (), 1, None, HashRange(n * each, n * each + each - 1))
        for n in range(64)
    ]
    queues = ShardQueues(OpenShards(shards), aggregate=False, automatic=True)
    settings = StreamSettings(service, "orders")
    jitter = FullJitter(Backoff(), Random(1))
    sender = PutSender(
        service,
        queues,
        settings,
        max_bytes=options.max_bytes_in_flight,
        delivery_timeout=120.0,
        jitter=jitter,
    )
    data = bytes(10 * MIB)
    async with sender.running():
        await sender.put(QueuedRecord((None, None), data, len(data)) for _ in range(128))
        await sender.flush()
    assert service.calls == 128
    assert 20 * MIB < service.most <= options.max_bytes_in_flight
