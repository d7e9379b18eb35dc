"""Two streams in one source, resharded, cut off, left out and read again at random."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING

import pytest

from fanout.testing.faults import CutConnection, RefuseSubscribe
from tests.kinesis.test_resharding import Storm, check_order, small_events, take
from tests.support.kinesis.reading import Stream

if TYPE_CHECKING:
    import fanout

pytestmark = pytest.mark.long

NAMES = ("orders", "payments")
# What the runs read one after the other, at random; the last ones read all.
CHOICES = (NAMES, NAMES, NAMES[::-1], NAMES[:1], NAMES[1:])
RESHARDS = 12
FAULTS = (
    CutConnection(event=None),
    RefuseSubscribe(code="ResourceInUseException"),
    RefuseSubscribe(code="InternalFailureException"),
)


@small_events
@pytest.mark.parametrize("shards", [3])
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.prove) for n in range(2, 8))]
)
async def test_runs_that_read_one_or_both_streams_of_a_storm_lose_and_repeat_nothing(
    stream: Stream, seed: int
) -> None:
    random = Random(seed)
    streams = {one.name: one for one in (stream, Stream(stream.server, name=NAMES[1]))}
    storms = {name: Storm(one, seed, most=4) for name, one in streams.items()}
    seen: defaultdict[str, list[str]] = defaultdict(list)
    order: list[str] = []
    saved: str | None = None

    def left(*names: str) -> int:
        put = sum(streams[name].put_in_all for name in names)
        return put - sum(len(log) for id_, log in seen.items() if id_.partition("/")[0] in names)

    def note(batch: fanout.Batch) -> None:
        order.append(batch.split.id)
        seen[batch.split.id] += batch.records.column("sequenceNumber").to_pylist()

    for run in range(1000):
        reshards = run < RESHARDS
        if not reshards and not left(*NAMES):
            break
        names = random.choice(CHOICES) if reshards else NAMES
        for name in NAMES if reshards else ():
            streams[name].put(random.randrange(8))
            if random.random() < 0.5:
                storms[name].reshard()
        if random.random() < 0.5:
            stream.inject(random.choice(FAULTS))
        opening = stream.open(
            stream=list(names), mode=random.choice(("efo", "polling")), resume=saved
        )
        async with opening as opened, asyncio.timeout(20):
            for batch in await take(opened, random.randint(1, 6), left(*names)):
                note(batch)
            saved = opened.positions
    assert seen == {
        f"{name}/{shard}": numbers
        for name, one in streams.items()
        for shard, numbers in one.log.items()
    }
    parents = {
        f"{name}/{child}": tuple(f"{name}/{parent}" for parent in those)
        for name, storm in storms.items()
        for child, those in storm.parents.items()
    }
    check_order(order, parents)
    assert stream.server.statistics().violations == {}
