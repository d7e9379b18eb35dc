"""Functions that a user hands to a query: those that would never run, and those that end badly."""

from __future__ import annotations

import asyncio
import functools
import logging
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from fanout.core.callables import UnfinishedError
from fanout.errors import BatchFailedError, OptionError, StreamStateError
from fanout.spark import ParquetSink, traced
from tests.spark.harness import PATIENCE, Gate, Recorder, fail, fanout_threads
from tests.spark.manual import ManualSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame

    from fanout.spark import BatchReport, FanOutQuery

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


@pytest.mark.parametrize("wrapped", [plain_outside, lambda one: traced(plain_outside(one))])
@pytest.mark.parametrize("handler", [asynchronous, generating])
def test_a_handler_that_returns_its_work_undone_loses_no_batch(
    start: Start, source: ManualSource, handler: Any, wrapped: Any
) -> None:
    query = start(source, wrapped(handler))
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


@pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
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
    with caplog.at_level(logging.WARNING, "fanout.spark.query"):
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
