"""Writers of a shuffle on a real broker, and the readers of their frames."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fanout.errors import (
    BadFrameError,
    BatchNotWrittenError,
    FencedError,
    OptionError,
    ServiceError,
    StreamStateError,
)
from fanout.kafka import Activity, ShuffleWriter, open_shuffle_writer
from fanout.kafka.cluster import Cluster
from fanout.kafka.shuffle.commit_mode import ExactlyOnceMode
from fanout.kafka.shuffle.frames import HelloFrame
from fanout.kafka.shuffle.writer_options import ShuffleWriterOptions
from fanout.kafka.transactions.outcome import TransactionOutcome, TransactionState
from fanout.kafka.transactions.transactions import Transactions
from fanout.kafka.writing.partitioner import partitions_of
from tests.support.kafka.brokers import HERE
from tests.support.kafka.shuffle_reading import Drained
from tests.support.kafka.shuffle_reading import drain as drain_now
from tests.support.kafka.topics import Topic, new_topic
from tests.support.kafka.transacting import reported, transactions
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from datetime import tzinfo

    from fanout.kafka import Producers
    from fanout.kafka.transactions.commit_token import CommitToken
    from fanout.testing.kafka.broker import KafkaBroker

PARTITIONS = 3
MS = pa.timestamp("ms", "UTC")


@pytest.fixture
async def topic(kafka_broker: KafkaBroker) -> Topic:
    return await new_topic(kafka_broker, partitions=PARTITIONS)


def writing(topic: Topic, **options: Any) -> AbstractAsyncContextManager[ShuffleWriter]:
    named: dict[str, Any] = {"timestamp": "at", "idle_after": None} | options
    return open_shuffle_writer(
        ShuffleWriterOptions(
            cluster=Cluster(topic.broker.bootstrap_servers, security=HERE),
            topic=topic.name,
            **named,
        )
    )


def rows(*times: int) -> pa.RecordBatch:
    """Return rows at these times; the key is that of a time modulo 5."""
    return pa.record_batch(
        {
            "key": [f"k{time % 5}" for time in times],
            "value": [str(time) for time in times],
            "at": pa.array(times, pa.int64()).cast(MS),
            "more": [None] * len(times),
        }
    )


def at(millis: int) -> datetime:
    return datetime.fromtimestamp(millis / 1000, UTC)


async def drain(topic: Topic, **options: Any) -> Drained:
    """Read all committed frames; the partitions are committed one by one."""
    await reported(topic.broker, *(f"fanout-{topic.name}-producer-{n}" for n in range(3)))
    return await drain_now(topic, **options)


async def producers(topic: Topic) -> Producers:
    """Return the producers of the topic, when all partitions agree on them.

    A commit, also that of an idle writer, comes to one partition after the other.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + PATIENCE
    while True:
        found = (await drain(topic)).producers
        known = [(p.seen, p.generation, p.announced, p.partitions) for p in found.values()]
        if len(known) == PARTITIONS == known.count(known[0]):
            assert found[0].partitions == PARTITIONS
            return found[0]
        assert clock() < deadline, known


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
async def test_each_key_is_in_its_partition_in_order_with_times_and_watermark(
    topic: Topic, guarantee: Any
) -> None:
    async with writing(topic, delivery_guarantee=guarantee) as writer:
        for begin in range(0, 60, 20):
            await writer.write(rows(*range(begin, begin + 20)))
            await writer.watermark(at(begin + 19))
        await writer.commit()
    found = await drain(topic, partition_count=PARTITIONS)
    assert found.values == sorted(str(time) for time in range(60))
    for number, of_partition in found.records.items():
        keys = [key for key, _, _ in of_partition]
        where = partitions_of(pa.array(keys, pa.string()).cast(pa.binary()), PARTITIONS)
        assert set(where.to_pylist()) <= {number}, "as Kafka's own producers have it"
        times = [time for _, _, time in of_partition if time is not None]
        assert times == sorted(times), "and in order"
        assert [str(time) for time in times] == [value for _, value, _ in of_partition]
    assert (found.watermark, found.late) == (59, [])


async def test_functions_choose_columns_and_a_value_may_have_no_time(topic: Topic) -> None:
    def key(records: pa.RecordBatch) -> pa.Array:
        return pc.utf8_upper(records["key"])

    async with writing(topic, key=key, value="key", timestamp=None) as writer:
        await writer.write(rows(1, 2))
        await writer.commit()
    found = await drain(topic)
    assert sorted(row for part in found.records.values() for row in part) == [
        ("K1", "k1", None),
        ("K2", "k2", None),
    ]
    assert found.watermark is None


