from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from benchmarks import writer
from benchmarks.kafka_topic import PARTITIONS
from benchmarks.shuffle import batches
from tests.support.kafka.writing import read

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker


async def test_all_contenders_write_the_same_records_to_the_same_partitions(
    kafka_broker: KafkaBroker,
) -> None:
    [made] = batches(100, 600)
    given = [made.slice(0, 300), made.slice(300)]
    found = []
    for number, write in enumerate(writer.WRITERS.values()):
        topic = f"benchmark-writer-{number}"
        await asyncio.to_thread(kafka_broker.create_topic, topic, PARTITIONS)
        await write(kafka_broker.bootstrap_servers, topic, given)
        of_topic = await read(kafka_broker, topic, PARTITIONS)
        found.append({n: [(one.key, one.value) for one in of_topic[n]] for n in range(PARTITIONS)})
    ours, *others = found
    assert sum(map(len, ours.values())) == 600
    assert [*others] == [ours] * len(others)


def test_a_report_has_a_ratio_to_each_other_producer(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "run_apart", lambda work: work())
    monkeypatch.setattr(writer, "KafkaBroker", lambda **_: nullcontext(kafka_broker))
    report = writer.run(rounds=1, records={100: 80_000})
    rates = {row.name: row.records_per_second for row in report.rows}
    assert list(rates) == list(writer.WRITERS)
    assert report.ratios == {
        f"writer/kafka/100{suffix}/vs_{peer}": pytest.approx(rates[ours] / rates[peer])
        for ours, suffix in (("fanout", ""), ("fanout, rows", "_rows"))
        for peer in ("aiokafka", "confluent")
    }
