"""Functions that a user hands to a query: those that would never run, and those that end badly."""

from __future__ import annotations

import asyncio
import functools
import logging
import re
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fanout.core.user_functions import UnfinishedError
from fanout.errors import BatchFailedError, BatchNotWrittenError, OptionError, StreamStateError
from fanout.landing.log.checkpoint_status import read_status
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark import BatchReport, ParquetSink, traced
from tests.support.manual_source import ManualSource
from tests.support.spark.harness import PATIENCE, Gate, Recorder, fail, fanout_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from fanout.spark import FanOutQuery

    Start = Callable[..., FanOutQuery]

pytestmark = pytest.mark.spark


@pytest.fixture
def source() -> ManualSource:
    source = ManualSource()
    source.put(b"one", b"two")
    return source


async def asynchronous(df: DataFrame, batch_id: int) -> None:
    del df, batch_id


def generating(df: DataFrame, batch_id: int) -> Iterator[int]:
    del df
    yield batch_id


@pytest.mark.parametrize("handler", [None, "print", ParquetSink, asynchronous, generating])
def test_a_handler_that_would_never_run_is_refused_before_anything_is_read(
    start: Start, source: ManualSource, tmp_path: Path, handler: Any
) -> None:
    with pytest.raises(OptionError, match=r"^handler.* must be a function of a DataFrame and a b"):
        start(source, handler)
    with pytest.raises(OptionError, match=r"^handler.* must be a function of a DataFrame and a b"):
        traced(handler)
    assert not (tmp_path / "checkpoint").exists()
    assert source.trace == []


async def told(*_: object) -> None: ...


def test_a_hook_that_would_never_run_is_refused(start: Start, source: ManualSource) -> None:
    with pytest.raises(OptionError, match=r"^on_resubscribe must be .* is an async function"):
        start(source, Recorder(), on_resubscribe=told)
    query = start(source, Recorder())
    with pytest.raises(OptionError, match=r"^listener must be .* is an async function"):
        query.on_batch(told)  # type: ignore[arg-type]


