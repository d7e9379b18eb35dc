from __future__ import annotations

from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from benchmarks import consume_kafka
from benchmarks.consume_kafka import READERS, run
from benchmarks.kafka_topic import PARTITIONS, filled_broker
from fanout.kafka.reading.columns import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator

# More than any contender gets at once: what comes first is not counted.
RECORDS = 100_000

pytestmark = pytest.mark.usefixtures("_kafka_jars")  # skipped where there is no Kafka


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    with filled_broker(100, RECORDS) as servers:
        yield servers


async def _rows(name: str, servers: str) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    async with aclosing(READERS[name](servers)) as arriving:
        async for batch in arriving:
            batches.append(batch)
            if sum(one.num_rows for one in batches) >= RECORDS:
                break
    return pa.Table.from_batches(batches).sort_by(
        [("partition", "ascending"), ("offset", "ascending")]
    )


async def test_all_contenders_build_the_same_columns(servers: str) -> None:
    tables = {name: await _rows(name, servers) for name in READERS}
    ours = tables.pop("fanout")
    assert ours.num_rows == RECORDS
    assert ours.schema == SCHEMA
    for table in tables.values():
        assert table.equals(ours)


async def test_the_records_of_a_topic_are_spread_and_have_the_length_that_is_asked_for(
    servers: str,
) -> None:
    rows = (await _rows("fanout", servers)).select(["partition", "offset", "value"]).to_pylist()
    each = RECORDS // PARTITIONS
    assert [(row["partition"], row["offset"]) for row in rows] == [
        (partition, offset) for partition in range(PARTITIONS) for offset in range(each)
    ]
    assert sum(len(row["value"]) for row in rows) / RECORDS == pytest.approx(100, abs=1)


@pytest.mark.usefixtures("one_process")
def test_each_peer_has_a_ratio_and_each_contender_a_row(
    servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def held(record_bytes: int, records: int) -> Iterator[str]:
        assert (record_bytes, records) == (100, RECORDS)
        yield servers

    monkeypatch.setattr(consume_kafka, "filled_broker", held)
    report = run(rounds=1, records={100: RECORDS})
    assert [(row.name, row.shards) for row in report.rows] == [(name, 4) for name in READERS]
    ours, grouped, *peers = (row.records_per_second for row in report.rows)
    assert report.ratios == {
        "consume/kafka/100/group_vs_none": grouped / ours,
        "consume/kafka/100/vs_aiokafka": ours / peers[0],
        "consume/kafka/100/vs_confluent": ours / peers[1],
    }
    for row in report.rows:
        assert row.cpu_seconds_per_million
        assert min(row.records_per_second, row.cpu_seconds_per_million, row.peak_rss_bytes) > 0
