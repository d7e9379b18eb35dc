"""One reader of one shard, against a kinesis that answers from a script, in virtual time."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from botocore.exceptions import ClientError

from fanout.core.events import Batch, End, Split
from fanout.core.positions import WHOLE_RECORD, Cursor, Horizon, Position, Timestamp
from fanout.errors import MalformedEventError, UnconfirmedEndError
from fanout.kinesis.aws.api import StreamDescription, UnreadRecords
from fanout.kinesis.reading.deaggregation import Deaggregator
from fanout.kinesis.reading.polling import Poller
from fanout.kinesis.writing.kpl_format import encode_aggregate
from fanout.testing.virtual_time.loop import simulate
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

SPLIT = Split("shardId-000000000000")
STREAM = StreamDescription(
    name="orders",
    arn="arn:aws:kinesis:eu-west-1:111122223333:stream/orders",
    status="ACTIVE",
    created=datetime(2026, 11, 20, tzinfo=UTC),
    server_time=datetime(2026, 11, 20, tzinfo=UTC),
    retention_hours=24,
    open_shards=1,
    consumers=None,
    key_id=None,
)
CHILDREN = [
    {
        "ShardId": "shardId-000000000001",
        "ParentShards": [SPLIT.id],
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
    }
]
MIB = 1024 * 1024


def answer(*records: int | tuple[int, bytes], behind: int | None = 0, **more: Any) -> bytes:
    """Build an answer: the numbers of its records, or numbers with data."""
    pairs = [(each, b"data") if isinstance(each, int) else each for each in records]
    listed = [
        {"SequenceNumber": str(number), "PartitionKey": "key", "Data": b64encode(data).decode()}
        for number, data in pairs
    ]
    body = {"Records": listed, "NextShardIterator": "next", "MillisBehindLatest": behind} | more
    return json.dumps(body).encode()


def refused(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "GetRecords")


@dataclass
class Service:
    """Answer each call with the next of a script, an error or a body, and write down the calls.

    Args:
        script: The answers of GetRecords.
        sized: Whether the service says how long a body is.
        transfer: Seconds that a body takes.
    """

    script: list[bytes | Exception]
    sized: bool = True
    transfer: float = 0.0
    calls: list[tuple[float, str]] = field(default_factory=list)
    positions: list[Mapping[str, Any]] = field(default_factory=list)
    bodies: int = 0

    async def get_shard_iterator(
        self, stream_arn: str, shard_id: str, starting_position: Mapping[str, Any]
    ) -> str:
        assert (stream_arn, shard_id[:-1]) == (STREAM.arn, SPLIT.id[:-1])
        self.calls.append((asyncio.get_running_loop().time(), "iterator"))
        self.positions.append(starting_position)
        return "first"

    @asynccontextmanager
    async def get_records(
        self, stream_arn: str, shard_iterator: str
    ) -> AsyncIterator[UnreadRecords]:
        assert stream_arn == STREAM.arn
        self.calls.append((asyncio.get_running_loop().time(), shard_iterator))
        message = self.script.pop(0)
        if isinstance(message, Exception):
            raise message
        yield UnreadRecords(len(message) if self.sized else None, self._body(message))

    async def _body(self, message: bytes) -> AsyncIterator[bytes]:
        self.bodies += 1
        await asyncio.sleep(self.transfer)
        for start in range(0, len(message), 65_536):
            yield message[start : start + 65_536]

    @property
    def times(self) -> list[float]:
        return [at for at, what in self.calls if what != "iterator"]

    def poller(self, *, max_event_bytes: int = 24 * MIB) -> Poller:
        kinesis: Any = self
        return Poller(
            kinesis,
            STREAM,
            max_event_bytes=max_event_bytes,
            deaggregator=Deaggregator("fail"),
        )


async def free(nbytes: int) -> None:
    """Reserve memory without a limit."""


async def read(
    service: Service, position: Position | None = None, poller: Poller | None = None
) -> list[Batch | End]:
    """Read until the script is over."""
    message: list[Batch | End] = []
    poller = poller or service.poller()
    async with poller.open(SPLIT, position or Horizon(), free) as events:
        while True:
            message.append(await anext(events))
            if isinstance(message[-1], End) or not service.script:
                return message


async def take(events: AsyncIterator[Batch | End]) -> Batch | End:
    return await anext(events)


def ends_of(message: list[Batch | End]) -> list[Position]:
    return [event.range.until for event in message if isinstance(event, Batch)]


def test_a_batch_reaches_to_its_last_record() -> None:
    service = Service([answer(1, 2, behind=7000), answer(3)])
    message = simulate(read, service)
    assert ends_of(message) == [Cursor(2), Cursor(3)]
    assert [event.lag for event in message if isinstance(event, Batch)] == [7.0, 0.0]
    assert [what for _, what in service.calls] == ["iterator", "first", "next"]


@pytest.mark.parametrize("position", [Horizon(), Timestamp(5), Cursor(4)])
def test_an_answer_without_records_keeps_the_position(position: Position) -> None:
    assert ends_of(simulate(read, Service([answer(), answer()]), position)) == [position] * 2


def test_no_call_is_made_before_its_event_is_asked_for() -> None:
    async def main() -> list[int]:
        service = Service([answer(1), answer(2), answer(3)])
        made = []
        async with service.poller().open(SPLIT, Horizon(), free) as events:
            for _ in range(2):
                await anext(events)
                await asyncio.sleep(1000)
                made.append(len(service.times))
        return made

    assert simulate(main) == [1, 2]


def test_memory_is_reserved_before_a_body_is_read() -> None:
    service = Service([answer(1), answer(2, 3)])
    sizes = [len(each) for each in service.script if isinstance(each, bytes)]
    reserved: list[int] = []

    async def reserve(nbytes: int) -> None:
        assert service.bodies == len(reserved)
        reserved.append(nbytes)

    async def main() -> None:
        async with service.poller().open(SPLIT, Horizon(), reserve) as events:
            await anext(events)
            await anext(events)

    simulate(main)
    assert reserved == sizes


def test_for_a_body_of_unknown_size_the_most_is_reserved() -> None:
    service = Service([answer(1)], sized=False)
    reserved: list[int] = []

    async def reserve(nbytes: int) -> None:
        reserved.append(nbytes)

    async def main() -> None:
        poller = service.poller(max_event_bytes=1000)
        async with poller.open(SPLIT, Horizon(), reserve):
            pass

    simulate(main)
    assert reserved == [1000]


@pytest.mark.parametrize(
    ("sized", "sentence"), [(True, r"announces \d+ bytes, more than the 100"), (False, "than 100")]
)
def test_an_answer_that_is_too_large_is_refused(sized: bool, sentence: str) -> None:  # noqa: FBT001 - a case
    service = Service([answer(1, 2, 3)], sized=sized)
    with pytest.raises(MalformedEventError, match=sentence):
        simulate(read, service, None, service.poller(max_event_bytes=100))


@in_virtual_time
async def test_a_batch_that_was_handed_on_is_kept_by_nobody() -> None:
    service = Service([answer((1, b"x" * MIB)), answer(2)])
    before = pa.total_allocated_bytes()
    async with service.poller().open(SPLIT, Horizon(), free) as events:
        await anext(events)
        service.transfer = 3600.0
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(take(events))
            await asyncio.sleep(10.0)
            assert service.bodies == 2
            assert pa.total_allocated_bytes() - before < MIB
            waiting.cancel()


# The pace.


def test_an_empty_answer_behind_the_tip_is_followed_at_once_within_the_rate() -> None:
    service = Service([answer(behind=9), answer(behind=9), answer(behind=9), answer(1)])
    simulate(read, service)
    assert service.times == pytest.approx([0.2, 0.4, 0.6, 0.8])


def test_an_idle_shard_is_asked_once_a_second_in_the_end() -> None:
    service = Service([answer(1), *[answer()] * 5, answer(2), answer()])
    simulate(read, service)
    gaps = [later - sooner for sooner, later in zip(service.times, service.times[1:], strict=False)]
    assert gaps == pytest.approx([0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 0.2])


def test_after_a_large_answer_the_average_comes_back_to_2_mib_a_second() -> None:
    service = Service([answer((1, b"x" * 3 * MIB)), answer((2, b"x" * MIB)), answer(3)])
    simulate(read, service)
    assert service.times == pytest.approx([0.2, 1.7, 2.2], abs=1e-4)


def test_partition_keys_count_for_the_average() -> None:
    key = "\u00e9" * 256
    records = [{"SequenceNumber": str(n), "PartitionKey": key, "Data": ""} for n in range(1, 6001)]
    service = Service([answer(Records=records), answer(6001)])
    simulate(read, service)
    assert service.times == pytest.approx([0.2, 0.2 + 6000 * 512 / (2 * MIB)])


def test_a_new_subscription_goes_on_with_the_rate_limit_of_the_last() -> None:
    async def main() -> list[float]:
        service = Service([answer((1, b"x" * 4 * MIB)), answer(2)])
        poller = service.poller()
        async with poller.open(SPLIT, Horizon(), free):
            pass
        async with poller.open(SPLIT, Cursor(1), free):
            pass
        return [at for at, _ in service.calls]

    assert simulate(main) == pytest.approx([0.0, 0.2, 2.2, 2.4])


def test_a_shard_does_not_wait_for_another() -> None:
    async def main() -> list[float]:
        service = Service([answer((1, b"x" * 4 * MIB)), answer(2)])
        poller = service.poller()
        for split in (SPLIT, Split("shardId-000000000009")):
            async with poller.open(split, Horizon(), free):
                pass
        return service.times

    assert simulate(main) == pytest.approx([0.2, 0.4])


def test_a_body_that_broke_off_counts_as_much_as_it_announced() -> None:
    async def main() -> list[float]:
        service = Service([answer((1, b"x" * 3 * MIB)), answer(2)], transfer=60.0)
        poller = service.poller()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3), poller.open(SPLIT, Horizon(), free):
                pass
        service.transfer = 0.0
        async with poller.open(SPLIT, Horizon(), free):
            pass
        return service.times

    first, second = simulate(main)
    # In base64, 3 MiB are 4: the shard rests for 2 seconds, and then gives a new iterator.
    assert second - first == pytest.approx(2.2, abs=0.01)


# Iterators that expire.


@pytest.mark.parametrize("sub", [1, WHOLE_RECORD])
def test_an_expired_iterator_is_replaced_from_the_position(sub: int) -> None:
    aggregate = encode_aggregate([("key", b"a"), ("key", b"b"), ("key", b"c")])
    expired = refused("ExpiredIteratorException")
    service = Service([answer(), expired, answer((7, aggregate))] if sub == 1 else [answer(7)])
    if sub == WHOLE_RECORD:
        service.script += [expired, answer(8)]
        assert ends_of(simulate(read, service)) == [Cursor(7), Cursor(8)]
        resumed = {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": "7"}
    else:
        message = simulate(read, service, Cursor(7, sub))
        assert isinstance(message[-1], Batch)
        assert message[-1].records.column("data").to_pylist() == [b"c"]
        resumed = {"Type": "AT_SEQUENCE_NUMBER", "SequenceNumber": "7"}
    assert service.positions[1] == resumed


def test_an_iterator_that_is_new_and_has_expired_is_an_error() -> None:
    service = Service([answer(1), *[refused("ExpiredIteratorException")] * 2])
    with pytest.raises(ClientError, match="ExpiredIteratorException"):
        simulate(read, service)
    assert len(service.positions) == 2


def test_another_refusal_asks_for_no_new_iterator() -> None:
    service = Service([answer(1), refused("ProvisionedThroughputExceededException")])
    with pytest.raises(ClientError, match="ProvisionedThroughputExceededException"):
        simulate(read, service)
    assert len(service.positions) == 1


# The end.


@pytest.mark.parametrize("records", [(), (1, 2)])
def test_a_shard_ends_by_both_signs(records: tuple[int, ...]) -> None:
    last = answer(*records, NextShardIterator=None, ChildShards=CHILDREN)
    *batches, end = simulate(read, Service([last, answer(3)]))
    assert ends_of(batches) == ([Cursor(2)] if records else [])
    assert end == End(SPLIT, (Split("shardId-000000000001", (SPLIT.id,)),))


@pytest.mark.parametrize("sign", [{"NextShardIterator": None}, {"ChildShards": CHILDREN}])
def test_one_sign_alone_is_unconfirmed_after_its_records(sign: dict[str, Any]) -> None:
    async def main() -> Batch | End:
        service = Service([answer(1, **sign)])
        async with service.poller().open(SPLIT, Horizon(), free) as events:
            batch = await anext(events)
            with pytest.raises(UnconfirmedEndError):
                await anext(events)
            return batch

    assert ends_of([simulate(main)]) == [Cursor(1)]


@in_virtual_time
async def test_nothing_is_asked_after_the_end() -> None:
    service = Service([answer(1, NextShardIterator=None, ChildShards=CHILDREN)])
    async with service.poller().open(SPLIT, Horizon(), free) as events:
        assert [type(event) async for event in events] == [Batch, End]
