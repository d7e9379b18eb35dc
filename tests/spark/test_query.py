from __future__ import annotations

import logging
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.streaming.query import StreamingQuery

import fanout.landing.claims
import fanout.spark.query.batch_runner
import fanout.spark.query.query
from fanout.core.event_time import EventTime
from fanout.core.positions import Cursor, Horizon, Range
from fanout.errors import (
    BatchFailedError,
    CheckpointError,
    OptionError,
    ServiceError,
    SplitFailedError,
)
from fanout.landing.segments.segments import OpenSegment
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark.query.batch_runner import BatchRunner
from tests.support.manual_source import Acknowledged, ManualSource, Subscribed
from tests.support.spark.harness import PATIENCE, Gate, Recorder, eventually, fail, fanout_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from fanout.spark import FanOutQuery

    Start = Callable[..., FanOutQuery]

pytestmark = pytest.mark.spark


@pytest.fixture
def source() -> ManualSource:
    return ManualSource()


def numbered(count: int) -> list[bytes]:
    return [str(n).encode() for n in range(count)]


def until_read(query: FanOutQuery, count: int) -> None:
    eventually(lambda: query.statistics().splits["a"].records == count, f"{count} records read")


@pytest.fixture
def failed(start: Start, source: ManualSource) -> Recorder:
    """A handler that collected its batch and then failed."""
    seen = Recorder()

    def handler(df: Any, batch_id: int) -> None:
        seen(df, batch_id)
        fail(df, batch_id)

    source.put(*numbered(20))
    with pytest.raises(BatchFailedError):
        start(source, handler, max_records=10).await_termination()
    return seen


# A batch id has one content.


@pytest.mark.fault("Code of the user raises")
def test_a_batch_whose_handler_failed_comes_again_under_its_id(
    start: Start, source: ManualSource, failed: Recorder
) -> None:
    recorder = Recorder()
    start(source, recorder)
    recorder.wait_for_rows(20)
    assert recorder.calls[0] == failed.calls[0]
    assert recorder.sequences == list(range(1, 21))


@pytest.mark.long
def test_records_that_came_meanwhile_are_not_in_a_replay(
    start: Start, source: ManualSource, failed: Recorder
) -> None:
    source.put(*numbered(5))
    recorder = Recorder()
    start(source, recorder)
    recorder.wait_for_rows(25)
    assert recorder.calls[0] == failed.calls[0]
    assert recorder.sequences == list(range(1, 26))


def test_a_batch_is_replayed_as_often_as_it_fails(
    start: Start, source: ManualSource, failed: Recorder
) -> None:
    for _ in range(2):
        with pytest.raises(BatchFailedError):
            start(source, fail).await_termination()
    recorder = Recorder()
    start(source, recorder)
    recorder.wait_for_rows(10)
    assert recorder.calls[0] == failed.calls[0]


def test_the_log_has_start_resume_and_stop_with_totals(
    start: Start, source: ManualSource, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "fanout.lifecycle")
    source.put(*numbered(20))
    first = Recorder()
    query = start(source, first, max_records=10, query_name="orders")
    first.wait_for_rows(20)
    query.stop()
    source.put(*numbered(1))
    with pytest.raises(BatchFailedError):
        start(source, fail).await_termination()
    started, ended, resumed, failed = (
        record.getMessage()
        for record in caplog.records
        if vars(record).get("event.name") in {"fanout.query.started", "fanout.query.stopped"}
    )
    label = f"the query {query.id} (orders)"
    assert started == f"{label} starts on a new checkpoint"
    assert re.fullmatch(
        re.escape(label) + r" has ended after \d+\.\d s; its handler has finished 2 batches with "
        r"20 records and \d{3,} bytes",
        ended,
    )
    # Batch 2 is empty.
    newest = r"the newest batch of its checkpoint is [12]"
    assert re.fullmatch(rf"the query {query.id} resumes; {newest}", resumed)
    assert re.search(
        r"failed with BatchFailedError after .* s; its handler has finished 0 batches w", failed
    )
    levels = [
        record.levelname
        for record in caplog.records
        if vars(record).get("event.name") == "fanout.query.stopped"
    ]
    assert levels == ["INFO", "ERROR"]
    logged = [vars(record) for record in caplog.records]
    assert [
        each["fanout.stream.resumed"] for each in logged if "fanout.stream.resumed" in each
    ] == [False, True]
    claims = [each["fanout.run"] for each in logged if "fanout.run" in each]
    assert claims == [1, 2]
    batches = [each for each in logged if each.get("event.name") == "fanout.batch.finished"]
    assert [each["fanout.records"] for each in batches] == [10, 10, 1]
    assert [each["fanout.batch.ranges"] for each in batches] == [
        ["a: beginning to 10"],
        ["a: 10 to 20"],
        ["a: 20 to 21"],
    ]
    assert [each["levelname"] for each in batches] == ["DEBUG", "DEBUG", "ERROR"]
    assert re.search(
        r" comes again after ValueError: 1 records, \d+ bytes; a: 20 to 21$",
        batches[2]["message"],
    )
    assert [each.get("error.type") for each in batches] == [None, None, "ValueError"]
    assert {each["fanout.stream.name"] for each in batches[:2]} == {"orders"}
    assert {"handler", "ledger"} <= batches[0]["fanout.batch.seconds"].keys()
    entries = [each for each in logged if each.get("event.name") == "fanout.entry.written"]
    assert sum(each["fanout.records"] for each in entries) == 21


