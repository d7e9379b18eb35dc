from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import fanout
from fanout.core.backoff import Backoff
from fanout.core.checkpoint import Checkpoint
from fanout.core.event_time import EventTime
from fanout.core.positions import Cursor
from fanout.core.statistics import SplitState
from fanout.errors import (
    BadFrameError,
    OptionError,
    PositionError,
    ServiceError,
    SilentProducerError,
    SplitFailedError,
)
from fanout.kafka import Activity, KafkaSource, Producers, Security, ShuffleSource, producers_at
from fanout.kafka.cluster import Cluster
from fanout.kafka.reading.columns import SCHEMA as KAFKA_SCHEMA
from fanout.kafka.reading.transport import AbortedTransaction
from fanout.kafka.shuffle.frames import (
    ControlFrame,
    EndFrame,
    HelloFrame,
    IdleFrame,
    WatermarkFrame,
)
from fanout.testing.virtual_time.cancellation import sweep
from fanout.testing.virtual_time.loop import simulate
from tests.support.kafka.record_batches import ABORT, COMMIT
from tests.support.kafka.scripted_cluster import ScriptedCluster
from tests.support.kafka.shuffle_scripted import ScriptedShuffle, write
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from fanout.kafka.partitions import Partition

FOREIGN = b'{"a": 1}'
STRICT: dict[str, Any] = {"producer_timeout": 60, "on_silent_producer": "fail"}


def hello(
    producer: int = 0, *, of: int = 1, partitions: int = 1, generation: int = 1
) -> HelloFrame:
    return HelloFrame(producer, generation, of, partitions)


def mark(millis: int, producer: int = 0, generation: int = 1) -> WatermarkFrame:
    return WatermarkFrame(producer, generation, millis)


class Reader:
    """A stream, and the batches that it has delivered."""

    def __init__(self, stream: fanout.FanOut) -> None:
        self.stream = stream
        self.batches: list[fanout.Batch] = []

    async def read(self, count: int) -> None:
        """Read until there are so many records."""
        while sum(map(len, self.records.values())) < count:
            await self.one()

    async def one(self) -> fanout.Batch:
        batch = await anext(self.stream)
        self.batches.append(batch)
        await self.stream.acknowledge(batch)
        return batch

    async def nothing_comes(self, seconds: float = 60.0) -> None:
        """Wait, and expect no record."""
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await anext(self.stream)

    @property
    def records(self) -> dict[str, list[int]]:
        """The values of the records, by partition."""
        found: dict[str, list[int]] = {}
        for batch in self.batches:
            values = map(int, batch.records["value"].to_pylist())
            found.setdefault(batch.split.id, []).extend(values)
        return found

    @property
    def watermark(self) -> int | None:
        return self.stream.watermark

    def producers(self, number: int = 0) -> Producers:
        return producers_at(self.stream.statistics().splits[f"t-{number}"].position)


@asynccontextmanager
async def reading(
    cluster: ScriptedCluster,
    *,
    resume: str | None = None,
    kafka: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Reader]:
    fast = {"backoff": Backoff(base=0.1, cap=1.0)}
    source = ScriptedShuffle(cluster, fast | (kafka or {}), **options)
    async with fanout.open(source, resume=resume, random=Random(7)) as stream:
        yield Reader(stream)


def with_state(positions: Checkpoint, state: str) -> str:
    """Replace the state that is stored with the position of the first partition."""
    split = positions.splits["t-0"]
    assert isinstance(split.position, Cursor)
    changed = replace(split, position=replace(split.position, state=state))
    return Checkpoint(positions.source, {"t-0": changed}).to_json()


def cluster_of(*entries: ControlFrame | int | bytes, partitions: int = 1) -> ScriptedCluster:
    cluster = ScriptedCluster(partitions)
    for log in cluster.logs.values():
        write(log, *entries)
    return cluster


@in_virtual_time
async def test_records_come_with_their_times_and_the_columns_of_kafka() -> None:
    async with reading(cluster_of(hello(), 5, 6, b"\x01\x01no time")) as reader:
        batch = await reader.one()
        assert batch.records.schema == reader.stream._source.schema
        names = KAFKA_SCHEMA.names
        assert batch.records.schema.names == [*names[:2], "eventTime", *names[2:]]
        assert batch.records["value"].to_pylist() == [b"5", b"6", b"no time"]
        assert batch.records["offset"].to_pylist() == [1, 2, 3]
        times = batch.records["eventTime"].cast(pa.int64())
        assert times.to_pylist() == [5000, 6000, None]


