from __future__ import annotations

from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from benchmarks import consume_share
from benchmarks.consume_share import read_by_confluent, read_by_fanout, run
from benchmarks.kafka_topic import filled_broker

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

RECORDS = 5000

pytestmark = pytest.mark.usefixtures("_kafka_jars")  # skipped where there is no Kafka


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with filled_broker(100, RECORDS) as servers:
        yield servers


async def _rows(arriving: AsyncGenerator[pa.RecordBatch, None]) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    async with aclosing(arriving):
        async for batch in arriving:
            batches.append(batch)
            if sum(one.num_rows for one in batches) >= RECORDS:
                break
    return pa.Table.from_batches(batches).sort_by(
        [("partition", "ascending"), ("offset", "ascending")]
    )


async def test_both_contenders_build_the_same_columns(servers: str) -> None:
    ours = await _rows(read_by_fanout(servers, "ours", 2))
    assert ours.num_rows == RECORDS
    assert ours.equals(await _rows(read_by_confluent(servers, "theirs")))


@pytest.mark.usefixtures("one_process")
def test_one_consumer_is_compared_with_one_and_with_several(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def held(record_bytes: int, records: int) -> Iterator[str]:
        assert (record_bytes, records) == (100, RECORDS)
        yield servers

    monkeypatch.setattr(consume_share, "filled_broker", held)
    report = run(rounds=1, records={100: 4000}, members=(1, 3))
    names = ["bare loop", "fanout, 1 consumer", "fanout, 3 consumers"]
    assert [(row.name, row.shards) for row in report.rows] == [(name, 4) for name in names]
    bare, one, three = (row.records_per_second for row in report.rows)
    assert report.ratios == {
        "consume/kafka-share/100/vs_confluent": one / bare,
        "consume/kafka-share/100/3_consumers/vs_1_consumer": three / one,
    }