def test_a_batch_that_was_handled_does_not_come_again(start: Start, source: ManualSource) -> None:
    source.put(*numbered(5))
    first, second = Recorder(), Recorder()
    query = start(source, first)
    first.wait_for_rows(5)
    query.stop()
    source.put(*numbered(5))
    start(source, second)
    second.wait_for_rows(5)
    assert first.sequences + second.sequences == list(range(1, 11))
    assert second.batch_ids[0] > first.batch_ids[-1]


# Nothing is acknowledged before it is durable.


def test_nothing_is_acknowledged_before_the_ledger_names_the_segment_and_it_is_handled(
    start: Start, source: ManualSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def traced(method: str) -> None:
        original = getattr(LocalStorage, method)

        def record(storage: LocalStorage, *arguments: Any) -> None:
            original(storage, *arguments)
            name = next(a for a in reversed(arguments) if isinstance(a, str))
            source.trace.append((method, name.split("/")[0]))

        monkeypatch.setattr(LocalStorage, method, record)

    traced("create")
    traced("publish")
    source.put(*numbered(5))
    gate = Gate()
    query = start(source, gate)
    gate.wait_until_entered()
    stored = [
        ("create", "runs"),
        ("create", "origin.json"),
        Subscribed("a", Horizon()),
        ("publish", "segments"),
        ("create", "batches"),
    ]
    assert source.trace == stored
    gate.open()
    eventually(lambda: source.trace != stored, "the acknowledgement")
    assert source.trace == [*stored, Acknowledged({"a": Cursor(5)})]
    query.stop()


# One query for a checkpoint.


def test_a_second_query_of_a_session_on_a_checkpoint_is_refused_at_once(
    start: Start, source: ManualSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(source, Recorder())
    # A query that waits for the other one looks again then.
    monkeypatch.setattr(fanout.landing.claims, "_POLL_SECONDS", 1.5 * PATIENCE)
    with within(PATIENCE), pytest.raises(CheckpointError, match="another run of this process"):
        start(source, Recorder())


def test_after_stop_the_checkpoint_is_free(start: Start, source: ManualSource) -> None:
    for _ in range(2):
        start(source, Recorder()).stop()


def test_two_queries_run_side_by_side(start: Start, tmp_path: Path) -> None:
    recorders = []
    for name in ("one", "two"):
        source = ManualSource(identity=name)
        source.put(*numbered(5))
        recorders.append(Recorder())
        start(source, recorders[-1], checkpoint_location=str(tmp_path / name))
    for recorder in recorders:
        recorder.wait_for_rows(5)


# While Spark works, the next segment is drained.


def test_while_the_handler_works_the_next_batch_is_drained(
    start: Start, source: ManualSource
) -> None:
    source.put(*numbered(2))
    gate = Gate()
    query = start(source, gate, max_records=50)
    gate.wait_until_entered()
    for total in range(12, 62, 10):
        source.put(*numbered(10))
        until_read(query, total)
    source.put(*numbered(10))
    gate.open()
    gate.wait_for_rows(62)
    assert [len(call.rows) for call in gate.calls] == [2, 50, 10]
    assert gate.sequences == list(range(1, 63))


# An idle stream costs next to nothing.


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batch ids for which Spark called the batch function; an idle call takes 0.3 s."""
    ids: list[int] = []
    original = BatchRunner.run

    def run(runner: BatchRunner, batch_id: int, *args: Any) -> Any:
        ids.append(batch_id)
        return original(runner, batch_id, *args)

    monkeypatch.setattr(BatchRunner, "run", run)
    monkeypatch.setattr(fanout.spark.query.batch_runner, "IDLE_SECONDS", 0.3)
    return ids


@pytest.mark.long
def test_an_idle_stream_calls_no_handler_and_spins_in_no_loop(
    start: Start, source: ManualSource, runs: list[int]
) -> None:
    recorder = Recorder()
    began = time.monotonic()
    start(source, recorder)
    eventually(lambda: len(runs) >= 4)
    assert time.monotonic() - began >= 0.9
    assert recorder.calls == []


@pytest.mark.fault("Positions move without records, and are stored")
def test_idle_progress_is_stored_and_used_after_a_restart(
    start: Start, source: ManualSource, runs: list[int], tmp_path: Path
) -> None:
    source.idle()
    query = start(source, Recorder())
    eventually(lambda: Acknowledged({"a": Cursor(1)}) in source.trace or len(runs) > 2)
    query.stop()
    start(source, Recorder())
    eventually(lambda: Subscribed("a", Cursor(1)) in source.trace)
    assert len(list((tmp_path / "checkpoint/fanout/batches").iterdir())) == 1
    assert not (tmp_path / "checkpoint/fanout/segments").exists()


@pytest.mark.long
def test_idle_batches_leave_one_entry(
    start: Start, source: ManualSource, runs: list[int], tmp_path: Path
) -> None:
    source.put(*numbered(2))
    recorder = Recorder()
    query = start(source, recorder)
    recorder.wait_for_rows(2)
    eventually(lambda: len(runs) >= 4)
    query.stop()
    segments = list((tmp_path / "checkpoint/fanout/segments").iterdir())
    assert len(list((tmp_path / "checkpoint/fanout/batches").iterdir())) == len(segments) + 1


@pytest.mark.long
def test_records_after_idle_batches_have_the_next_id(
    start: Start, source: ManualSource, runs: list[int]
) -> None:
    recorder = Recorder()
    start(source, recorder)
    eventually(lambda: len(runs) >= 2)
    source.put(*numbered(3))
    recorder.wait_for_rows(3)
    assert recorder.batch_ids[0] >= 1
    assert recorder.sequences == [1, 2, 3]


# Triggers.


def test_processing_time_spaces_batches(start: Start, source: ManualSource) -> None:
    source.put(*numbered(30))
    recorder = Recorder()
    began = time.monotonic()
    start(source, recorder, max_records=10, processing_time="500 milliseconds")
    recorder.wait_for_rows(30)
    assert time.monotonic() - began >= 0.5  # triggers fall on whole intervals
    assert [len(call.rows) for call in recorder.calls] == [10, 10, 10]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"available_now": True, "processing_time": "1 second"}, "contradict each other"),
        ({"max_wait": -1}, "max_wait=-1"),
        ({"max_records": 0}, "max_records=0"),
        ({"max_bytes": 0}, "max_bytes=0"),
        ({"min_records": 0}, "min_records=0 must be at least 1"),
        ({"group": "orders-app"}, "among landers on Spark's executors by landing=OnExecutors"),
        ({"min_records": 1.5}, "min_records=1.5"),
        ({"min_records": 6, "max_records": 5}, "min_records=6 is above max_records=5"),
        ({"min_records": 6, "max_wait": 0}, "min_records=6 needs max_wait"),
        ({"processing_time": "often"}, "processing_time='often'"),
        ({"processing_time": ""}, "processing_time=''"),
    ],
)
def test_a_wrong_option_is_refused_and_leaves_no_trace(
    start: Start, source: ManualSource, tmp_path: Path, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(OptionError, match=match):
        start(source, Recorder(), **options)
    assert not (tmp_path / "checkpoint").exists()
    assert source.trace == []
    assert fanout_threads() == []


# Stopping.


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


@pytest.fixture
def endless_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch waits for its first record for longer than any test may take."""
    monkeypatch.setattr(fanout.spark.query.batch_runner, "IDLE_SECONDS", 100 * PATIENCE)


@pytest.mark.usefixtures("endless_idle")
def test_a_stop_ends_the_wait_of_an_idle_query(start: Start, source: ManualSource) -> None:
    query = start(source, Recorder())
    eventually(lambda: Subscribed("a", Horizon()) in source.trace)
    query.stop()
    assert not query.is_active
    assert query.exception() is None
    assert query.await_termination()
    assert fanout_threads() == []


@pytest.mark.long
@pytest.mark.usefixtures("endless_idle")
def test_a_query_that_has_just_worked_waits_for_no_further_record_when_it_is_stopped(
    start: Start, source: ManualSource
) -> None:
    recorder = Recorder()
    query = start(source, recorder)
    source.put(*numbered(5))
    recorder.wait_for_rows(5)
    query.stop()
    assert not query.is_active


@pytest.mark.long
def test_a_query_that_was_just_started_stops_and_the_next_one_loses_and_repeats_nothing(
    start: Start, source: ManualSource
) -> None:
    source.put(*numbered(5))
    first, second = Recorder(), Recorder()
    start(source, first).stop()
    start(source, second)
    source.put(b"last")
    eventually(lambda: 6 in second.sequences, "the last record")
    # The first query may have handled a batch that comes again: under its id, with the same rows.
    contents = {call.batch_id: call.rows for call in first.calls}
    for call in second.calls:
        assert contents.setdefault(call.batch_id, call.rows) == call.rows
    rows = [row for batch_id in sorted(contents) for row in contents[batch_id]]
    assert [row.sequence for row in rows] == [1, 2, 3, 4, 5, 6]


def test_stop_waits_for_a_handler_and_its_batch_counts_as_done(
    start: Start, source: ManualSource
) -> None:
    source.put(*numbered(5))
    gate, recorder = Gate(), Recorder()
    query = start(source, gate)
    gate.wait_until_entered()
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    stopping.join(0.3)
    assert stopping.is_alive()
    assert query.is_active
    gate.open()
    stopping.join()
    assert gate.sequences == [1, 2, 3, 4, 5]
    assert query.progress().total_rows == 5

    source.put(b"next")
    start(source, recorder)
    recorder.wait_for_rows(1)
    assert recorder.sequences == [6]


@pytest.mark.long
@pytest.mark.parametrize("batches", [0, 1])
def test_a_run_that_was_killed_as_spark_wrote_an_offset_can_be_continued(
    start: Start, source: ManualSource, checkpoint: str, batches: int
) -> None:
    offsets = Path(checkpoint, "offsets")
    offsets.mkdir(parents=True)
    first = Recorder()
    if batches:
        source.put(b"one")
        query = start(source, first)
        first.wait_for_rows(1)
        query.stop()
    unfinished = offsets / ".7.272a3053-baaf-410f-9aeb-c93c1d8542cf.tmp"
    unfinished.write_text("v1\n")
    kept = {path.name for path in offsets.iterdir()} - {unfinished.name}
    source.put(b"two")
    second = Recorder()
    start(source, second)
    second.wait_for_rows(1)
    assert first.sequences + second.sequences == list(range(1, batches + 2))
    assert kept <= {path.name for path in offsets.iterdir()}


def test_stop_waits_until_spark_has_committed_the_batch_of_a_handler(
    start: Start, source: ManualSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress: Any = StreamingQuery.lastProgress
    answers: list[Any] = []

    def slowly_committed(query: StreamingQuery) -> Any:
        answers.append(None if len(answers) < 3 else progress.fget(query))
        return answers[-1]

    monkeypatch.setattr(StreamingQuery, "lastProgress", property(slowly_committed))
    source.put(b"one")
    recorder = Recorder()
    # The next call of the handler, which would show it too, is far away.
    query = start(source, recorder, processing_time="1 hour")
    recorder.wait_for_rows(1)
    query.stop()
    # A slow Spark commits later still.
    assert len(answers) > 3
    assert not any(answers[:-1])
    assert answers[-1] is not None


@pytest.mark.long
def test_stop_needs_no_reports_of_progress(
    start: Start, source: ManualSource, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A stop that waits for a report ends then.
    monkeypatch.setattr(fanout.spark.query.query, "_COMMIT", 1.5 * PATIENCE)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 1)  # Spark keeps one less
    try:
        source.put(b"one")
        recorder = Recorder()
        query = start(source, recorder, processing_time="1 hour")
        recorder.wait_for_rows(1)
        stop = threading.Thread(target=query.stop)
        stop.start()
        assert query.await_termination(PATIENCE)
        stop.join()
    finally:
        spark.conf.unset("spark.sql.streaming.numRecentProgressUpdates")
    assert query._started.result().lastProgress is None
    source.put(b"two")
    second = Recorder()
    start(source, second)
    second.wait_for_rows(1)
    assert second.sequences == [2]


@pytest.mark.fault("A stream is used after it was closed, or closed twice")
def test_stop_can_be_called_again(start: Start, source: ManualSource) -> None:
    query = start(source, Recorder())
    query.stop()
    query.stop()


def test_stop_inside_the_handler_ends_the_query_after_the_batch(
    start: Start, source: ManualSource
) -> None:
    source.put(*numbered(20))
    recorder = Recorder()
    queries: list[FanOutQuery] = []
    ready = threading.Event()

    def handler(df: Any, batch_id: int) -> None:
        recorder(df, batch_id)
        ready.wait()
        queries[0].stop()

    queries.append(start(source, handler, max_records=10))
    ready.set()
    assert queries[0].await_termination(PATIENCE)
    assert recorder.sequences == list(range(1, 11))


def test_a_query_that_spark_stops_ends_and_releases_everything(
    start: Start, source: ManualSource, spark: SparkSession
) -> None:
    query = start(source, Recorder())
    for active in spark.streams.active:
        active.stop()
    assert query.await_termination(PATIENCE)
    assert fanout_threads() == []
    start(source, Recorder())


@pytest.mark.long
def test_a_batch_that_a_stop_of_spark_interrupts_is_no_failure_and_comes_again(
    start: Start, source: ManualSource, spark: SparkSession
) -> None:
    def endless(df: DataFrame, _: int) -> None:
        df.crossJoin(spark.range(10**15)).count()

    source.put(*numbered(5))
    query = start(source, endless)
    eventually(lambda: spark.sparkContext.statusTracker().getActiveJobsIds())
    for active in spark.streams.active:
        active.stop()
    assert query.await_termination(PATIENCE)
    assert query.exception() is None
    recorder = Recorder()
    start(source, recorder)
    recorder.wait_for_rows(5)
    assert recorder.batch_ids == [0]


def test_await_termination_says_that_the_time_is_over(start: Start, source: ManualSource) -> None:
    assert not start(source, Recorder()).await_termination(0.01)


# Errors.


def test_a_fatal_error_shows_while_the_handler_blocks(start: Start, source: ManualSource) -> None:
    source.put(*numbered(5))
    gate = Gate()
    query = start(source, gate)
    gate.wait_until_entered()
    source.put(*numbered(5))
    until_read(query, 10)
    source.fail(ServiceError("the consumer is gone"))
    eventually(lambda: query.exception() is not None)
    assert gate.calls == []  # the handler still blocks
    assert query.is_active
    gate.open()
    with pytest.raises(SplitFailedError, match="the consumer is gone") as caught:
        query.await_termination(PATIENCE)
    assert isinstance(caught.value.__cause__, ServiceError)
    assert gate.sequences == list(range(1, 11))
    assert fanout_threads() == []


def test_a_full_disk_shows_while_the_handler_blocks(
    start: Start, source: ManualSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: OpenSegment) -> None:
        raise OSError(28, "No space left on device")

    source.put(*numbered(5))
    gate = Gate()
    query = start(source, gate, max_records=20)
    gate.wait_until_entered()
    monkeypatch.setattr(OpenSegment, "write_row_group", refuse)
    source.put(*numbered(10))
    eventually(lambda: query.exception() is not None)
    assert gate.calls == []  # the handler still blocks
    gate.open()
    with pytest.raises(CheckpointError, match="No space left on device"):
        query.await_termination(PATIENCE)
    assert gate.sequences == [1, 2, 3, 4, 5]


@pytest.mark.fault("Code of the user raises")
def test_a_handler_that_raises_ends_the_query_with_its_cause(
    start: Start, source: ManualSource
) -> None:
    source.put(*numbered(5))
    query = start(source, fail)
    with pytest.raises(BatchFailedError, match="ValueError in batch 0: no space") as caught:
        query.await_termination(PATIENCE)
    assert isinstance(caught.value.__cause__, ValueError)
    assert query.exception() is caught.value
    assert "failed" in repr(query)
    assert fanout_threads() == []


def test_a_failure_of_sparks_own_side_is_the_querys(
    start: Start, source: ManualSource, tmp_path: Path
) -> None:
    source.put(*numbered(5))
    recorder = Recorder()
    query = start(source, recorder)
    recorder.wait_for_rows(5)
    offsets = tmp_path / "checkpoint" / "offsets"
    # Another Spark query has written the next batches.
    for batch_id in range(1, 20):
        (offsets / str(batch_id)).write_text("v1\n{}\n0")
    source.put(*numbered(5))
    with pytest.raises(CheckpointError, match="Spark"):
        query.await_termination(PATIENCE)


def test_a_full_disk_is_a_clear_error_that_loses_nothing(
    start: Start, source: ManualSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    source.put(*numbered(5))
    with monkeypatch.context() as patch:
        patch.setattr("fanout.landing.segments.segments.OpenSegment.seal", refuse)
        query = start(source, Recorder())
        with pytest.raises(CheckpointError, match=r"No space left.*free some and start"):
            query.await_termination(PATIENCE)
    assert not any(isinstance(event, Acknowledged) for event in source.trace)
    recorder = Recorder()
    start(source, recorder)
    recorder.wait_for_rows(5)


# What it says about itself.


def test_progress_tells_the_truth(start: Start, source: ManualSource, tmp_path: Path) -> None:
    recorder = Recorder()
    query = start(source, recorder)
    before = query.progress()
    assert before.batch_id is None
    assert (before.batches, before.rows, before.total_rows) == (0, 0, 0)
    source.put(*numbered(5))
    recorder.wait_for_rows(5)
    source.put(*numbered(3))
    recorder.wait_for_rows(8)
    eventually(lambda: query.progress().total_rows == 8)
    progress = query.progress()
    assert progress.batch_id == recorder.batch_ids[-1]
    assert progress.batches == len(recorder.calls)
    assert progress.rows == len(recorder.calls[-1].rows)
    files = sorted((tmp_path / "checkpoint/fanout/segments").iterdir())
    assert progress.bytes == files[-1].stat().st_size
    assert 0 < progress.rows_per_second < 3 / 0.001
    assert progress.lag == {"a": 0.0}
    assert progress.resubscriptions == 0
    query.stop()
    assert query.progress() == replace(progress, lag={"a": None})


def test_a_query_has_sparks_id_and_its_name(start: Start, source: ManualSource) -> None:
    query = start(source, Recorder(), query_name="orders")
    assert query.name == "orders"
    assert "running" in repr(query)
    first = query.id
    query.stop()
    assert "stopped" in repr(query)
    second = start(source, Recorder())
    assert second.id == first
    assert second.name is None


def test_a_handler_is_never_called_without_rows(start: Start) -> None:
    source = ManualSource("a", "b")
    source.idle("a")
    source.put(b"one", split="b")
    source.end("b", "c")
    source.put(b"two", split="c")
    recorder = Recorder()
    start(source, recorder)
    recorder.wait_for_rows(2)
    assert all(call.rows for call in recorder.calls)


@pytest.mark.long
def test_a_stream_that_ends_by_itself_ends_the_query_and_the_next_goes_on(start: Start) -> None:
    bounded = ManualSource(bounded=True)
    bounded.put(b"one", b"two")
    recorder = Recorder()
    assert start(bounded, recorder).await_termination(PATIENCE)
    assert recorder.sequences == [1, 2]
    bounded.put(b"three")
    assert start(bounded, recorder).await_termination(PATIENCE)
    assert recorder.sequences == [1, 2, 3]


def test_the_ledger_tells_what_a_batch_was(start: Start, source: ManualSource) -> None:
    def seconds(records: pa.RecordBatch) -> pa.Array:
        return pc.multiply(records.column("sequence"), 1000).cast(pa.timestamp("ms", tz="UTC"))

    source.event_time = EventTime(seconds, out_of_orderness=0.5)
    recorder = Recorder()
    source.put(b"one", b"two")
    query = start(source, recorder)
    recorder.wait_for_rows(2)
    reported = query.batch(recorder.batch_ids[0])
    assert reported is not None
    assert (reported.rows, reported.watermark) == (2, 1499)
    assert reported.bytes > 0
    assert reported.ranges == {"a": Range(Horizon(), Cursor(2))}
    assert query.batch(1000) is None
    query.stop()
    assert query.batch(recorder.batch_ids[0]) == reported
    again = start(source, recorder)
    assert again.batch(recorder.batch_ids[0]) == reported