@in_virtual_time
async def test_the_watermark_of_a_partition_is_the_least_of_its_producers() -> None:
    cluster = cluster_of(hello(0, of=2), 1, mark(10), 2, hello(1, of=2), mark(7, 1), 3)
    async with reading(cluster) as reader:
        marks = [(await reader.one()).watermark for _ in range(3)]
        assert marks == [None, 7, 7]
        assert reader.watermark == 7


@in_virtual_time
async def test_the_watermark_of_the_stream_is_the_least_of_its_partitions() -> None:
    cluster = cluster_of(hello(partitions=2), partitions=2)
    write(cluster.log(0), 1, mark(10))
    write(cluster.log(1), 1)
    async with reading(cluster) as reader:
        await reader.read(2)
        await reader.nothing_comes()
        assert reader.watermark is None
        write(cluster.log(1), mark(5))
        cluster.changed()
        await reader.nothing_comes()
        assert reader.watermark == 5


@in_virtual_time
async def test_a_watermark_without_records_moves_the_watermark_and_the_stored_position() -> None:
    cluster = cluster_of(hello(), 1, mark(10))
    async with reading(cluster) as reader:
        await reader.read(1)
        write(cluster.log(), mark(20))
        cluster.changed()
        await reader.nothing_comes()
        assert reader.watermark == 20
        assert reader.stream.statistics().splits["t-0"].watermark == 20
        positions = Checkpoint.from_json(reader.stream.positions)
    assert producers_at(positions.splits["t-0"].position).watermark == 20


@in_virtual_time
async def test_an_aborted_watermark_is_none() -> None:
    cluster = cluster_of(hello(), 1, mark(10))
    log = cluster.log()
    log.aborted.append(AbortedTransaction(9, log.end))
    write(log, 2, mark(99), producer=9, transactional=True)
    log.end_transaction(ABORT, 9)
    write(log, 2, mark(20), producer=9, transactional=True)
    log.end_transaction(COMMIT, 9)
    async with reading(cluster) as reader:
        await reader.read(2)
        assert reader.records == {"t-0": [1, 2]}
        assert [batch.watermark for batch in reader.batches] == [10, 20]


@in_virtual_time
async def test_the_watermark_goes_on_where_it_was_stored() -> None:
    cluster = cluster_of(hello(0, of=2, partitions=2), hello(1, of=2, partitions=2), partitions=2)
    for log in cluster.logs.values():
        write(log, 1, mark(10, 0), mark(10, 1), 11, mark(50, 1))
    async with reading(cluster) as reader:
        await reader.read(4)
        await reader.nothing_comes()
        assert reader.watermark == 10
        positions = reader.stream.positions
    write(cluster.log(0), 12, mark(30, 0))
    async with reading(cluster, resume=positions) as reader:
        assert reader.watermark == 10
        first = await reader.one()
        # Producer 1 is at 50, by the stored state.
        assert (first.watermark, reader.watermark) == (30, 10)
        assert reader.stream.statistics().splits["t-1"].watermark == 10


@pytest.mark.parametrize("most", [1, 2, 3])
@in_virtual_time
async def test_a_restart_anywhere_lets_the_watermark_never_go_back(most: int) -> None:
    """Each drain is stored, and the stream resumes from it, as a killed query does."""
    cluster = cluster_of(*(hello(n, of=2, partitions=2) for n in range(2)), partitions=2)
    for number, log in enumerate(cluster.logs.values()):
        for tick in range(0, 40, 10):
            write(log, tick + 1, tick + 2, mark(tick, 0), tick + 3, mark(tick + number, 1))
    positions, reported = None, list[int | None]()
    values: dict[str, list[int]] = {}
    while sum(map(len, values.values())) < 24:
        async with reading(cluster, resume=positions) as reader:
            drained = await reader.stream.drain(max_records=most, max_wait=0.0, first_wait=math.inf)
            for batch in drained.batches:
                found = map(int, batch.records["value"].to_pylist())
                values.setdefault(batch.split.id, []).extend(found)
            reported.append(drained.watermark)
            positions = drained.positions.to_json()
    expected = [tick + n for tick in range(0, 40, 10) for n in (1, 2, 3)]
    assert values == {"t-0": expected, "t-1": expected}
    known = [mark for mark in reported if mark is not None]
    assert known == sorted(known)
    assert reported == [None] * (len(reported) - len(known)) + known
    assert known[-1] >= 10


