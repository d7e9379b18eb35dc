from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

import fanout.spark.query.query
from fanout.core.positions import Cursor
from fanout.errors import BatchFailedError, CheckpointError
from fanout.landing.claims import Ownership, claim
from fanout.spark.hadoop.jvm_lock import JvmProcess
from fanout.spark.hadoop.storage import open_storage
from tests.support.manual_source import Acknowledged, ManualSource, Subscribed
from tests.support.spark.harness import PATIENCE, Gate, Recorder, eventually, fail, fanout_threads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from fanout.spark import FanOutQuery

    Start = Callable[..., FanOutQuery]

pytestmark = pytest.mark.spark


@pytest.fixture
def checkpoint(remote_checkpoint: str) -> str:
    return remote_checkpoint


@pytest.fixture
def source() -> ManualSource:
    return ManualSource()


def test_a_query_goes_on_where_it_was_stopped(
    start: Start, source: ManualSource, tmp_path: Path
) -> None:
    first, second = Recorder(), Recorder()
    source.put(b"one", b"two")
    query = start(source, first)
    first.wait_for_rows(2)
    query.stop()
    source.put(b"three")
    start(source, second)
    second.wait_for_rows(1)
    assert first.sequences + second.sequences == [1, 2, 3]
    assert Subscribed("a", Cursor(2)) in source.trace
    mounted = tmp_path / "mounted" / "query"
    assert {"offsets", "commits", "metadata", "fanout"} <= {p.name for p in mounted.iterdir()}
    assert len(list((mounted / "fanout" / "segments").glob("*.parquet"))) == 2


@pytest.mark.long
def test_a_batch_whose_handler_failed_comes_again(start: Start, source: ManualSource) -> None:
    source.put(b"one", b"two")
    with pytest.raises(BatchFailedError):
        start(source, fail).await_termination()
    source.put(b"three")
    recorder = Recorder()
    start(source, recorder)
    recorder.wait_for_rows(3)
    assert recorder.batch_ids[0] == 0
    assert [row.sequence for row in recorder.calls[0].rows] == [1, 2]


@pytest.mark.long
def test_a_query_that_a_newer_run_overtook_writes_nothing_more_and_acknowledges_what_it_had(
    start: Start, source: ManualSource, spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    source.put(b"one")
    gate = Gate()
    query = start(source, gate)
    gate.wait_until_entered()
    with closing(open_storage(spark, checkpoint)) as storage, claim(storage, JvmProcess(spark)):
        source.trace.clear()
        source.put(b"two")
        gate.open()
        with pytest.raises(CheckpointError, match=r"taken over by a newer run.*this run stops"):
            query.await_termination(PATIENCE)
    assert gate.sequences == [1]
    # Its own entry names the first record, which its handler was done with; not so the second.
    assert source.trace == [Acknowledged({"a": Cursor(1)})]
    checkpoint_files = tmp_path / "mounted" / "query"
    batches = checkpoint_files / "fanout" / "batches"
    assert [path.name for path in batches.glob("*.json")] == ["000000000000.json"]
    # The newer run repeats the batch, and Spark refuses to commit what is committed already.
    assert not list((checkpoint_files / "commits").glob("[0-9]*"))


@pytest.mark.long
def test_an_idle_query_that_a_newer_run_overtook_ends(
    start: Start,
    source: ManualSource,
    spark: SparkSession,
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fanout.spark.query.query, "_CLAIM_LOOK", 0.0)
    query = start(source, Recorder())
    with closing(open_storage(spark, checkpoint)) as storage, claim(storage, JvmProcess(spark)):
        with pytest.raises(CheckpointError, match=r"taken over by a newer run.*this run stops"):
            query.await_termination(PATIENCE)
        assert fanout_threads() == []


@pytest.mark.long
def test_a_checkpoint_that_cannot_be_read_for_a_moment_ends_no_idle_query(
    start: Start, source: ManualSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def refuse(_: Ownership) -> None:
        looks.append("look")
        raise CheckpointError("cannot list runs: connection reset")

    monkeypatch.setattr(fanout.spark.query.query, "_CLAIM_LOOK", 0.0)
    recorder = Recorder()
    query = start(source, recorder)
    with monkeypatch.context() as patch:
        patch.setattr(Ownership, "loss", refuse)
        eventually(lambda: looks)
    source.put(b"one")
    recorder.wait_for_rows(1)
    assert query.exception() is None


@pytest.mark.long
def test_a_newer_query_of_the_same_session_replaces_the_older_one(
    start: Start, source: ManualSource
) -> None:
    older, newer = Recorder(), Recorder()
    query = start(source, older)
    source.put(b"one")
    older.wait_for_rows(1)
    start(source, newer)
    with pytest.raises(CheckpointError, match="taken over by a newer run"):
        query.await_termination(PATIENCE)
    source.put(b"two")
    newer.wait_for_rows(1)
    assert older.sequences == [1]
    assert newer.sequences[-1] == 2
