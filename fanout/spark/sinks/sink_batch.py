"""A batch, as the sink that it is written to knows it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fanout.errors import CheckpointError

if TYPE_CHECKING:
    from fanout.landing.claims import Ownership
    from fanout.spark.query.current_batch import BatchContext


@final
@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """The newest batch of a query that a sink holds.

    Args:
        batch_id: Its id.
        content: Its `BatchEntry.content`; empty where it is unknown, as in what earlier versions
            wrote.
    """

    batch_id: int
    content: str = ""


@final
@dataclass(frozen=True, slots=True)
class SinkBatch:
    """A batch, as a sink knows it.

    Args:
        query_id: Spark's id of the query, the same after each restart from its checkpoint.
        sink_name: The sink's name in the query.
        batch_id: Spark's id of the micro-batch; the batches of a query have ascending ids.
        ownership: The claim of this run; check it before the batch is committed.
        content: What tells the batch from every other one with its id, such as that of an older
            copy of the checkpoint; empty where it is unknown.
    """

    query_id: str
    sink_name: str
    batch_id: int
    ownership: Ownership
    content: str = ""

    @property
    def writer(self) -> str:
        """The name under which a table remembers the newest batch of a sink."""
        return f"{self.query_id}/{self.sink_name}"

    def is_in(self, place: str, newest: WrittenBatch | None) -> bool:
        """Return whether this batch is written, by the newest one that a sink holds.

        Args:
            place: What the sink writes to, for messages.
            newest: The newest batch of the same writer; None for none.

        Raises:
            CheckpointError: The sink holds another batch with this id, or a later one: the
                checkpoint is an older copy, or a newer run has taken it over.
        """
        if newest is None or newest.batch_id < self.batch_id:
            return False
        if newest.batch_id == self.batch_id and (
            newest.content == self.content or not newest.content or not self.content
        ):
            return True
        self.ownership.check()
        held = "another batch with this id"
        if newest.batch_id > self.batch_id:
            held = f"the later batch {newest.batch_id} of this query"
        raise CheckpointError(
            f"batch {self.batch_id} was not written to {place}, which holds {held}: "
            f"the checkpoint was restored from an older copy, or a copy of it is in use; take both "
            f"back to one moment, or start with a new checkpoint location"
        )


def batch_for(sink_name: str, context: BatchContext) -> SinkBatch:
    """Return the batch of a context, as a sink knows it.

    Args:
        sink_name: The sink's name in the query.
        context: The batch.
    """
    return SinkBatch(
        context.query_id, sink_name, context.batch_id, context.ownership, context.content
    )