@in_virtual_time
async def test_three_readers_of_a_partition_each_have_what_one_had() -> None:
    cluster = cluster_of(hello(partitions=3), 1, mark(10), 11, partitions=3)
    async with reading(cluster) as reader:
        await reader.read(6)
        positions = reader.stream.positions
    for number in range(3):
        write(cluster.log(number), 20 + number, mark(30 + number))
        one = {"partitions": [f"t-{number}"]}
        async with reading(cluster, resume=positions, kafka=one) as reader:
            await reader.read(1)
            assert reader.records == {f"t-{number}": [20 + number]}
            assert reader.watermark == 30 + number


@in_virtual_time
async def test_what_is_no_frame_stops_the_stream_behind_everything_before_it() -> None:
    async with reading(cluster_of(hello(), 1, mark(10), FOREIGN, 2)) as reader:
        await reader.read(1)
        with pytest.raises(SplitFailedError, match=r"t-0 at offset 3 is no frame") as failure:
            await reader.one()
        assert isinstance(failure.value.__cause__, BadFrameError)
        assert reader.watermark == 10
        assert str(FOREIGN) not in str(failure.value)


@in_virtual_time
async def test_what_is_no_frame_is_a_gap_where_the_user_says_so() -> None:
    cluster = cluster_of(hello(), 1, FOREIGN, FOREIGN, 2, mark(10), FOREIGN, 3)
    async with reading(cluster, on_bad_frame="gap") as reader:
        await reader.read(3)
        assert reader.records == {"t-0": [1, 2, 3]}
        assert reader.stream.statistics().gaps == 2
        assert reader.watermark == 10


@in_virtual_time
async def test_a_topic_without_a_single_frame_is_told_as_one() -> None:
    cluster = ScriptedCluster()
    cluster.log().append(5)
    async with reading(cluster) as reader:
        with pytest.raises(SplitFailedError, match="written to by another program"):
            await reader.one()


@in_virtual_time
async def test_a_watermark_behind_a_gap_that_was_not_told_is_not_told_either() -> None:
    """The stored position stays before the gap, so a restart would have a lower watermark."""
    cluster = cluster_of(hello(partitions=2), 1, mark(10), partitions=2)
    async with reading(cluster, on_bad_frame="gap") as reader:
        await reader.read(2)
        write(cluster.log(0), FOREIGN, mark(20))
        write(cluster.log(1), mark(20))
        cluster.changed()
        await reader.nothing_comes()
        assert reader.watermark == 10
        write(cluster.log(0), 21)
        cluster.changed()
        await reader.one()
        assert reader.watermark == 20


@in_virtual_time
async def test_partitions_that_the_writers_do_not_know_stop_the_stream() -> None:
    async with reading(cluster_of(hello(partitions=4), 1, partitions=2)) as reader:
        with pytest.raises(SplitFailedError, match="'t' has 2 partitions, and by what its wri"):
            await reader.one()


@in_virtual_time
async def test_partitions_that_are_added_later_stop_the_stream() -> None:
    cluster = cluster_of(hello(), 1)
    async with reading(cluster) as reader:
        await reader.read(1)
        more = ScriptedCluster(2)
        cluster.logs |= {more.partitions[1]: more.log(1)}
        with pytest.raises(ServiceError, match="'t' has 2 partitions, and by what its writers"):
            await reader.one()


@in_virtual_time
async def test_a_topic_with_another_number_of_partitions_is_not_opened() -> None:
    with pytest.raises(ServiceError, match="'t' has 2 partitions, and by partition_count it"):
        async with reading(cluster_of(1, partitions=2), partition_count=3):
            pass
    one = {"partitions": ["t-1"]}
    async with reading(cluster_of(1, partitions=2), partition_count=2, kafka=one) as reader:
        await reader.read(1)


