from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.errors import FanOutError
from tests.support.kafka.topics import Topic, committed

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, Row

    from fanout.spark import FanOutQuery
    from fanout.testing.kafka.broker import KafkaBroker

END = 60.0


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> Topic:
    """A topic of two partitions with ten records each."""
    made = Topic(kafka_broker, partitions=2)
    made.put(10, partition=0)
    made.put(10, partition=1)
    return made


@pytest.mark.fault("What is available now grows while it is read")
def test_what_is_available_now_reaches_the_handler_with_all_its_columns(
    topic: Topic, start: Callable[..., FanOutQuery]
) -> None:
    rows: list[Row] = []

    def handler(frame: DataFrame, _: int) -> None:
        rows.extend(frame.orderBy("partition", "offset").collect())

    topic.write([{"key": b"k", "value": None, "headers": [("trace", b"\x00"), ("none", None)]}])
    source = topic.source()
    assert start(source, handler, available_now=True).await_termination(END)
    assert [(row.partition, row.offset) for row in rows] == [
        (partition, offset) for partition, log in sorted(topic.log.items()) for offset, _ in log
    ]
    (last,) = (row.asDict(recursive=True) for row in rows if row.key is not None)
    assert (last["topic"], last["value"], last["timestampType"]) == (topic.name, None, 0)
    assert last["headers"] == [
        {"key": "trace", "value": b"\x00"},
        {"key": "none", "value": None},
    ]


@pytest.mark.long
@pytest.mark.fault("Another client looks at the group")
def test_a_group_sees_as_left_what_no_handler_has_returned_for(
    topic: Topic, start: Callable[..., FanOutQuery]
) -> None:
    group = f"{topic.name}-group"
    seen: list[dict[int, int]] = []

    def handler(_: DataFrame, __: int) -> None:
        seen.append(committed(topic, group))

    source = topic.source(group_id=group)
    assert start(source, handler, available_now=True).await_termination(END)
    assert seen == [{}]
    assert committed(topic, group) == {0: 10, 1: 10}


@pytest.mark.long
@pytest.mark.fault(
    "A topic is deleted and created again between two runs, however many records it has then"
)
def test_a_query_tells_a_topic_that_was_created_again_between_two_runs(
    topic: Topic, start: Callable[..., FanOutQuery]
) -> None:
    offsets: list[int] = []

    def handler(frame: DataFrame, _: int) -> None:
        offsets.extend(row.offset for row in frame.orderBy("offset").collect())

    source = topic.source(partitions=f"{topic.name}-0")
    assert start(source, handler, available_now=True).await_termination(END)
    topic.broker.delete_topic(topic.name)
    again = Topic(topic.broker, name=topic.name)
    again.put(20)
    with pytest.raises(FanOutError, match="was deleted and created anew"):
        start(source, handler, available_now=True).await_termination(END)
    source = again.source(partitions=f"{topic.name}-0", on_data_loss="earliest")
    assert start(source, handler, available_now=True).await_termination(END)
    assert offsets == [*range(10), *range(20)]