async def test_a_commit_tells_the_watermark_that_follows_from_the_records(topic: Topic) -> None:
    async with writing(topic, out_of_orderness=0.005) as writer:
        await writer.write(rows(100, 95, 103))
        await writer.commit()
        assert (await drain(topic)).watermark == 97
        # 98 is exactly as late as allowed.
        await writer.write(rows(98, 101))
        await writer.commit()
        assert (await producers(topic)).repeated == 0, (
            "a watermark that is no higher is not sent again"
        )
        with pytest.raises(OptionError, match="follow from out_of_orderness"):
            await writer.watermark(1)
        await writer.write(rows(110))
        await writer.commit()
    found = await drain(topic)
    assert (found.watermark, found.late) == (104, [])


async def test_nothing_is_seen_before_a_commit_and_all_of_it_after(topic: Topic) -> None:
    async with writing(topic) as writer:
        await writer.write(rows(1, 2, 3))
        await writer.watermark(3)
        # Committed records end where the transaction begins.
        assert (await drain(topic)).producers == {}
        await writer.commit()
        assert (await producers(topic)).watermark == 3
        await writer.write(rows(4))
        await writer.commit()
    assert (await drain(topic)).values == ["1", "2", "3", "4"]


@pytest.mark.parametrize("fails", [True, False])
async def test_what_was_not_committed_is_aborted_with_its_watermark(
    topic: Topic, *, fails: bool
) -> None:
    async def write() -> None:
        async with writing(topic) as writer:
            await writer.write(rows(1))
            await writer.watermark(1)
            await writer.commit()
            await writer.write(rows(2))
            await writer.watermark(99)
            if fails:
                raise ZeroDivisionError

    if fails:
        with pytest.raises(ZeroDivisionError):
            await write()
    else:
        await write()
    found = await drain(topic)
    assert (found.values, found.watermark) == (["1"], 1)
    async with transactions(topic.broker) as connection:
        description = await connection.describe(f"fanout-{topic.name}-producer-0")
    assert description is not None
    assert description.state is TransactionState.COMPLETE_ABORT, (
        "readers do not wait until it expires"
    )


@pytest.mark.parametrize("carried_out", [True, False])
async def test_what_is_written_after_a_commit_that_was_cancelled_is_committed_by_the_next(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, *, carried_out: bool
) -> None:
    commit, answered = Transactions.commit, asyncio.Event()

    async def commit_and_wait(self: Transactions, token: CommitToken) -> TransactionOutcome:
        if carried_out:
            await commit(self, token)
        answered.set()
        return await asyncio.Future()

    async with writing(topic) as writer:
        await writer.write(rows(1))
        with monkeypatch.context() as patch:
            patch.setattr(Transactions, "commit", commit_and_wait)
            committing = asyncio.create_task(writer.commit())
            await answered.wait()
            committing.cancel()
            await asyncio.wait([committing])
        if carried_out:
            async with transactions(topic.broker) as connection:
                # Once its marker can be read, it is complete in every partition.
                assert await connection.marked(f"fanout-{topic.name}-producer-0-marker")
        await writer.write(rows(2, 6))
        await writer.commit()
        assert (await drain(topic)).values == ["1", "2", "6"]