@in_virtual_time
async def test_the_end_of_every_producer_ends_the_partition() -> None:
    cluster = cluster_of(hello(0, of=2), hello(1, of=2), 1, mark(10), EndFrame(0, 1), mark(20, 1))
    async with reading(cluster) as reader:
        await reader.read(1)
        await reader.nothing_comes()
        assert reader.watermark == 20
        assert reader.stream.statistics().splits["t-0"].state is SplitState.LIVE
        write(cluster.log(), 2, mark(30, 1), EndFrame(1, 1))
        cluster.changed()
        await reader.read(2)
        await reader.nothing_comes()
        assert reader.stream.statistics().splits["t-0"].state is SplitState.ENDED
        positions = Checkpoint.from_json(reader.stream.positions)
        assert positions.splits["t-0"].ended


@in_virtual_time
async def test_an_end_behind_which_a_newer_generation_writes_is_none() -> None:
    cluster = cluster_of(hello(), 1, mark(10), EndFrame(0, 1), hello(generation=2), 2)
    async with reading(cluster) as reader:
        await reader.read(2)
        await reader.nothing_comes()
        assert reader.stream.statistics().splits["t-0"].state is SplitState.LIVE


@in_virtual_time
async def test_an_end_with_which_an_answer_ends_is_none_where_more_follows() -> None:
    cluster = cluster_of(hello(), b"\x01\x01" + bytes(20_000), mark(10), EndFrame(0, 1))
    write(cluster.log(), hello(generation=2), 2)
    small = {"consumer_options": {"max.partition.fetch.bytes": 16_384}}
    async with reading(cluster, kafka=small) as reader:
        assert [(await anext(reader.stream)).num_records for _ in range(2)] == [1, 1]


@in_virtual_time
async def test_an_end_that_was_stored_before_it_was_told_is_told_after_a_restart() -> None:
    cluster = cluster_of(hello(), 1, mark(10), 2)
    async with reading(cluster) as reader:
        await reader.read(2)
        positions = Checkpoint.from_json(reader.stream.positions)
    producers = producers_at(positions.splits["t-0"].position)
    producers.apply(EndFrame(0, 1))
    resume = with_state(positions, producers.to_state())
    async with reading(cluster, resume=resume) as reader:
        await reader.nothing_comes()
        assert reader.stream.statistics().splits["t-0"].state is SplitState.ENDED


@in_virtual_time
async def test_a_bounded_read_stops_at_its_stop_with_the_watermark_there() -> None:
    cluster = cluster_of(hello(), 1, mark(10), 11, mark(20), 21)
    stop = {"stop": {"t-0": 4}}
    async with reading(cluster, kafka=stop) as reader:
        assert [int(v) async for b in reader.stream for v in b.records["value"].to_pylist()] == [
            1,
            11,
        ]
        assert reader.watermark == 10
        positions = reader.stream.delivered.to_json()
    async with reading(cluster, resume=positions) as reader:
        await reader.read(1)
        assert (reader.batches[0].watermark, reader.records) == (20, {"t-0": [21]})


@in_virtual_time
async def test_a_bounded_read_of_what_has_ended_ends() -> None:
    cluster = cluster_of(hello(partitions=2), 1, mark(10), EndFrame(0, 1), partitions=2)
    async with reading(cluster, kafka={"stop": "latest"}) as reader:
        found = [batch.num_records async for batch in reader.stream]
        assert found == [1, 1]
        assert all(s.ended for s in reader.stream.delivered.splits.values())


def test_a_silent_producer_is_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        cluster = cluster_of(hello(0, of=3), hello(1, of=3), 1, mark(10, 0), mark(50, 1))
        async with reading(cluster, producer_timeout=60) as reader:
            await reader.read(1)
            await reader.nothing_comes(50)
            write(cluster.log(), mark(60, 1))
            cluster.changed()
            await reader.nothing_comes(8)
            assert reader.watermark is None
            await reader.nothing_comes(10)
            assert reader.watermark == 60
            reported = reader.producers()
            out = Activity.LEFT_OUT
            assert [reported.seen[n].activity for n in range(3)] == [out, Activity.ACTIVE, out]
            write(cluster.log(), mark(70, 0), mark(99, 1))
            cluster.changed()
            await reader.nothing_comes(1)
            assert reader.watermark == 70

    simulate(test)
    assert (
        "these producers of t-0, of generation 1, have written nothing for 60 s: 0, 2; the "
        "watermark goes on without them"
    ) in caplog.messages


