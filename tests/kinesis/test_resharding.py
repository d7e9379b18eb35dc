"""Resharding over real sockets: nothing lost, nothing twice, and parents before their children."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from fanout.core.checkpoint import Checkpoint
from fanout.testing.faults import RefuseSubscribe
from fanout.testing.kinesis.rules import KinesisRules
from tests.support.kinesis.reading import FIRST, Stream, client

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import fanout

SECOND, THIRD = (f"shardId-{number:012}" for number in (1, 2))

small_events = pytest.mark.parametrize(
    "rules", [replace(KinesisRules.fast(), max_event_records=2)], ids=["2 records an event"]
)


class Storm:
    """Split and merge at random, and know the family of every shard."""

    def __init__(self, stream: Stream, seed: int, *, most: int = 16) -> None:
        self._stream = stream
        self._random = Random(seed)
        self._most = most
        self.parents: dict[str, tuple[str, ...]] = {}
        with client(stream) as kinesis:
            listed = kinesis.list_shards(StreamName=stream.name)["Shards"]
        # Neighbours in the hash keys are neighbours here.
        self._open = [shard["ShardId"] for shard in listed]

    def reshard(self) -> None:
        split = len(self._open) < 2 or self._random.random() < 0.5
        if split and len(self._open) < self._most:
            at = self._random.randrange(len(self._open))
            parent = self._open[at]
            children = self._stream.server.split_shard(self._stream.name, parent)
            self._open[at : at + 1] = children
            self.parents |= dict.fromkeys(children, (parent,))
        else:
            at = self._random.randrange(len(self._open) - 1)
            pair = tuple(self._open[at : at + 2])
            if self._random.random() < 0.5:
                pair = pair[::-1]
            child = self._stream.server.merge_shards(self._stream.name, *pair)
            self._open[at : at + 2] = [child]
            self.parents[child] = pair


def check_order(order: Iterable[str], parents: Mapping[str, tuple[str, ...]]) -> None:
    """Check that nothing of a shard came after something of what replaces it, or of that."""
    last = {shard: place for place, shard in enumerate(order)}
    first: dict[str, int] = {}
    for place, shard in enumerate(order):
        first.setdefault(shard, place)
    for child, begun in first.items():
        ancestors = list(parents.get(child, ()))
        while ancestors:
            ancestor = ancestors.pop()
            ancestors += parents.get(ancestor, ())
            assert last.get(ancestor, -1) < begun, f"{ancestor} after {child}"


@pytest.mark.fault("Children begin at their horizon, after all their parents")
@small_events
@pytest.mark.parametrize("shards", [8])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.prove) for n in (1, 2, 3))]
)
async def test_a_storm_of_reshards_while_writing_and_reading_loses_and_repeats_nothing(
    stream: Stream, seed: int
) -> None:
    storm = Storm(stream, seed)
    async with stream.reading() as reader:
        for _ in range(30):
            stream.put(6)
            storm.reshard()
            await asyncio.sleep(0.01)
        stream.put(30)
        await reader.has(stream.put_in_all)
    assert reader.log == stream.log
    check_order(reader.order, storm.parents)
    assert stream.server.statistics().violations == {}


async def take(opened: fanout.FanOut, events: int, left: int) -> list[fanout.Batch]:
    """Take so many batches, or fewer where so many records are in them."""
    taken: list[fanout.Batch] = []
    while len(taken) < events and left > 0:
        taken.append(await anext(opened))
        left -= taken[-1].num_records
        await opened.acknowledge(taken[-1])
    return taken


@pytest.mark.long
@pytest.mark.fault("A restart in the middle of a reshard, and of every reshard of many")
@small_events
@pytest.mark.parametrize("shards", [3])
@pytest.mark.parametrize(
    ("seed", "every"),
    [
        pytest.param(0, 1, marks=pytest.mark.prove),
        (1, 2),
        pytest.param(2, 5, marks=pytest.mark.prove),
        pytest.param(3, 9, marks=pytest.mark.prove),
    ],
)
async def test_a_restart_after_every_few_events_of_a_storm_loses_and_repeats_nothing(
    stream: Stream, seed: int, every: int
) -> None:
    storm = Storm(stream, seed, most=5)
    seen: defaultdict[str, list[str]] = defaultdict(list)
    order: list[str] = []
    reshards = 10
    saved = None
    count = 0
    while reshards or count < stream.put_in_all:
        if reshards:
            stream.put(5)
            storm.reshard()
            reshards -= 1
        async with stream.open(resume=saved) as opened, asyncio.timeout(10):
            for batch in await take(opened, every, stream.put_in_all - count):
                numbers = batch.records.column("sequenceNumber").to_pylist()
                seen[batch.split.id] += numbers
                order.append(batch.split.id)
                count += len(numbers)
            saved = opened.positions
    assert seen == stream.log
    check_order(order, storm.parents)
    assert stream.server.statistics().violations == {}


@pytest.mark.fault("A merged shard has two parents, one slower than the other")
@small_events
@pytest.mark.parametrize("shards", [2])
@pytest.mark.parametrize("slow", [FIRST, SECOND])
async def test_a_merged_shard_waits_for_the_slower_of_its_parents(
    stream: Stream, slow: str
) -> None:
    stream.inject(RefuseSubscribe(shard=slow, times=10))
    for shard in (FIRST, SECOND):
        stream.put(6, shard=shard)
    child = stream.server.merge_shards("orders", FIRST, SECOND)
    stream.put(6)
    async with stream.reading() as reader:
        await reader.has(18)
    assert reader.log == stream.log
    assert len(reader.causes) == 10
    check_order(reader.order, {child: (FIRST, SECOND)})


@pytest.mark.fault("The last event has records as well")
async def test_the_last_records_of_a_shard_may_come_together_with_its_end(stream: Stream) -> None:
    stream.put(3)
    children = stream.server.split_shard("orders", FIRST)
    stream.put(3)
    async with stream.reading() as reader:
        await reader.has(6)
    assert reader.log == stream.log
    assert reader.order.count(FIRST) == 1
    assert stream.server.statistics().subscribe_calls[FIRST] == 1
    check_order(reader.order, dict.fromkeys(children, (FIRST,)))


@pytest.mark.fault("A restart exactly at the end of a shard")
async def test_a_finished_shard_is_not_subscribed_to_again_after_a_restart(stream: Stream) -> None:
    stream.put(3)
    stream.server.split_shard("orders", FIRST)
    stream.put(6)
    async with stream.reading() as reader:
        await reader.has(9)
        saved = reader.stream.positions
    assert Checkpoint.from_json(saved).splits[FIRST].ended
    calls = stream.server.statistics().subscribe_calls[FIRST]
    stream.put(6)
    async with stream.reading(resume=saved) as again:
        await again.has(6)
    assert stream.server.statistics().subscribe_calls[FIRST] == calls
    assert {shard: reader.log[shard] + again.log[shard] for shard in stream.log} == stream.log


@pytest.mark.long
@small_events
async def test_closed_shards_are_read_to_their_end_from_the_horizon(stream: Stream) -> None:
    stream.put(9)
    storm = Storm(stream, seed=5)
    for _ in range(12):
        storm.reshard()
        stream.put(9)
    async with stream.reading(start="TRIM_HORIZON") as reader:
        await reader.has(stream.put_in_all)
    assert reader.log == stream.log
    check_order(reader.order, storm.parents)


@pytest.mark.fault("A shard has no records, now or ever")
async def test_a_shard_without_records_moves_in_the_positions_all_the_same(stream: Stream) -> None:
    async with stream.open() as opened:
        first = opened.positions
        async with asyncio.timeout(10):
            while opened.positions == first:
                # Nothing has a record, so that the wait for one is given up again and again.
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await anext(opened)
        assert opened.statistics().records == 0


async def test_the_log_has_start_reshard_stop_and_resume_in_the_terms_of_kinesis(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fanout.lifecycle")
    stream.put(3)
    async with stream.reading() as reader:
        await reader.has(3)
        left, right = stream.server.split_shard("orders", FIRST)
        stream.put(2, shard=left)
        stream.put(2, shard=right)
        await reader.has(7)
        identity = Checkpoint.from_json(reader.stream.positions).source
        nbytes = sum(each.bytes for each in reader.stream.statistics().splits.values())
        saved = reader.stream.positions
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.INFO]
    assert lines[0] == f"{identity} starts with 1 shard: {FIRST} at TRIM_HORIZON"
    assert f"{FIRST} was read to its end; its children: {left}, {right}" in lines
    assert lines[-1].startswith(f"{identity} stopped after ")
    assert f" s: 7 records, {nbytes} bytes, " in lines[-1]
    caplog.clear()
    async with stream.open(resume=saved):
        pass
    splits = Checkpoint.from_json(saved).splits
    at = [splits[shard].position for shard in (left, right)]
    assert caplog.messages[0] == (
        f"{identity} resumes from stored positions with 2 shards: "
        f"{left} after sequence number {getattr(at[0], 'sequence', None)}, "
        f"{right} after sequence number {getattr(at[1], 'sequence', None)}; "
        f"1 more had been read to the end"
    )
    assert "key-" not in "".join(lines + caplog.messages)
