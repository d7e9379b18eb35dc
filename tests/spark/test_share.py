"""A share group into Spark: each record once by topic, partition and offset."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from fanout.errors import OptionError
from fanout.spark import OnExecutors
from tests.spark.doomed_driver import run_and_kill
from tests.spark.doomed_share_driver import MOMENTS, share
from tests.support.kafka.topics import Topic
from tests.support.spark.harness import Gate, Recorder, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, Row

    from fanout.core.statistics import LendingStatistics
    from fanout.spark import FanOutQuery
    from fanout.testing.kafka.broker import KafkaBroker

    Start = Callable[..., FanOutQuery]

pytestmark = pytest.mark.spark

RECORDS = 20_000
OF_EACH = RECORDS // len(MOMENTS)


def places(rows: list[Row]) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in rows)


def written(topic: Topic) -> list[tuple[int, int]]:
    return sorted((number, offset) for number, log in topic.log.items() for offset, _ in log)


def lent(query: FanOutQuery) -> LendingStatistics:
    statistics = query.statistics().lending
    assert statistics is not None
    return statistics


class Places(Recorder):
    """A handler that collects where its records come from."""

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        super().__call__(df.select("partition", "offset"), batch_id)


@pytest.mark.long
def test_every_record_comes_once_wherever_the_driver_was_killed(
    start: Start, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topics = {moment: Topic(kafka_broker, partitions=4, name=moment) for moment in MOMENTS}
    for topic in topics.values():
        for partition in range(4):
            topic.put(OF_EACH // 8, partition=partition)
    address = kafka_broker.bootstrap_servers
    run_and_kill(address, str(tmp_path), module="tests.spark.doomed_share_driver")
    found = {moment: tmp_path / moment / "fanout" for moment in MOMENTS}
    counted = {
        moment: [len(list(at.glob(kind))) for kind in ("segments/*", "pending/*", "batches/*")]
        for moment, at in found.items()
    }
    # A run takes a pending number for itself, before the first segment.
    assert counted["share-before-segment"] == [0, 1, 0]
    assert counted["share-before-accept"] == counted["share-after-accept"] == [1, 2, 0]
    assert counted["share-in-handler"][2] == 1
    for topic in topics.values():
        for partition in range(4):
            topic.put(OF_EACH // 8, partition=partition)
    handlers = {moment: Places() for moment in MOMENTS}
    queries = {
        moment: start(
            share(address, moment, consumers=2),
            handlers[moment],
            checkpoint_location=str(tmp_path / moment),
        )
        for moment in MOMENTS
    }
    for handler in handlers.values():
        handler.wait_for_rows(OF_EACH)
    eventually(lambda: lent(queries["share-before-accept"]).repeated)
    for moment, topic in topics.items():
        queries[moment].stop()
        assert places(handlers[moment].rows) == written(topic), moment


@pytest.mark.long
def test_a_handler_that_is_slower_than_the_lock_holds_no_locks_and_repeats_nothing(
    start: Start, kafka_broker: KafkaBroker
) -> None:
    topic = Topic(kafka_broker, partitions=2, name="share-slow-handler")
    for partition in range(2):
        topic.put(RECORDS // 2, partition=partition)
    gate = Gate()
    source = share(kafka_broker.bootstrap_servers, topic.name, max_poll_records=800)
    query = start(source, gate, max_records=2000)
    gate.wait_until_entered()
    eventually(lambda: lent(query).accepted >= 2000 and not lent(query).pending_records)
    before = lent(query)  # on a busy machine a lock may have expired until here
    threading.Event().wait(3.5)  # a lock lasts 3 s
    held = lent(query)
    gate.open()
    gate.wait_for_rows(RECORDS)
    query.stop()
    assert (held.pending_records, held.expired) == (0, before.expired)
    assert held.accepted < RECORDS
    assert places(gate.rows) == written(topic)


@pytest.mark.long
def test_a_broker_that_dies_costs_no_record_and_repeats_none(
    start: Start, mortal_broker: KafkaBroker
) -> None:
    topic = Topic(mortal_broker, partitions=2, name="share-dying-broker")
    for partition in range(2):
        topic.put(RECORDS // 4, partition=partition)
    handler = Places()
    source = share(mortal_broker.bootstrap_servers, topic.name, max_poll_records=400)
    query = start(source, handler, max_records=2000)
    handler.wait_for_rows(1)
    mortal_broker.restart()
    for partition in range(2):
        topic.put(RECORDS // 4, partition=partition)
    handler.wait_for_rows(RECORDS)
    query.stop()
    assert places(handler.rows) == written(topic)


def test_landers_do_not_read_a_share_group(start: Start, kafka_broker: KafkaBroker) -> None:
    topic = Topic(kafka_broker, name="share-no-landers")
    source = share(kafka_broker.bootstrap_servers, topic.name)
    with pytest.raises(OptionError) as caught:
        start(source, Recorder(), landing=OnExecutors(landers=1))
    assert "locks records for one stream, so landers cannot read it" in str(caught.value)
    assert "leave landing= out, or start more queries on the group" in str(caught.value)


def test_a_share_group_has_no_end_to_read_to(start: Start, kafka_broker: KafkaBroker) -> None:
    topic = Topic(kafka_broker, name="share-no-end")
    source = share(kafka_broker.bootstrap_servers, topic.name)
    with pytest.raises(OptionError, match="has no end to read to"):
        start(source, Recorder(), available_now=True)