@in_virtual_time
async def test_a_silent_producer_stops_the_stream_where_the_user_says_so() -> None:
    cluster = cluster_of(hello(0, of=2), hello(1, of=2), 1, mark(10, 0), IdleFrame(0, 1))
    async with reading(cluster, **STRICT) as reader:
        await reader.read(1)
        await reader.nothing_comes(55)
        with pytest.raises(SplitFailedError, match="nothing for 60 s: 1; start them") as failure:
            await reader.nothing_comes(20)
        assert isinstance(failure.value.__cause__, SilentProducerError)


@pytest.mark.long
@in_virtual_time
async def test_an_idle_producer_is_not_silent_and_without_a_timeout_nobody_is() -> None:
    cluster = cluster_of(hello(), 1, mark(10), IdleFrame(0, 1))
    async with reading(cluster, **STRICT) as reader:
        await reader.read(1)
        await reader.nothing_comes(1000)
    async with reading(cluster_of(hello(), 1)) as reader:
        await reader.read(1)
        await reader.nothing_comes(3000)
        assert reader.producers().awaited == [0]


@in_virtual_time
async def test_a_consumer_that_takes_its_time_blames_nobody() -> None:
    cluster = cluster_of(hello(), 1, mark(1))
    async with reading(cluster, **STRICT) as reader:
        for tick in range(2, 20):
            await reader.one()
            write(cluster.log(), tick)
            cluster.changed()
            await asyncio.sleep(50)
            write(cluster.log(), mark(tick))
            cluster.changed()
            await asyncio.sleep(50)
        await reader.one()
        await reader.nothing_comes(50)


@in_virtual_time
async def test_a_reader_that_lags_behind_blames_nobody() -> None:
    cluster = ScriptedCluster(latency=4.0)
    write(cluster.log(), hello(0, of=2), hello(1, of=2), mark(1, 0))
    for _ in range(40):
        write(cluster.log(), b"\x01\x01" + bytes(20_000), mark(2, 1))
    small = {"consumer_options": {"max.partition.fetch.bytes": 16_384}}
    async with reading(cluster, kafka=small, **STRICT) as reader:
        for _ in range(40):
            await anext(reader.stream)
        assert asyncio.get_running_loop().time() > 160
        await reader.nothing_comes(40)
        with pytest.raises(SplitFailedError, match="nothing for 60 s: 0, 1;"):
            await reader.nothing_comes(60)


@in_virtual_time
async def test_an_answer_that_takes_long_is_not_the_fault_of_a_producer() -> None:
    cluster = cluster_of(hello(), 1, mark(1))
    async with reading(cluster, **STRICT) as reader:
        await reader.one()
        cluster._latency = 40.0
        await reader.nothing_comes(400)
        with pytest.raises(SplitFailedError, match="nothing for 60 s: 0;"):
            await reader.nothing_comes(400)


@in_virtual_time
async def test_silence_is_measured_across_subscriptions() -> None:
    cluster = cluster_of(hello(0, of=2), hello(1, of=2), 1, mark(10, 0), mark(50, 1))
    async with reading(cluster, producer_timeout=60) as reader:
        await reader.read(1)
        for _ in range(4):
            await reader.nothing_comes(21)
            cluster.fetch_faults.append(OSError("a broker is gone"))
            write(cluster.log(), mark(60, 1))
            cluster.changed()
        await reader.nothing_comes(21)
        assert reader.stream.statistics().splits["t-0"].resubscriptions == 4
        assert reader.watermark == 60


@in_virtual_time
async def test_records_that_expired_take_no_watermark_with_them() -> None:
    cluster = cluster_of(hello(), 1, mark(10))
    async with reading(cluster) as reader:
        await reader.read(1)
        positions = reader.stream.positions
    log = cluster.log()
    write(log, 11, 12)
    log.expire(5)
    write(log, 13, mark(30))
    lossy = {"on_data_loss": "earliest"}
    async with reading(cluster, resume=positions, kafka=lossy) as reader:
        await reader.read(1)
        assert (reader.records, reader.watermark) == ({"t-0": [13]}, 30)


