from __future__ import annotations

from typing import TYPE_CHECKING

from fanout.kafka import ShuffleSource
from fanout.kafka.shuffle.frames import HelloFrame, WatermarkFrame, encode_control
from tests.kafka.shuffle.scripted import framed
from tests.kafka.topics import Topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, Row

    from fanout.kafka.shuffle.frames import ControlFrame
    from fanout.spark import FanOutQuery
    from fanout.testing.kafka.broker import KafkaBroker

END = 60.0


def test_a_query_goes_on_with_the_watermark_that_its_ledger_has(
    kafka_broker: KafkaBroker, start: Callable[..., FanOutQuery]
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
        query = start(ShuffleSource(topic.source()), handler, available_now=True)
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
