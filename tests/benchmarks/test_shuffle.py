from __future__ import annotations

import asyncio
from contextlib import aclosing, nullcontext
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from benchmarks import shuffle
from benchmarks.kafka_topic import PARTITIONS
from benchmarks.shuffle import READERS, WRITERS, batches

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker

RECORDS = 600


async def _there_and_back(name: str, broker: KafkaBroker) -> pa.Table:
    topic = f"benchmark-{name}"
    await asyncio.to_thread(broker.create_topic, topic, PARTITIONS)
    [made] = batches(100, RECORDS)
    given = [made.slice(0, RECORDS // 2), made.slice(RECORDS // 2)]
    await WRITERS[name](broker.bootstrap_servers, topic, given)
    arrived: list[pa.RecordBatch] = []
    async with aclosing(READERS[name](broker.bootstrap_servers, topic)) as arriving:
        async for batch in arriving:
            arrived.append(batch)
            if sum(one.num_rows for one in arrived) >= RECORDS:
                break
    table = pa.Table.from_batches(arrived)
    return table.sort_by([("partition", "ascending"), ("offset", "ascending")])


async def test_all_contenders_write_and_read_the_same_records(kafka_broker: KafkaBroker) -> None:
    ours, *others = [
        (await _there_and_back(name, kafka_broker)).select(["partition", "key", "value"])
        for name in WRITERS
    ]
    assert ours.num_rows == RECORDS
    assert len(ours["partition"].unique()) == PARTITIONS
    for table in others:
        assert table.equals(ours)


@pytest.mark.usefixtures("one_process")
def test_the_rate_of_a_ratio_is_that_of_both_halves(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shuffle, "KafkaBroker", lambda **_: nullcontext(kafka_broker))
    report = shuffle.run(rounds=1, records={100: 20_000})
    names = [f"{name}, {half}" for name in WRITERS for half in ("written", "read")]
    assert [(row.name, row.shards) for row in report.rows] == [(name, 4) for name in names]
    rates = {row.name: row.records_per_second for row in report.rows}

    def both(name: str) -> float:
        written, read = rates[f"{name}, written"], rates[f"{name}, read"]
        return written * read / (written + read)

    assert report.ratios == {
        "shuffle/kafka/100/vs_aiokafka": pytest.approx(both("shuffle") / both("aiokafka")),
        "shuffle/kafka/100/vs_plain": pytest.approx(both("shuffle") / both("plain")),
    }
    for row in report.rows:
        assert row.cpu_seconds_per_million
        assert min(row.records_per_second, row.cpu_seconds_per_million, row.peak_rss_bytes) > 0