def plain_outside(function: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> object:
        return function(*args)

    return wrapper


def traced_outside(function: Callable[..., object]) -> Callable[..., Any]:
    return traced(plain_outside(function))


@pytest.mark.parametrize(
    ("handler", "wrapped"),
    [
        (asynchronous, plain_outside),
        (generating, traced_outside),
        pytest.param(asynchronous, traced_outside, marks=pytest.mark.long),
        pytest.param(generating, plain_outside, marks=pytest.mark.long),
    ],
)
def test_a_handler_that_returns_its_work_undone_loses_no_batch(
    start: Start, source: ManualSource, handler: Any, wrapped: Any
) -> None:
    query = start(source, wrapped(handler), available_now=True)
    with pytest.raises(BatchFailedError, match=r"^in batch 0 the handler returned .* not") as e:
        query.await_termination(PATIENCE)
    assert isinstance(e.value.__cause__, UnfinishedError)
    recorder = Recorder()
    start(source, recorder)
    recorder.wait_for_rows(2)
    assert recorder.sequences == [1, 2]


def test_a_listener_that_returns_its_work_undone_is_told_of(
    start: Start, source: ManualSource, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    query = start(source, gate, available_now=True)
    query.on_batch(plain_outside(told))
    gate.open()
    assert query.await_termination(PATIENCE)
    assert "a listener of batch 0 failed: returned a coroutine, whose work" in caplog.text


def test_the_traceback_of_a_handler_is_in_the_error_of_its_query_alone(
    start: Start, source: ManualSource, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BatchFailedError) as e:
        start(source, fail).await_termination(PATIENCE)
    assert "in fail" in "".join(traceback.format_exception(e.value))
    assert "no space in the warehouse" in caplog.text  # py4j logs what it hands to Spark
    assert "in fail" not in caplog.text


# What a handler raises to end the program, or the task that it is in.
ENDS = (SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit())


@pytest.mark.parametrize(
    "end",
    [ENDS[0], *(pytest.param(end, marks=pytest.mark.long) for end in ENDS[1:])],
    ids=lambda end: type(end).__name__,
)
def test_a_handler_that_ends_its_thread_ends_the_query_with_an_error(
    start: Start, source: ManualSource, end: BaseException
) -> None:
    def handler(_: DataFrame, __: int) -> None:
        raise end

    query = start(source, handler)
    with pytest.raises(BatchFailedError, match=f"the handler raised {type(end).__name__} in b"):
        query.await_termination(PATIENCE)
    assert isinstance(query.exception(), BatchFailedError)
    query.stop()
    assert fanout_threads() == []
    recorder = Recorder()
    start(source, recorder)
    recorder.wait_for_rows(2)


@pytest.mark.long
@pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
def test_a_listener_that_ends_its_thread_is_logged_and_the_query_goes_on(
    start: Start, source: ManualSource, caplog: pytest.LogCaptureFixture, end: BaseException
) -> None:
    def listener(_: BatchReport) -> None:
        raise end

    recorder = Gate()
    query = start(source, recorder, available_now=True)
    query.on_batch(listener)
    recorder.open()
    with caplog.at_level(logging.WARNING, "fanout.spark.query.query"):
        assert query.await_termination(PATIENCE)
    assert "a listener of batch 0 failed" in caplog.text
    assert recorder.sequences == [1, 2]


@pytest.mark.parametrize(
    "end", [SystemExit(1), GeneratorExit()], ids=lambda end: type(end).__name__
)
def test_a_function_of_the_stream_that_ends_its_thread_ends_the_query_with_an_error(
    start: Start, source: ManualSource, end: Any
) -> None:
    def handler(_: DataFrame, __: int) -> None:
        source.fail(end)

    query = start(source, handler)
    with pytest.raises(StreamStateError, match=f"raised {type(end).__name__}") as e:
        query.await_termination(PATIENCE)
    assert e.value.__cause__ is end
    query.stop()
    assert fanout_threads() == []


@pytest.mark.long
def test_a_poisoned_batch_is_set_aside_counted_and_told_and_the_query_goes_on(
    start: Start, source: ManualSource, caplog: pytest.LogCaptureFixture, checkpoint: str
) -> None:
    handled, aside, reports = Recorder(), Recorder(), list[BatchReport]()
    ready = threading.Event()

    def handler(df: DataFrame, batch_id: int) -> None:
        assert ready.wait(PATIENCE)
        if batch_id == 1:
            fail(df, batch_id)
        handled(df, batch_id)

    def set_aside(df: DataFrame, batch_id: int, error: BatchFailedError) -> None:
        assert isinstance(error.__cause__, ValueError)
        aside(df, batch_id)

    caplog.set_level(logging.DEBUG, "fanout.lifecycle")
    source.put(b"three")
    query = start(source, handler, max_records=1, available_now=True, on_failed_batch=set_aside)
    query.on_batch(reports.append)
    ready.set()
    assert query.await_termination(PATIENCE)
    assert (handled.sequences, aside.sequences) == ([1, 3], [2])
    batches = query.statistics().batches
    assert batches is not None
    assert (batches.batches, batches.rows, batches.set_aside) == (2, 2, 1)
    assert [(one.rows, one.set_aside) for one in reports] == [(1, False), (0, True), (1, False)]
    assert isinstance(reports[1].error, ValueError)
    [told] = [
        vars(record)
        for record in caplog.records
        if vars(record).get("event.name") == "fanout.batch.set_aside"
    ]
    assert told["levelname"] == "ERROR"
    assert told["fanout.batch.ranges"] == ["a: 1 to 2"]
    assert told["error.type"] == "ValueError"
    assert re.search(
        r"was set aside after ValueError: 1 records, .*; a: 1 to 2$",
        told["message"],
    )
    found = read_status(LocalStorage(Path(checkpoint, "fanout"))).set_aside
    assert found is not None
    assert (found.batch, found.rows, found.places) == (1, 1, ("a: 1 to 2",))


def test_a_sink_without_a_place_to_write_to_sets_no_batch_aside(
    start: Start, source: ManualSource, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    aside = Recorder()

    def set_aside(df: DataFrame, batch_id: int, _: BatchFailedError) -> None:
        aside(df, batch_id)

    query = start(
        source,
        ParquetSink(path=f"{tmp_path}/file/table"),
        available_now=True,
        on_failed_batch=set_aside,
    )
    with pytest.raises(BatchFailedError) as caught:
        query.await_termination(PATIENCE)
    assert isinstance(caught.value.__cause__, BatchNotWrittenError)
    assert aside.sequences == []


def test_the_log_lays_an_error_of_the_function_for_failed_batches_on_no_handler(
    start: Start, source: ManualSource, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(_: DataFrame, __: int) -> None:
        raise ValueError

    def set_aside(_: DataFrame, __: int, ___: BatchFailedError) -> None:
        raise OSError("no space there either")

    source.put(b"one")
    with pytest.raises(BatchFailedError, match=r"^on_failed_batch raised OSError"):
        start(source, handler, available_now=True, on_failed_batch=set_aside).await_termination(
            PATIENCE
        )
    assert re.search(r"batch 0 of the query \S+ comes again after OSError: 3 records", caplog.text)


@pytest.mark.parametrize("function", [told, "print", fail])
def test_a_function_for_failed_batches_that_cannot_be_called_so_is_refused(
    start: Start, source: ManualSource, function: Any
) -> None:
    with pytest.raises(OptionError, match=r"^on_failed_batch.* must be a function of a DataFrame,"):
        start(source, Recorder(), on_failed_batch=function)