@in_virtual_time
async def test_a_topic_that_begins_anew_may_count_its_generations_anew() -> None:
    cluster = cluster_of(hello(generation=9), 1, mark(10, generation=9), 2, 3, 4, 5, 6)
    async with reading(cluster) as reader:
        await reader.read(6)
        positions = reader.stream.positions
    cluster.logs[cluster.partitions[0]] = type(cluster.log())()
    write(cluster.log(), hello(generation=1), 1, mark(5), 6, mark(40))
    lossy = {"on_data_loss": "earliest"}
    async with reading(cluster, resume=positions, kafka=lossy) as reader:
        assert (await reader.one()).watermark == 10
        assert (await reader.one()).watermark == 40
        assert reader.producers().generation == 1


@pytest.mark.fault(
    "A topic is deleted and created again between two runs, however many records it has then"
)
@in_virtual_time
async def test_a_topic_that_was_created_again_between_two_runs_is_told_by_its_id() -> None:
    cluster = cluster_of(hello(generation=9), 1, mark(10, generation=9), 2)
    cluster.ids["t"] = "a" * 22
    async with reading(cluster) as reader:
        await reader.read(2)
        positions = reader.stream.positions
    bare = with_state(Checkpoint.from_json(positions), reader.producers().to_state())
    cluster.logs[cluster.partitions[0]] = type(cluster.log())()
    write(cluster.log(), hello(generation=1), 1, mark(5), 6, mark(40), 7)
    cluster.ids["t"] = "b" * 22
    async with reading(cluster, resume=positions) as reader:
        with pytest.raises(SplitFailedError, match="was deleted and created anew"):
            await reader.one()
    lossy = {"on_data_loss": "earliest"}
    async with reading(cluster, resume=positions, kafka=lossy) as reader:
        await reader.read(3)
        assert (reader.records, reader.producers().generation) == ({"t-0": [1, 6, 7]}, 1)
        positions = reader.stream.positions
    for stored in (positions, bare):  # one of an older release has no id
        async with reading(cluster, resume=stored) as reader:
            await reader.nothing_comes() if stored == positions else await reader.read(1)


@in_virtual_time
async def test_positions_of_a_plain_source_of_kafka_are_refused() -> None:
    cluster = cluster_of(hello(), 1)
    async with reading(cluster) as reader:
        positions = reader.stream.positions
    assert Checkpoint.from_json(positions).source == "shuffle:kafka:scripted"
    with pytest.raises(PositionError, match="belong to kafka:scripted"):
        async with reading(cluster, resume=positions.replace("shuffle:", "")):
            pass


@in_virtual_time
async def test_a_damaged_state_is_refused_when_the_stream_opens() -> None:
    cluster = cluster_of(hello(), 1, mark(5))
    async with reading(cluster) as reader:
        await reader.read(1)
        positions = Checkpoint.from_json(reader.stream.positions)
    resume = with_state(positions, "[9]")
    with pytest.raises(PositionError, match="format version 9"):
        async with reading(cluster, resume=resume):
            pass


def test_nothing_holds_on_to_records_that_were_handed_over() -> None:
    async def nothing(nbytes: int) -> None:
        assert nbytes > 0

    async def no_more(events: AsyncIterator[Any]) -> None:
        async for _ in events:
            pass

    async def test() -> None:
        large = b"\x01\x01" + bytes(1 << 20)
        cluster = cluster_of(hello(), large, mark(1), large, mark(2))
        (split,) = (partition.split for partition in cluster.partitions)
        async with (
            ScriptedShuffle(cluster).connect() as connection,
            connection.subscribe(split, Cursor(-1), nothing) as events,
        ):
            before = pa.total_allocated_bytes()
            for _ in range(3):
                assert isinstance(await anext(events), fanout.Batch)
            assert pa.total_allocated_bytes() - before > 2 << 20
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(no_more(events))
                await asyncio.sleep(1)
                assert pa.total_allocated_bytes() - before < 1 << 20
                waiting.cancel()

    simulate(test)


