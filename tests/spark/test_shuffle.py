from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from fanout.kafka import ShuffleSource
from fanout.kafka.shuffle.frames import HelloFrame, WatermarkFrame, encode_control
from fanout.spark import OnExecutors
from tests.support.kafka.shuffle_scripted import framed
from tests.support.kafka.topics import Topic
from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, Row

    from fanout.kafka.shuffle.frames import ControlFrame
    from fanout.spark import FanOutQuery
    from fanout.testing.kafka.broker import KafkaBroker

END = 60.0


@pytest.mark.parametrize(
    "landing",
    [
        pytest.param(None, id="in the driver"),
        pytest.param(OnExecutors(landers=1), id="by a lander", marks=pytest.mark.prove),
    ],
)
def test_a_query_goes_on_with_the_watermark_that_its_ledger_has(
    kafka_broker: KafkaBroker, start: Callable[..., FanOutQuery], landing: OnExecutors | None
) -> None:
    topic = Topic(kafka_broker, partitions=2)

    def write(*entries: ControlFrame | int) -> None:
        for partition in (0, 1):
            topic.write(
                (
                    {"key": b"k", "value": framed(b"%d" % entry, entry)}
                    if isinstance(entry, int)
                    else {"value": encode_control(entry)}
                    for entry in entries
                ),
                partition,
            )

    rows: list[Row] = []
    batch_ids: list[int] = []
    marks: list[int | None] = []

    def handler(frame: DataFrame, batch_id: int) -> None:
        batch_ids.append(batch_id)
        rows.extend(frame.selectExpr("int(string(value))", "unix_millis(eventTime)").collect())

    def run() -> None:
        query = start(ShuffleSource(topic.source()), handler, available_now=True, landing=landing)
        assert query.await_termination(END)
        batch = query.batch(batch_ids[-1])
        assert batch is not None
        marks.append(batch.watermark)

    write(
        HelloFrame(0, 1, 2, 2),
        HelloFrame(1, 1, 2, 2),
        1,
        WatermarkFrame(0, 1, 100),
        WatermarkFrame(1, 1, 10),
    )
    run()
    # That the other producer is at 100 is known from the ledger alone.
    write(11, WatermarkFrame(1, 1, 20))
    run()
    assert marks == [10, 20]
    assert sorted(map(tuple, rows)) == [(1, 1), (1, 1), (11, 11), (11, 11)]


@pytest.mark.prove
def test_a_lander_that_is_killed_loses_no_record_and_no_watermark(
    kafka_broker: KafkaBroker, start: Callable[..., FanOutQuery]
) -> None:
    topic = Topic(kafka_broker, partitions=1)

    def write(*entries: ControlFrame | int) -> None:
        topic.write(
            {"key": b"k", "value": framed(b"%d" % entry, entry)}
            if isinstance(entry, int)
            else {"value": encode_control(entry)}
            for entry in entries
        )

    rows: list[int] = []
    batch_ids: list[int] = []

    def handler(frame: DataFrame, batch_id: int) -> None:
        batch_ids.append(batch_id)
        rows.extend(row[0] for row in frame.selectExpr("int(string(value))").collect())

    write(HelloFrame(0, 1, 2, 1), HelloFrame(1, 1, 2, 1), 1, WatermarkFrame(0, 1, 100))
    write(WatermarkFrame(1, 1, 10))
    query = start(ShuffleSource(topic.source()), handler, landing=OnExecutors(landers=1))
    eventually(lambda: rows == [1])
    (lander,) = query.progress().landers
    os.kill(lander.pid, signal.SIGKILL)
    # That the other producer is at 100 was known to the lander that was killed.
    write(11, WatermarkFrame(1, 1, 20), 12)
    eventually(lambda: rows == [1, 11, 12])
    query.stop()
    assert query.exception() is None
    batch = query.batch(batch_ids[-1])
    assert batch is not None
    assert batch.watermark == 20
