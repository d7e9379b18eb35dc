from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.spark.harness import PATIENCE, Recorder, fanout_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.kinesis import KinesisSource
    from fanout.spark import FanOutQuery
    from fanout.testing.kinesis.server import KinesisServer

    Start = Callable[..., FanOutQuery]

pytestmark = pytest.mark.spark


def put(kinesis: KinesisServer, first: int, count: int) -> set[bytes]:
    data = [str(n).encode() for n in range(first, first + count)]
    kinesis.put_records("orders", ((d.decode(), d) for d in data))
    return set(data)


@pytest.mark.long
def test_a_backlog_is_read_in_full_batches_and_the_query_ends(
    start: Start, kinesis: KinesisServer, orders: KinesisSource
) -> None:
    sent = put(kinesis, 0, 300)
    recorder = Recorder()
    query = start(orders, recorder, available_now=True, max_records=100)
    assert query.await_termination(PATIENCE)
    received = [row.data for row in recorder.rows]
    assert len(received) == 300
    assert {bytes(data) for data in received} == sent
    assert max(len(call.rows) for call in recorder.calls) <= 100
    assert fanout_threads() == []


@pytest.mark.long
def test_the_children_of_a_reshard_belong_to_it(
    start: Start, kinesis: KinesisServer, orders: KinesisSource
) -> None:
    sent = put(kinesis, 0, 50)
    kinesis.split_shard("orders", "shardId-000000000000")
    kinesis.merge_shards("orders", "shardId-000000000001", "shardId-000000000003")
    sent |= put(kinesis, 50, 50)
    recorder = Recorder()
    assert start(orders, recorder, available_now=True).await_termination(PATIENCE)
    assert {bytes(row.data) for row in recorder.rows} == sent
    assert len(recorder.rows) == 100


@pytest.mark.long
def test_a_run_that_reads_only_the_end_of_a_shard_stores_it(
    start: Start, kinesis: KinesisServer, orders: KinesisSource, checkpoint: str
) -> None:
    put(kinesis, 0, 50)
    assert start(orders, Recorder(), available_now=True).await_termination(PATIENCE)
    kinesis.split_shard("orders", "shardId-000000000000")
    recorder = Recorder()
    assert start(orders, recorder, available_now=True).await_termination(PATIENCE)
    assert recorder.calls == []
    newest = max(Path(checkpoint, "fanout", "batches").iterdir())
    splits = json.loads(newest.read_text())["positions"]["splits"]
    assert {id_: state["ended"] for id_, state in splits.items()} == {
        "shardId-000000000000": True,
        "shardId-000000000001": False,
        "shardId-000000000002": False,
        "shardId-000000000003": False,
    }
    new = put(kinesis, 50, 20)
    assert start(orders, recorder, available_now=True).await_termination(PATIENCE)
    assert {bytes(row.data) for row in recorder.rows} == new


def test_it_ends_while_a_producer_is_running(
    start: Start, kinesis: KinesisServer, orders: KinesisSource
) -> None:
    sent = put(kinesis, 0, 100)
    recorder = Recorder()
    enough = threading.Event()

    def produce() -> None:
        while not enough.wait(0.01):
            kinesis.put_records("orders", [("late", b"late")])

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        ended = start(orders, recorder, available_now=True).await_termination(PATIENCE)
    finally:
        enough.set()
        producer.join()
    assert ended
    assert sent <= {bytes(row.data) for row in recorder.rows}


@pytest.mark.long
def test_the_next_run_goes_on_where_the_last_one_ended(
    start: Start, kinesis: KinesisServer, orders: KinesisSource
) -> None:
    first, second = Recorder(), Recorder()
    put(kinesis, 0, 50)
    assert start(orders, first, available_now=True).await_termination(PATIENCE)
    new = put(kinesis, 50, 20)
    assert start(orders, second, available_now=True).await_termination(PATIENCE)
    assert {bytes(row.data) for row in second.rows} == new
    assert len(second.rows) == 20


@pytest.mark.long
def test_a_run_with_nothing_new_ends_without_a_call(
    start: Start, kinesis: KinesisServer, orders: KinesisSource
) -> None:
    put(kinesis, 0, 20)
    assert start(orders, Recorder(), available_now=True).await_termination(PATIENCE)
    recorder = Recorder()
    query = start(orders, recorder, available_now=True)
    assert query.await_termination(PATIENCE)
    assert recorder.calls == []
    assert query.progress().batches == 0


@pytest.mark.long
def test_a_run_on_an_empty_stream_ends(start: Start, orders: KinesisSource) -> None:
    recorder = Recorder()
    assert start(orders, recorder, available_now=True).await_termination(PATIENCE)
    assert recorder.calls == []