async def test_a_writer_that_is_started_again_takes_the_place_of_the_one_before(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with writing(topic) as old:
        await old.write(rows(1))
        await old.watermark(50)
        await old.commit()
        await old.commit()  # there is nothing to commit
        await old.write(rows(2))
        await old.watermark(99)

        class Behind(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> Self:
                return super().now(tz) - timedelta(days=365)

        monkeypatch.setattr("fanout.kafka.shuffle.writer.datetime", Behind)
        async with writing(topic) as new:
            assert new.generation > old.generation
            with pytest.raises(FencedError):
                await old.commit()
            with pytest.raises(FencedError):
                await old.write(rows(3))
            await new.write(rows(4))
            await new.watermark(60)
            await new.commit()
    found = await drain(topic)
    assert (found.values, found.watermark) == (["1", "4"], 60)
    assert found.producers[0].generation == new.generation
    assert found.producers[0].outdated == 0


async def test_a_transaction_that_takes_too_long_is_an_error_and_ends_the_writer(
    topic: Topic,
) -> None:
    async with writing(topic, transaction_timeout=4) as writer:
        await writer.write(rows(1))
        async with transactions(topic.broker) as connection:
            while True:
                description = await connection.describe(f"fanout-{topic.name}-producer-0")
                assert description is not None
                if description.state is TransactionState.COMPLETE_ABORT:
                    break
                await asyncio.sleep(0.05)
        with pytest.raises((BatchNotWrittenError, FencedError)):
            await writer.commit()
        with pytest.raises((BatchNotWrittenError, FencedError)):
            await writer.write(rows(2))
    assert (await drain(topic)).values == []


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
async def test_a_call_after_the_block_is_refused_at_once(topic: Topic, guarantee: str) -> None:
    async with writing(topic, delivery_guarantee=guarantee) as writer:
        await writer.write(rows(1))
        await writer.commit()
    calls: list[Callable[[], Awaitable[None]]]
    calls = [lambda: writer.write(rows(2)), writer.commit, writer.idle, writer.end]
    for call in calls:
        with pytest.raises(StreamStateError, match="the writer is closed"):
            await call()


async def test_an_idle_writer_says_so_and_is_waited_for_when_it_writes_again(
    topic: Topic,
) -> None:
    two = {"producers": 2, "generation": 7}
    async with (
        writing(topic, **two, producer=0, idle_after=0.1) as first,
        writing(topic, **two, producer=1) as second,
    ):
        assert first.generation == 7
        await first.write(rows(10))
        await first.watermark(10)
        await first.commit()
        await second.watermark(100)
        await second.commit()
        # It wrote no frame, and no call was made.
        while (last := (await producers(topic))).seen[0].activity is not Activity.IDLE:
            assert last.watermark == 10
        assert last.watermark == 100
        # It is active also without another watermark, for a moment.
        seen: list[Activity] = []
        while Activity.ACTIVE not in seen:
            await first.write(rows(104))
            await first.commit()
            seen.append((await producers(topic)).seen[0].activity)
        await second.watermark(200)
        await second.commit()
    found = await drain(topic)
    assert found.late == []


async def test_an_idle_writer_says_it_again_and_again(topic: Topic) -> None:
    async with writing(topic, idle_after=0.1, delivery_guarantee="at_least_once"):
        while True:
            found = await asyncio.to_thread(topic._end, 0)
            if found > 3:
                break


async def test_what_is_not_committed_yet_keeps_a_writer_from_being_idle(topic: Topic) -> None:
    async with writing(topic, idle_after=0.1) as writer:
        await writer.write(rows(1))
        await asyncio.sleep(0.3)
        assert (await drain(topic)).values == []
        await writer.commit()
    assert (await drain(topic)).values == ["1"]


async def test_a_writer_that_leaves_is_idle_and_one_that_ends_has_ended(topic: Topic) -> None:
    async with writing(topic) as writer:
        await writer.write(rows(1))
        await writer.watermark(1)
        await writer.commit()
    assert (await producers(topic)).seen[0].activity is Activity.IDLE
    async with writing(topic, delivery_guarantee="at_least_once") as writer:
        await writer.write(rows(2))
        await writer.end()
        with pytest.raises(StreamStateError, match="the writer has ended"):
            await writer.write(rows(3))
    last = await producers(topic)
    assert last.ended
    assert (await drain(topic)).values == ["1", "2"]


async def test_what_is_written_after_an_end_that_was_cancelled_has_its_producer_waited_for(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = asyncio.Event()

    async def commit_never(_: ExactlyOnceMode) -> None:
        text.set()
        await asyncio.Future()

    async with writing(topic) as writer:
        await writer.write(rows(1))
        await writer.watermark(1)
        with monkeypatch.context() as patch:
            patch.setattr(ExactlyOnceMode, "commit", commit_never)
            ending = asyncio.create_task(writer.end())
            await text.wait()
            ending.cancel()
            await asyncio.wait([ending])
        await writer.write(rows(2))
        await writer.commit()
        assert (await producers(topic)).seen[0].activity is Activity.ACTIVE


class Lingering:
    """A commit mode whose commits are slow."""

    def __init__(self) -> None:
        self.pending = False
        self.committing = asyncio.Event()
        self.aborted = False

    async def write(self, _: pa.RecordBatch) -> None:
        self.pending = True

    async def commit(self) -> None:
        self.committing.set()
        for _ in range(10):
            await asyncio.sleep(0)
        self.pending = False

    async def abort(self) -> None:
        self.aborted = True


async def test_a_writer_that_leaves_while_it_says_that_it_is_idle_has_said_so() -> None:
    delivery = Lingering()
    options = ShuffleWriterOptions(
        cluster=Cluster("localhost:1", security=HERE), topic="t", idle_after=0.1
    )
    async with ShuffleWriter(options, delivery, HelloFrame(0, 1, 1, 1)).running():
        await delivery.committing.wait()
    assert (delivery.pending, delivery.aborted) == (False, False)


@pytest.mark.long
async def test_two_producers_are_followed_by_three(topic: Topic) -> None:
    async def run(count: int, generation: int, first: int) -> None:
        for number in range(count):
            async with writing(
                topic, producer=number, producers=count, generation=generation
            ) as writer:
                await writer.write(rows(first + number))
                await writer.watermark(first + number)
                await writer.commit()
                if number < count - 1:
                    assert (await drain(topic)).watermark == before

    before = None
    await run(2, 1, 10)
    before = (await drain(topic)).watermark
    assert before == 11, "the other one had left"
    await run(3, 2, 20)
    last = await producers(topic)
    assert (last.generation, last.announced, last.watermark) == (2, 3, 22)


async def test_a_replay_of_at_least_once_does_no_harm(topic: Topic) -> None:
    for _ in range(2):
        async with writing(
            topic, delivery_guarantee="at_least_once", generation=1, out_of_orderness=0
        ) as writer:
            await writer.write(rows(*range(10)))
            await writer.commit()
    found = await drain(topic)
    assert found.values == sorted(str(time) for time in (*range(10), *range(10)))
    assert found.watermark == 8
    assert {one.repeated for one in found.producers.values()} == {1}


async def test_rows_that_have_no_key_or_no_value_are_refused_and_the_writer_goes_on(
    topic: Topic,
) -> None:
    bad = pa.record_batch(
        {
            "key": pa.array(["a", None]),
            "value": pa.array(["b", "c"]),
            "at": pa.array([1, 2], pa.int64()).cast(MS),
        }
    )
    async with writing(topic) as writer:
        with pytest.raises(BadFrameError, match="1 of 2 are null"):
            await writer.write(bad)
        with pytest.raises(OptionError, match="one column 'key'"):
            await writer.write(bad.drop_columns(["key"]))
        with pytest.raises(OptionError, match="no time zone"):
            await writer.watermark(datetime(2024, 1, 1))  # noqa: DTZ001 - that is the point
        with pytest.raises(OptionError, match=r"at=1\.5 must be a whole number"):
            await writer.watermark(1.5)  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="at=9223372036854775808 has more than 64 bits"):
            await writer.watermark(2**63)
        await writer.write(rows(1))
        await writer.commit()
    assert (await drain(topic)).values == ["1"]


async def test_a_wrong_number_of_partitions_is_refused(topic: Topic) -> None:
    with pytest.raises(ServiceError, match="has 3 partitions, and by partition_count it has 4"):
        async with writing(topic, partition_count=4):
            pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"producers": 2}, "2 producers share a generation"),
        ({"producer": 1}, "producer=1 must be from 0 to 0"),
        ({"producers": 1001}, "producers=1001 must be from 1 to 1000"),
        ({"generation": -1}, "generation=-1 must be from 0"),
        ({"out_of_orderness": -1}, "out_of_orderness=-1 must be 0 seconds or more"),
        ({"out_of_orderness": 1, "timestamp": None}, "pass timestamp="),
        ({"key": 3}, "key=3 must be the name of a column"),
        ({"idle_after": 0.01}, "idle_after=0.01 must be at least 0.1 seconds"),
        ({"delivery_guarantee": "none"}, "delivery_guarantee='none' is not understood"),
        ({"partition_count": 0}, "partition_count=0 must be at least 1"),
    ],
)
async def test_options_that_make_no_sense_are_refused(
    options: dict[str, Any], message: str
) -> None:
    named: dict[str, Any] = {"timestamp": "at"} | options
    with pytest.raises(OptionError, match=message):
        async with open_shuffle_writer(
            ShuffleWriterOptions(cluster=Cluster("localhost:1", security=HERE), topic="t", **named)
        ):
            pass
