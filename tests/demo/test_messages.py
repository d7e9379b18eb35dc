from __future__ import annotations

import msgspec
import pytest

from fanout.demo.plan import Kill, ProcessKill, SparkProcess
from fanout.demo.queries import (
    MESSAGES,
    BatchWritten,
    Holding,
    LanderKilled,
    ProcessesKilled,
    QueryMessage,
    QueryOptions,
    Reading,
    Resubscribed,
)
from fanout.demo.sources import (
    KafkaSettings,
    KinesisSettings,
    ShareSettings,
    ShuffleSettings,
    SourceSettings,
)
from fanout.testing.spark.driver_process import DriverFailed, DriverStarted, decode_message

EVERY_KIND: list[QueryMessage] = [
    DriverStarted(17),
    BatchWritten(3, 250),
    Holding(4, written=True),
    Resubscribed("shardId-000000000000", "SubscriptionSilentError", 1.5),
    LanderKilled(2, 4711, 3),
    ProcessesKilled(SparkProcess.WORKER, (4711, 4712)),
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


SHUFFLE = ShuffleSettings("orders-by-key", "127.0.0.1:1", 4)


@pytest.mark.parametrize("s3", [None, "http://127.0.0.1:2"])
@pytest.mark.parametrize(
    "source",
    [
        KinesisSettings("orders", "http://127.0.0.1:1", "us-east-1", 3.0),
        KafkaSettings("orders", "127.0.0.1:1"),
        ShareSettings("orders", "127.0.0.1:1"),
        SHUFFLE,
    ],
    ids=lambda source: type(source).__name__,
)
def test_options_survive_the_command_line(source: SourceSettings, s3: str | None) -> None:
    kill = Kill(5, written=True)
    options = QueryOptions(
        "query",
        "/r",
        s3,
        source,
        SHUFFLE,
        10,
        kill=kill,
        landers=2,
        kill_lander=3,
        dataframe=True,
        kill_processes=(ProcessKill(SparkProcess.PLANNER, 4, 0.5),),
    )
    assert msgspec.json.decode(msgspec.json.encode(options), type=QueryOptions) == options
