"""A batch, as a sink takes it: its rows, whether they are written, and what is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, final

from pyspark.sql import DataFrame

from fanout.core.statistics import SinkStatistics, TransactionStatistics
from fanout.core.user_functions import check_function, unfinished
from fanout.errors import CheckpointError, OptionError

if TYPE_CHECKING:
    from fanout.core.statistics import Origin
    from fanout.landing.claims import Ownership
    from fanout.spark.query.batch_context import BatchContext

Transform: TypeAlias = Callable[[DataFrame], DataFrame]
"""From the rows of a batch to what is written of them."""


def check_transform(transform: object) -> None:
    """Raise OptionError unless the option `transform` is None or a function of a DataFrame."""
    if transform is not None:
        check_function("transform", transform, "a function of a DataFrame", arguments=1)


def transformed(df: DataFrame, transform: Transform | None) -> DataFrame:
    """Return what a sink writes of a batch; without a transform the rows as they are.

    Raises:
        OptionError: If it returns something else than a DataFrame.
    """
    if transform is None:
        return df
    found: object = transform(df)
    if not isinstance(found, DataFrame):
        what = unfinished(found) or ("None" if found is None else f"a {type(found).__name__}")
        raise OptionError(f"transform must return a DataFrame, and returned {what}")
    return found


@final
@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """The newest batch of a query that a sink holds."""

    batch_id: int
    # `BatchEntry.content`; empty where it is unknown, as in what earlier versions wrote.
    content: str = ""


@final
@dataclass(frozen=True, slots=True)
class SinkBatch:
    """A batch, as a sink knows it."""

    query_id: str  # Spark's, the same after each restart from its checkpoint
    sink_name: str  # its name in the query
    batch_id: int  # Spark's; the batches of a query have ascending ids
    ownership: Ownership  # the claim of this run; check it before the batch is committed
    # What tells the batch from every other one with its id, such as that of an older copy of the
    # checkpoint; empty where it is unknown.
    content: str = ""

    @property
    def writer(self) -> str:
        """The name under which a table remembers the newest batch of a sink."""
        return f"{self.query_id}/{self.sink_name}"

    def is_in(self, place: str, newest: WrittenBatch | None) -> bool:
        """Return whether this batch is written, by the newest batch of its writer in a place.

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
    """Return the batch of a context, as a sink knows it."""
    return SinkBatch(
        context.query_id, sink_name, context.batch_id, context.ownership, context.content
    )


@final
class SinkCounts:
    """Count the batches of a sink, by query.

    A handler runs in one thread of its query, and replaces only the counts of that query. So no
    lock is needed.
    """

    def __init__(self) -> None:
        self._of_queries: dict[str, Counter[str]] = {}

    def add(
        self,
        query_id: str,
        *,
        batches: int = 0,
        records: int = 0,
        bytes: int = 0,  # noqa: A002 - as in SinkStatistics
        begun: int = 0,
        committed: int = 0,
        aborted: int = 0,
    ) -> None:
        """Add to the counts of a query."""
        new = Counter(
            batches=batches,
            records=records,
            bytes=bytes,
            begun=begun,
            committed=committed,
            aborted=aborted,
        )
        self._of_queries[query_id] = self._of_queries.get(query_id, Counter()) + new

    def statistics(self, origin: Origin, *, transactional: bool) -> SinkStatistics:
        """Return the counts of all queries; any thread may call it."""
        total = sum(list(self._of_queries.values()), Counter[str]())
        ended = TransactionStatistics(total["begun"], total["committed"], total["aborted"])
        return SinkStatistics(
            batches=total["batches"],
            records=total["records"],
            bytes=total["bytes"],
            transactions=ended if transactional else None,
            origin=origin,
        )
