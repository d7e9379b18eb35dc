"""What a running stream has counted, put together as one snapshot."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from fanout.core.statistics import SplitState, SplitStatistics, Statistics

if TYPE_CHECKING:
    from fanout.core.progress import Progress, SplitProgress
    from fanout.core.source import Commits, Connection
    from fanout.core.supervisor import Supervisor

__all__ = ("count",)


def count(progress: Progress, supervisor: Supervisor, connection: Connection) -> Statistics:
    """Return the counters of a stream and of each split, as of now.

    Args:
        progress: How far the consumer has come.
        supervisor: Runs the subscribers.
        connection: The service.
    """
    commits, lending = connection.commits, connection.lending
    return Statistics(
        MappingProxyType({s.split.id: _of_split(s, supervisor, commits) for s in progress}),
        supervisor.budget.used,
        commits_succeeded=commits.succeeded,
        commits_failed=commits.failed,
        lending=None if lending is None else lending.statistics,
    )


def _of_split(progress: SplitProgress, supervisor: Supervisor, commits: Commits) -> SplitStatistics:
    subscriber = supervisor.subscribers.get(progress.split.id)
    state = SplitState.WAITING if subscriber is None else subscriber.state
    # While a split backs off its last lag is no longer true, and would look healthy.
    told = state in {SplitState.LIVE, SplitState.CAUGHT_UP}
    return SplitStatistics(
        state=SplitState.ENDED if progress.ended else state,
        position=progress.delivered,
        records=progress.records,
        bytes=progress.bytes,
        subscriptions=subscriber.subscriptions if subscriber else 0,
        resubscriptions=subscriber.resubscriptions if subscriber else 0,
        last_cause=subscriber.last_cause if subscriber else None,
        lag=progress.lag if told else None,
        newest=progress.newest,
        gaps=progress.gaps,
        gap_seconds=progress.gap_seconds,
        behind=progress.behind if told else None,
        committed=commits.positions.get(progress.split.id),
        watermark=progress.watermark,
    )
