from __future__ import annotations

import os
import signal
import socket
from contextlib import closing
from typing import TYPE_CHECKING

import boto3
import pytest

from fanout.errors import OptionError, SetupError, StreamStateError
from fanout.testing.faults import EndEarly
from fanout.testing.kinesis.process import KinesisProcess
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import _noted_signals, _wait_for_end
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST, SECOND, THIRD, FOURTH = (f"shardId-{index:012}" for index in range(4))


@pytest.fixture(scope="module")
def process() -> Iterator[KinesisProcess]:
    with KinesisProcess(KinesisRules.fast()) as process:
        yield process


@pytest.mark.long
def test_a_client_is_served(process: KinesisProcess) -> None:
    process.create_stream("orders")
    process.put_records("orders", [("key", b"a")])
    with closing(boto3.client("kinesis", **process.client_options)) as client:
        arn = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]
        consumer = client.register_stream_consumer(StreamARN=arn["StreamARN"], ConsumerName="etl")[
            "Consumer"
        ]
        answer = client.subscribe_to_shard(
            ConsumerARN=consumer["ConsumerARN"],
            ShardId=FIRST,
            StartingPosition={"Type": "TRIM_HORIZON"},
        )
        with closing(answer["EventStream"]) as events:
            event = next(iter(events))["SubscribeToShardEvent"]
    assert [record["Data"] for record in event["Records"]] == [b"a"]


def test_records_are_put_where_they_belong(process: KinesisProcess) -> None:
    process.create_stream("puts", shards=2)
    ((shard, number),) = process.put_records("puts", [("key", b"a")], shard=SECOND)
    assert (shard, len(number)) == (SECOND, 56)


def test_shards_split_and_merge(process: KinesisProcess) -> None:
    process.create_stream("reshards")
    children = process.split_shard("reshards", FIRST)
    assert children == (SECOND, THIRD)
    assert process.merge_shards("reshards", *children) == FOURTH


def test_a_fault_arrives(process: KinesisProcess) -> None:
    process.inject(EndEarly(shard="shardId-000000000999"))
    assert process.statistics().faults == {}


def test_a_mistake_is_told(process: KinesisProcess) -> None:
    with pytest.raises(OptionError, match="no stream 'unknown'"):
        process.split_shard("unknown", FIRST)


def test_what_the_service_would_refuse_is_a_mistake(process: KinesisProcess) -> None:
    process.create_stream("refused", shards=3)
    with pytest.raises(OptionError, match="Stream refused under"):
        process.create_stream("refused")
    with pytest.raises(OptionError, match="not an adjacent pair"):
        process.merge_shards("refused", FIRST, THIRD)


@pytest.mark.long
def test_the_rules_reach_a_process_that_close_ends() -> None:
    with (
        KinesisProcess(KinesisRules(consumer_creating=60)) as process,
        closing(boto3.client("kinesis", **process.client_options)) as client,
    ):
        pid = process.pid
        arn = process.create_stream("orders")
        consumer = client.register_stream_consumer(StreamARN=arn, ConsumerName="etl")["Consumer"]
        assert consumer["ConsumerStatus"] == "CREATING"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.long
def test_a_process_that_cannot_serve_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match="before it could serve"), KinesisProcess(port=port):
            pass
    assert "in use" in capfd.readouterr().err


def test_a_process_that_does_not_run_has_no_endpoint() -> None:
    with pytest.raises(StreamStateError, match="not running"):
        _ = KinesisProcess().endpoint_url


def test_a_signal_that_comes_before_the_wait_ends_it() -> None:
    stdin, held_open = os.pipe()
    try:
        with _noted_signals(signal.SIGTERM) as signals:
            signal.raise_signal(signal.SIGTERM)
            _wait_for_end(stdin, signals)
    finally:
        os.close(stdin)
        os.close(held_open)


@pytest.mark.long
def test_sigterm_ends_the_process_cleanly() -> None:
    with KinesisProcess() as process:
        os.kill(process.pid, signal.SIGTERM)
        assert process._process is not None
        assert process._process.wait(PATIENCE) == 0
