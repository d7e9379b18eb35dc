"""Queries that SIGTERM and Ctrl-C stop cleanly, in this process; whole drivers are signalled in
`test_signalled_driver`."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fanout.errors import OptionError, StreamStateError
from fanout.landing.claims import claim
from fanout.spark import stop_on_signal
from fanout.spark.query.signals import _SignalWatch
from tests.support.manual_source import ManualSource
from tests.support.spark.harness import PATIENCE, Gate, Recorder, eventually, fanout_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from fanout.spark import FanOutQuery

    Start = Callable[..., FanOutQuery]

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def signals_as_before() -> Any:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert fanout_threads() == []


def send(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def check_next_run(start: Start, source: ManualSource, first: Recorder) -> None:
    """Check that the next run continues after what the first one has handled."""
    source.put(b"later")
    second = Recorder()
    start(source, second)
    second.wait_for_rows(1)
    assert second.sequences == [len(first.rows) + 1]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_query_that_waits_for_records_ends_without_an_error(
    start: Start, number: signal.Signals
) -> None:
    source, recorder = ManualSource(), Recorder()
    source.put(b"one", b"two")
    with stop_on_signal():
        query = start(source, recorder)
        recorder.wait_for_rows(2)
        send(number)
        assert query.await_termination(PATIENCE)
    assert query.exception() is None
    check_next_run(start, source, recorder)


@pytest.mark.long
def test_the_main_thread_may_wait_in_the_jvm(start: Start, spark: SparkSession) -> None:
    source, recorder = ManualSource(), Recorder()
    source.put(b"one")
    spark.streams.resetTerminated()
    with stop_on_signal():
        query = start(source, recorder)
        recorder.wait_for_rows(1)
        sender = threading.Timer(0.3, send)
        sender.start()
        spark.streams.awaitAnyTermination()
    sender.join()
    assert not query.is_active
    check_next_run(start, source, recorder)


@pytest.mark.long
def test_a_handler_finishes_its_batch_and_no_other_begins(start: Start) -> None:
    source, gate = ManualSource(), Gate()
    source.put(b"one", b"two", b"three")
    with stop_on_signal():
        query = start(source, gate, max_records=2)
        gate.wait_until_entered()
        send()
        eventually(query._ending.is_set, "the stop")
        assert query.is_active
        gate.open()
    assert not query.is_active
    assert gate.sequences == [1, 2]
    recorder = Recorder()
    start(source, recorder)
    recorder.wait_for_rows(1)
    assert recorder.sequences == [3]


@pytest.mark.long
def test_a_signal_during_the_start_stops_the_query_once_it_has_started(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def signalled(*arguments: Any) -> Any:
        send()
        return claim(*arguments)

    monkeypatch.setattr("fanout.spark.query.start_query.claim", signalled)
    source, recorder = ManualSource(), Recorder()
    with stop_on_signal():
        query = start(source, recorder)
        assert query.await_termination(PATIENCE)
    monkeypatch.undo()
    check_next_run(start, source, recorder)


@pytest.mark.long
def test_every_query_is_stopped(start: Start, tmp_path: Any) -> None:
    recorders = [Recorder(), Recorder()]
    with stop_on_signal():
        queries = []
        for name, recorder in zip("ab", recorders, strict=True):
            source = ManualSource(identity=name)
            source.put(b"one")
            location = str(tmp_path / name)
            queries.append(start(source, recorder, checkpoint_location=location))
        for recorder in recorders:
            recorder.wait_for_rows(1)
        send()
        for query in queries:
            assert query.await_termination(PATIENCE)


def test_a_signal_before_the_first_query_ends_the_program_with_0() -> None:
    def program() -> None:
        with stop_on_signal():
            send()
            threading.Event().wait(PATIENCE)

    with pytest.raises(SystemExit) as ended:
        program()
    assert ended.value.code == 0


def test_without_a_signal_queries_are_left_alone(start: Start) -> None:
    source, recorder = ManualSource(), Recorder()
    with stop_on_signal():
        query = start(source, recorder)
    assert query.is_active
    source.put(b"one")
    recorder.wait_for_rows(1)


@pytest.mark.parametrize("process", ["Python", "Java"])
def test_a_signal_as_the_block_ends_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, process: str
) -> None:
    def signalled(watch: Any) -> None:
        if process == "Python":
            send()
        else:
            watch._arrivals.put(("Java", signal.SIGTERM))

    monkeypatch.setattr(_SignalWatch, "_release_jvm", signalled)
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: seen.append(number))
    try:
        with stop_on_signal():
            pass
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]


def test_wrong_uses_are_refused() -> None:
    with pytest.raises(OptionError, match="timeout=0 must be above 0"), stop_on_signal(timeout=0):
        pass
    with (
        stop_on_signal(),
        pytest.raises(StreamStateError, match="runs already; it stops every query"),
        stop_on_signal(),
    ):
        pass
    refusals = []

    def use() -> None:
        try:
            with stop_on_signal():
                pass
        except StreamStateError as error:
            refusals.append(str(error))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert refusals == ["stop_on_signal needs the main thread, which receives signals"]
