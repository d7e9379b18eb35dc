from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from fanout.core.event_time import EventTime
from fanout.errors import OptionError
from fanout.kafka.cluster import Cluster
from fanout.kafka.reading.kafka_options import KafkaOptions
from fanout.kafka.security import Security

if TYPE_CHECKING:
    from collections.abc import Callable


def options(
    event_time: Any, decode: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
) -> KafkaOptions:
    return KafkaOptions(
        cluster=Cluster("127.0.0.1:9092", security=Security(protocol="PLAINTEXT")),
        topics="orders",
        event_time=event_time,
        decode=decode,
    )


def with_a_time(records: pa.RecordBatch) -> pa.RecordBatch:
    times = pa.nulls(len(records), pa.timestamp("ms", tz="UTC"))
    kept = ["topic", "partition", "offset"]
    return pa.record_batch(
        [*(records.column(name) for name in kept), times], names=[*kept, "ordered"]
    )


def test_the_event_time_is_the_records_timestamp_unless_a_column_is_named() -> None:
    assert options(None).event_time is None
    assert options(EventTime(idleness=60)).event_time == EventTime("timestamp", idleness=60)


def test_the_event_time_may_be_a_column_of_what_was_decoded() -> None:
    assert options(EventTime("ordered"), with_a_time).event_time == EventTime("ordered")
    with pytest.raises(OptionError, match=r"there is no column 'timestamp'; there are topic, .*"):
        options(EventTime(), with_a_time)


@pytest.mark.parametrize("event_time", ["timestamp", 60, EventTime("offset"), EventTime("key")])
def test_an_event_time_that_cannot_be_told_is_refused(event_time: Any) -> None:
    with pytest.raises(OptionError, match=r"^event_time"):
        options(event_time)