@in_virtual_time
async def test_memory_is_reserved_for_each_piece() -> None:
    cluster = cluster_of(hello(), 1, mark(1), b"\x01\x01" + bytes(5_000), mark(2), 3)
    async with reading(cluster) as reader:
        await reader.one()
        await asyncio.sleep(0.1)
        # The large one waits in the slot, and the last one was read.
        batch_bytes = 5_000
        assert batch_bytes < reader.stream.statistics().bytes_in_flight < 3 * batch_bytes


def test_a_stream_cancelled_at_any_step_leaves_nothing_and_is_continued_exactly() -> None:
    assert sweep(cancelled_and_continued) > 30


async def cancelled_and_continued(cancellation: Any) -> None:
    """Read everything, with one cancellation."""
    cluster = cluster_of(*(hello(n, of=2, partitions=2) for n in range(2)), partitions=2)
    cluster.fetch_faults.append(OSError("a broker is gone"))
    for log in cluster.logs.values():
        write(log, 1, 2, mark(2, 0), mark(1, 1))
        write(log, 3, mark(3, 0), 4, mark(4, 1), EndFrame(0, 1), EndFrame(1, 1))
    values: list[int] = []
    marks: list[int] = []
    positions: str | None = None

    async def run() -> None:
        nonlocal positions
        async with reading(cluster, resume=positions) as reader:
            try:
                while len(values) < 8:
                    batch = await anext(reader.stream)
                    await asyncio.sleep(0.1)
                    values.extend(map(int, batch.records["value"].to_pylist()))
                    if reader.watermark is not None:
                        marks.append(reader.watermark)
                    await reader.stream.acknowledge(batch)
            finally:
                positions = reader.stream.positions

    await cancellation.run(run())
    assert len(asyncio.all_tasks()) == 1
    if len(values) < 8:
        await run()
    assert sorted(values) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert marks == sorted(marks)
    assert marks[-1] >= 2


KAFKA: dict[str, Any] = {
    "cluster": Cluster("localhost", security=Security(protocol="PLAINTEXT")),
    "topics": "t",
}


@pytest.mark.parametrize(
    ("kafka", "options", "sentence"),
    [
        ({"decode": lambda records: records}, {}, "decode is not for a shuffle"),
        ({"event_time": EventTime()}, {}, "event_time is not for a shuffle"),
        ({"isolation_level": "read_uncommitted"}, {}, "isolation_level='read_committed'"),
        ({}, {"partition_count": 0}, "partition_count=0 must be at least 1, or None"),
        ({}, {"partition_count": "3"}, "partition_count='3' must be a whole number"),
        ({}, {"on_bad_frame": "skip"}, "on_bad_frame='skip' is not understood"),
        ({}, {"on_silent_producer": "wait"}, "on_silent_producer='wait' is not understood"),
        ({}, {"producer_timeout": 9.9}, "producer_timeout=9.9 must be at least 10 seconds"),
        ({}, {"producer_timeout": float("inf")}, "producer_timeout=inf must be .* finite"),
        ({}, {"producer_timeout": "1"}, "producer_timeout='1' must be a number"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    kafka: dict[str, Any], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(OptionError, match=sentence):
        ShuffleSource(KafkaSource(**KAFKA | kafka), **options)


def test_only_a_source_of_kafka_is_taken() -> None:
    with pytest.raises(OptionError, match=r"kafka must be a fanout\.kafka\.KafkaSource"):
        ShuffleSource("localhost")  # type: ignore[arg-type]


class _Committed(ScriptedCluster):
    """A cluster with a group that another client has committed for, with leader epochs."""

    async def has_members(self, group_id: str) -> bool:
        del group_id
        return False

    async def committed(
        self, group_id: str, partitions: Sequence[Partition]
    ) -> Mapping[Partition, Cursor | None]:
        del group_id
        return {each: Cursor(0, state="epoch 3") for each in partitions}


@in_virtual_time
async def test_a_leader_epoch_of_a_committed_offset_is_not_taken_for_producers() -> None:
    cluster = _Committed()
    write(cluster.log(), hello(), 1_000, mark(2_000))
    committed: dict[str, Any] = {"group_id": "g", "start": "committed"}
    async with ScriptedShuffle(cluster, committed).connect() as connection:
        (found,) = (await connection.resolve(await connection.splits())).values()
    assert isinstance(found, Cursor)
    assert found.sequence == 0
    assert producers_at(found).seen == {}
