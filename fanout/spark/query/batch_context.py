"""The batch whose handler is running, for functions that the handler calls."""

from __future__ import annotations

import re
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, final, runtime_checkable

from fanout.errors import OptionError, StreamStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from fanout.core.statistics import Origin
    from fanout.landing.claims import Ownership
    from fanout.landing.log.ledger import LedgerBatch
    from fanout.landing.storage.storage import Storage
    from fanout.spark.workers.loop_thread import LoopThread

# A sink's name is part of file names, of ids in records, and of a transactional id.
_SINK_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@final
@dataclass(frozen=True, slots=True, eq=False)
class BatchContext:
    """A batch, and the resources of the query that its handler may use."""

    batch_id: int
    query_id: str  # Spark's, the same after each restart from its checkpoint
    storage: Storage
    # The claim of this run; check it before any change that a newer run must not see.
    ownership: Ownership
    loop: LoopThread  # runs coroutines, and keeps connections from batch to batch
    sinks: set[str] = field(default_factory=set)  # that this call of the handler has written to
    # The watermark of the stream behind the batch, in milliseconds since the Unix epoch: a later
    # record whose event time is not above it is late. None where the source has none. A replay has
    # the same.
    watermark: int | None = None
    # Returns where the records come from, and the ledger's entry of the batch.
    describe: Callable[[], tuple[Origin, LedgerBatch | None]] | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)  # of the phases before the handler
    frame: DataFrame | None = None  # that the handler was called with; None outside of a query
    # The Parquet files of its rows, in order, if the checkpoint is on a disk of this machine.
    files: Sequence[str] = ()
    content: str = ""  # what tells the batch from every other one with its id; see `BatchEntry`


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
    """Return the batch whose handler is running in this thread, or raise StreamStateError."""
    context = _current.get(None)
    if context is None:
        raise StreamStateError(
            "no handler is running here: call it inside the handler of fanout.spark.foreach_batch, "
            "in the handler's own thread"
        )
    return context


def check_sink_name(name: str) -> None:
    """Raise OptionError if the name of a sink is malformed."""
    if not isinstance(name, str) or not _SINK_NAME.fullmatch(name):
        raise OptionError(
            f"sink_name={name!r} must be up to 100 letters, digits, dots, dashes and "
            f"underscores, and begin with a letter or a digit"
        )


def batch_of_sink(batch_id: int, sink_name: str) -> BatchContext:
    """Return the batch whose handler is running, for a sink that it writes to now.

    Raises:
        StreamStateError: No handler runs in this thread, or the batch is another one; or the
            handler has written to the sink before: a second write would look like a replay.
    """
    context = current_batch()
    if context.batch_id != batch_id:
        raise StreamStateError(
            f"batch_id={batch_id} is not the batch of the handler, which is {context.batch_id}"
        )
    if sink_name in context.sinks:
        raise StreamStateError(
            f"the sink {sink_name!r} was written to before in batch {batch_id}: give each "
            f"sink of a handler a sink_name of its own"
        )
    context.sinks.add(sink_name)
    return context
