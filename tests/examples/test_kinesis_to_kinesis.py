"""docs/examples/kinesis_to_kinesis.py: run as it stands, and killed at each step of a batch.

Nothing is lost. What is there twice has the same id, and no two records have one id.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest

import fanout
from fanout.kinesis import KinesisSource, read_deduplication_ids
from tests.examples.doomed import Kill
from tests.examples.harness import AFTER_HANDLER, IN_HANDLER, Example
from tests.examples.waves import last_of_each_key, put_wave, sent
from tests.kinesis.reading import session

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.testing.kinesis.server import KinesisServer

pytestmark = [pytest.mark.prove, pytest.mark.timeout(1200)]

RUN = "fanout.spark.kinesis_sink.sink:KinesisSink._run"
# Each run but the first repeats a batch, and is killed in the one after it.
KILLS = (
    Kill(IN_HANDLER, "in job"),
    Kill(RUN, "before", call=2),
    Kill(RUN, "after", call=2),  # all is written, and Spark does not know it
    Kill(AFTER_HANDLER, "after", call=2),
)


def test_kills_lose_nothing_and_repeats_are_found_by_their_id(
    kinesis_server: KinesisServer, tmp_path: Path
) -> None:
    kinesis_server.create_stream("orders", 2)
    kinesis_server.create_stream("orders-copy", 2)
    example = Example("kinesis_to_kinesis.py", tmp_path, kinesis_server.environment)
    for number, kill in enumerate(KILLS):
        put_wave(kinesis_server, number)
        example.run_and_kill(kill)
    put_wave(kinesis_server, len(KILLS))
    newest = last_of_each_key(len(KILLS) + 1)
    example.run_until(lambda: newest <= {data for _, data in copied(kinesis_server)})
    found = copied(kinesis_server)
    by_id = dict(found)
    assert all(by_id[id_] == data for id_, data in found), "one id is one record"
    assert sorted(by_id.values()) == sent(len(KILLS) + 1), "nothing is lost, and ids find repeats"
    assert len(found) > len(by_id), "a kill after the write has repeated a batch"


@pytest.mark.parametrize("seed", range(2))
def test_kills_in_the_middle_of_writing_keep_the_order_of_each_key(
    kinesis_server: KinesisServer, tmp_path: Path, seed: int
) -> None:
    kinesis_server.create_stream("orders", 2)
    kinesis_server.create_stream("orders-copy", 2)
    example = Example("kinesis_to_kinesis.py", tmp_path, kinesis_server.environment)
    random = Random(seed)
    given: list[bytes] = []
    for wave in range(4):
        data = [b"%d-%04d" % (wave, n) for n in range(2_000)]
        kinesis_server.put_records("orders", [(f"key-{n % 7}", one) for n, one in enumerate(data)])
        given += data
        if wave < 3:
            due = stored(kinesis_server) + random.randrange(50, 1_500)
            example.kill_when(lambda due=due: stored(kinesis_server) >= due)  # type: ignore[misc]
    example.run_until(lambda: len({id_ for id_, _ in copied(kinesis_server)}) >= len(given))
    found = copied(kinesis_server)
    by_id = dict(found)
    assert all(by_id[id_] == data for id_, data in found), "one id is one record"
    assert len(found) > len(by_id), "a kill in the middle of a batch has repeated some of it"
    assert sorted(by_id.values()) == sorted(given), "nothing is lost"
    for key in range(7):
        of_key = [data for n, data in enumerate(given) if n % 2_000 % 7 == key]
        wanted = set(of_key)
        assert [*dict.fromkeys(data for _, data in found if data in wanted)] == of_key


def stored(kinesis: KinesisServer) -> int:
    """Return how many records the copy has, repeats included."""
    shards = kinesis._stream("orders-copy").shards.values()
    return sum(len(shard._numbers) for shard in shards)


def copied(kinesis: KinesisServer) -> list[tuple[bytes, bytes]]:
    """Return the id and the data of each record in the copy."""
    source = KinesisSource(
        stream="orders-copy",
        mode="polling",
        start="TRIM_HORIZON",
        endpoint_url=kinesis.endpoint_url,
        session=session(),
        decode=read_deduplication_ids,
    )

    async def drain() -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        async with fanout.open(source) as stream:
            while not stream.caught_up:
                for batch in (await stream.drain(max_wait=0.2)).batches:
                    columns = (batch.records[n].to_pylist() for n in ("deduplicationId", "data"))
                    found += zip(*columns, strict=True)
        return found

    return asyncio.run(drain())
