from __future__ import annotations

import msgspec
import pytest

from fanout.demo.options import DemoOptions, ServiceName
from fanout.demo.plan import SparkProcess
from fanout.demo.queries import (
    MESSAGES,
    BatchBegun,
    BatchWritten,
    Holding,
    ProcessesKilled,
    QueryMessage,
    QueryName,
    QueryOptions,
    Reading,
    Resubscribed,
)
from fanout.demo.workspace import Workspace
from fanout.testing.spark.driver_process import DriverFailed, DriverStarted, decode_message

EVERY_KIND: list[QueryMessage] = [
    DriverStarted(17),
    BatchBegun(3, None),
    BatchBegun(3, 1_767_225_600_000),
    BatchWritten(3, 250, frozenset({"orders-1"})),
    Holding(4, written=True),
    Resubscribed("shardId-000000000000", "SubscriptionSilentError", 1.5),
    ProcessesKilled(SparkProcess.WORKER, 2, "SIGKILL each worker of the query: 4711, 4712"),
    Reading(("shardId-000000000000",)),
    DriverFailed("ServiceError", "the stream 'orders' does not exist"),
]


@pytest.mark.parametrize("message", EVERY_KIND, ids=lambda message: type(message).__name__)
def test_a_message_survives_its_line(message: QueryMessage) -> None:
    assert decode_message(msgspec.json.encode(message) + b"\n", MESSAGES) == message


@pytest.mark.parametrize(
    "line",
    [b"\n", b"WARNING: something\n", b"\xff\n", b'{"type":"X"}\n', b'{"x":' + b"[" * 100_000],
    ids=lambda line: repr(line[:20]),
)
def test_what_the_jvm_prints_is_no_message(line: bytes) -> None:
    assert decode_message(line, MESSAGES) is None


@pytest.mark.parametrize("s3", [None, "http://127.0.0.1:2"])
@pytest.mark.parametrize("query", QueryName)
@pytest.mark.parametrize(
    "demo",
    [
        DemoOptions(landers=2, kill=True),
        DemoOptions(source=ServiceName.KAFKA, shuffle=True, seed=3),
        DemoOptions(source=ServiceName.KAFKA_SHARE, records=2_000, shards=2),
        DemoOptions(source=ServiceName.KAFKA, dataframe=True),
    ],
    ids=lambda demo: demo.source,
)
def test_options_survive_the_command_line(
    demo: DemoOptions, query: QueryName, s3: str | None
) -> None:
    options = QueryOptions(query, demo, "127.0.0.1:1", Workspace("/r", s3), restarted=s3 is None)
    assert msgspec.json.decode(msgspec.json.encode(options), type=QueryOptions) == options
