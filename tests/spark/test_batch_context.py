from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fanout.errors import OptionError, StreamStateError
from fanout.spark.query.batch_context import BatchContext, batch_of_sink, current_batch, handling
from tests.support.manual_source import ManualSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.spark import FanOutQuery

    Start = Callable[..., FanOutQuery]


def context(batch_id: int) -> BatchContext:
    unused: Any = None
    return BatchContext(batch_id, "query", unused, unused, unused)


def test_the_batch_is_that_of_the_handler_that_runs() -> None:
    with handling(context(1)):
        assert current_batch().batch_id == 1
        with handling(context(2)):
            assert current_batch().batch_id == 2
        assert current_batch().batch_id == 1
    with pytest.raises(StreamStateError, match="no handler is running here"):
        current_batch()


def test_a_handler_writes_to_a_sink_once() -> None:
    with handling(context(1)):
        assert batch_of_sink(1, "a") is batch_of_sink(1, "b")
        with pytest.raises(StreamStateError, match="'a' was written to before in batch 1"):
            batch_of_sink(1, "a")
        with pytest.raises(StreamStateError, match="batch_id=2 is not the batch of the handler"):
            batch_of_sink(2, "c")


class Recovering:
    """A handler that notes what it was asked for, in the order of the source's subscriptions."""

    def __init__(self, source: ManualSource) -> None:
        self.source = source
        self.prepared: Exception | None = None

    def __call__(self, df: Any, batch_id: int) -> None:
        assert current_batch().loop.hold("it", Held) == "held"
        self.source.trace.append(f"batch {batch_id} of {df.count()}")

    def prepare(self, spark: Any, loop: Any) -> None:
        assert spark is not None
        loop.call_soon(print)
        self.source.trace.append("prepared")
        if self.prepared is not None:
            raise self.prepared

    def recover(self, context: BatchContext) -> None:
        context.ownership.check()
        self.source.trace.append(f"recovered {context.batch_id}")


class Held:
    async def __aenter__(self) -> str:
        return "held"

    async def __aexit__(self, *_: object) -> None: ...


@pytest.mark.spark
def test_a_handler_finishes_what_was_left_open_before_anything_is_read(start: Start) -> None:
    source = ManualSource(bounded=True)
    handler = Recovering(source)
    source.put(b"one")
    query = start(source, handler, available_now=True)
    assert query.await_termination(60)
    assert source.trace[0] == "prepared"
    assert "batch 0 of 1" in source.trace
    source.trace.clear()
    start(source, handler, available_now=True).await_termination(60)
    assert source.trace[0] == "prepared"
    assert str(source.trace[1]).startswith("recovered ")
    source.trace.clear()
    handler.prepared = OptionError("it cannot")
    with pytest.raises(OptionError, match="it cannot"):
        start(source, handler)
    assert source.trace == ["prepared"]
