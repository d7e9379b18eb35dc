"""The batch whose handler is running, for functions that the handler calls."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, final, runtime_checkable

from fanout.errors import StreamStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from fanout.core.statistics import Origin
    from fanout.landing.ledger import LedgerBatch
    from fanout.landing.ownership import Ownership
    from fanout.landing.storage import Storage
    from fanout.spark.loop_thread import LoopThread


@final
@dataclass(frozen=True, slots=True, eq=False)
class BatchContext:
    """A batch, and the resources of the query that its handler may use.

    Args:
        batch_id: Spark's id of the micro-batch.
        query_id: Spark's id of the query, the same after each restart from its checkpoint.
        storage: The checkpoint.
        ownership: The claim of this run; check it before any change that a newer run must not see.
        loop: Runs coroutines, and keeps connections from batch to batch.
        sinks: The names of the sinks that this call of the handler has written to.
        watermark: The watermark of the stream behind the batch, in milliseconds since the Unix
            epoch: a record that comes later with an event time that is not above it is late. None
            where the source has none. A replay has the same.
        describe: Returns where the records come from, and the ledger's entry of the batch; None
            where that is unknown.
        seconds: The seconds of the phases before the handler.
        frame: The DataFrame that the handler was called with; None outside of a query.
        files: The Parquet files of its rows, in their order, where the checkpoint is on a disk of
            this machine.
    """

    batch_id: int
    query_id: str
    storage: Storage
    ownership: Ownership
    loop: LoopThread
    sinks: set[str] = field(default_factory=set)
    watermark: int | None = None
    describe: Callable[[], tuple[Origin, LedgerBatch | None]] | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    frame: DataFrame | None = None
    files: Sequence[str] = ()

    def enter_sink(self, name: str) -> None:
        """Record that the handler writes to a sink.

        Raises:
            StreamStateError: It was written to before in this call of the handler: the second
                write would look like a replay of the batch.
        """
        if name in self.sinks:
            raise StreamStateError(
                f"the sink {name!r} was written to before in batch {self.batch_id}: give each "
                f"sink of a handler a sink_name of its own"
            )
        self.sinks.add(name)


@runtime_checkable
class RecoveringHandler(Protocol):
    """A handler that is prepared when its query starts, before any record is read."""

    def prepare(self, spark: SparkSession, loop: LoopThread) -> None:
        """Check that batches can be handled; raise where they cannot."""

    def recover(self, context: BatchContext) -> None:
        """Finish the open work of an earlier run; the context is of the newest batch."""


_current: ContextVar[BatchContext] = ContextVar("fanout batch")


@contextmanager
def handling(context: BatchContext) -> Iterator[None]:
    """Let `current_batch` return a batch while the block runs."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def current_batch() -> BatchContext:
    """Return the batch whose handler is running.

    Raises:
        StreamStateError: No handler of `foreach_batch` runs in this thread.
    """
    context = _current.get(None)
    if context is None:
        raise StreamStateError(
            "no handler is running here: call it inside the handler of fanout.spark.foreach_batch, "
            "in the handler's own thread"
        )
    return context
