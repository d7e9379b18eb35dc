from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from benchmarks.consume_queue import FANOUT, PEER, read_by_boto3, read_by_fanout, run
from benchmarks.queue_replay import replay_queue

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

RECORDS = 300


async def _rows(arriving: AsyncGenerator[pa.RecordBatch, None]) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    async with aclosing(arriving):
        async for batch in arriving:
            batches.append(batch)
            if sum(one.num_rows for one in batches) >= RECORDS:
                break
    return pa.Table.from_batches(batches).sort_by("recordId").slice(0, RECORDS // 3)


async def test_both_contenders_build_the_same_columns() -> None:
    # Each server begins with the same records.
    with replay_queue(100) as port:
        ours = await _rows(read_by_fanout(f"http://127.0.0.1:{port}", 1))
    with replay_queue(100) as port:
        theirs = await _rows(read_by_boto3(f"http://127.0.0.1:{port}", 1))
    assert ours.num_rows == RECORDS // 3
    assert ours.equals(theirs)


@pytest.mark.usefixtures("one_process")
def test_as_many_calls_are_compared() -> None:
    report = run(rounds=1, records={100: 500}, receivers=2)
    assert [(row.name, row.shards) for row in report.rows] == [(FANOUT, 2), (PEER, 2)]
    ours, theirs = (row.records_per_second for row in report.rows)
    assert report.ratios == {"consume/kinesis-queue/100/vs_boto3": ours / theirs}
