"""Count what a sink has written."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, final

from fanout.core.statistics import SinkStatistics, TransactionStatistics

if TYPE_CHECKING:
    from fanout.core.statistics import Origin


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
        """Return the counts of all queries; any thread may call it.

        Args:
            origin: Where the records go.
            transactional: Whether the sink writes in transactions.
        """
        total = sum(list(self._of_queries.values()), Counter[str]())
        ended = TransactionStatistics(total["begun"], total["committed"], total["aborted"])
        return SinkStatistics(
            batches=total["batches"],
            records=total["records"],
            bytes=total["bytes"],
            transactions=ended if transactional else None,
            origin=origin,
        )
