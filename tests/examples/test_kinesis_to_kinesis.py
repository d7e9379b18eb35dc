"""docs/examples/kinesis_to_kinesis.py: run as it stands, and killed once.

The crash campaign kills jobs with this sink at each step of a batch. Nothing is lost.
What is there twice has the same id, and no two records have one id.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import fanout
from fanout.kinesis import KinesisSource, read_deduplication_ids
from tests.examples.harness import Example
from tests.examples.waves import last_of_each_key, put_wave, sent
from tests.support.doomed import Kill
from tests.support.kinesis.reading import session

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.testing.kinesis.server import KinesisServer

pytestmark = [pytest.mark.prove, pytest.mark.timeout(1200)]

# All is written, and Spark does not know it.
KILL = Kill("fanout.spark.sinks.kinesis.sink:KinesisSink._run", "after")


@pytest.mark.fault("A job that writes to Kinesis is killed")
def test_a_kill_loses_nothing_and_repeats_are_found_by_their_id(
    kinesis_server: KinesisServer, tmp_path: Path
) -> None:
    kinesis_server.create_stream("orders", 2)
    kinesis_server.create_stream("orders-copy", 2)
    example = Example("kinesis_to_kinesis.py", tmp_path, kinesis_server.environment)
    put_wave(kinesis_server, 0)
    example.run_and_kill(KILL)
    put_wave(kinesis_server, 1)
    newest = last_of_each_key(2)
    example.run_until(lambda: newest <= {data for _, data in copied(kinesis_server)})
    found = copied(kinesis_server)
    by_id = dict(found)
    assert all(by_id[id_] == data for id_, data in found), "one id is one record"
    assert sorted(by_id.values()) == sent(2), "nothing is lost, and ids find repeats"
    assert len(found) > len(by_id), "a kill after the write has repeated a batch"


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
