"""The counters of all landers together, and the rates that follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from msgspec.structs import replace

from fanout.core.remote_error import ForeignError
from fanout.core.statistics import SplitState, SplitStatistics
from fanout.landers.messages import SplitReport

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from fanout.core.positions import Position
    from fanout.core.progress import SplitProgress

# How much a new measurement of a rate counts.
_WEIGHT: Final = 0.5


@final
class Counters:
    """Add up what landers report of each split, whichever of them has read it.

    `gaps`, their seconds together, `bad_records`, which `decode` failed for, and `throttled`
    answers count also what was of splits that are known no longer. `bytes_per_second` are the rates
    as of the last `measure`. Times are those of the loop's clock, in seconds.
    """

    def __init__(self) -> None:
        self.bytes_per_second: dict[str, float] = {}
        self.gaps = 0
        self.gap_seconds = 0.0
        self.bad_records = self.throttled = 0
        self._reports: dict[str, SplitReport] = {}
        self._before: dict[str, SplitReport] = {}
        self._measured: dict[str, int] = {}
        self._measured_at = 0.0
        self._subscribed: dict[str, float] = {}

    def take_in(self, reports: Iterable[SplitReport], now: float) -> None:
        """Take in what a lander reports of splits that are its own."""
        for split in reports:
            before = self._reports.get(split.split)
            if before is None or before.subscriptions != split.subscriptions:
                self._subscribed[split.split] = now
            # A message from outside makes no counter go down.
            self.gaps += max(0, split.gaps - (0 if before is None else before.gaps))
            seconds = split.gap_seconds - (0.0 if before is None else before.gap_seconds)
            self.gap_seconds += max(0.0, seconds)
            bad = split.bad_records - (0 if before is None else before.bad_records)
            self.bad_records += max(0, bad)
            self._reports[split.split] = split

    def subscribed(self, split_id: str, now: float) -> float:
        """Return when a split was subscribed to at the latest: now, unless it is live."""
        report = self._reports.get(split_id)
        is_live = report is not None and report.state is SplitState.LIVE
        return self._subscribed[split_id] if is_live else now

    def released(self, split_id: str) -> None:
        """Keep what was counted of a split: its next owner begins to count anew."""
        report = self._reports.get(split_id)
        if report is not None:
            self._before[split_id] = self._total(report)
            del self._reports[split_id]

    def ended(self, split_id: str) -> None:
        """Forget the rate of a split that was read to its end."""
        for known in (self.bytes_per_second, self._measured, self._subscribed):
            known.pop(split_id, None)

    def forget_others(self, split_ids: Collection[str]) -> None:
        """Forget what was counted of splits other than those that are known."""
        for split_id in self._before.keys() - split_ids:
            del self._before[split_id]

    def measure(self, now: float) -> None:
        """Measure the rate of each split since the last call."""
        seconds = now - self._measured_at
        for split_id, report in self._reports.items():
            total = self._total(report).bytes
            if split_id in self._measured and seconds > 0:
                rate = (total - self._measured[split_id]) / seconds
                before = self.bytes_per_second.get(split_id, rate)
                self.bytes_per_second[split_id] = before + _WEIGHT * (rate - before)
            self._measured[split_id] = total
        self._measured_at = now

    def statistics(self, state: SplitProgress, committed: Position | None) -> SplitStatistics:
        """Return the counters of a split; `committed` is what the service has stored of it."""
        split_id = state.split.id
        report = self._reports.get(split_id)
        total = self._before.get(split_id) if report is None else self._total(report)
        if total is None:
            total = SplitReport(split_id, SplitState.WAITING, 0)
        now = SplitState.WAITING if report is None else report.state
        return SplitStatistics(
            state=SplitState.ENDED if state.ended else now,
            position=state.delivered,
            records=state.records,
            bytes=total.bytes,
            subscriptions=total.subscriptions,
            resubscriptions=total.resubscriptions,
            last_cause=ForeignError(total.cause) if total.cause else None,
            lag=None if report is None else report.lag,
            newest=state.newest,
            gaps=total.gaps,
            gap_seconds=total.gap_seconds,
            behind=None if report is None else report.behind,
            committed=committed,
            watermark=state.watermark,
            waiting=None if report is None else report.waiting,
            bad_records=total.bad_records,
        )

    def _total(self, report: SplitReport) -> SplitReport:
        before = self._before.get(report.split)
        if before is None:
            return report
        return replace(
            report,
            bytes=before.bytes + report.bytes,
            subscriptions=before.subscriptions + report.subscriptions,
            resubscriptions=before.resubscriptions + report.resubscriptions,
            cause=report.cause or before.cause,
            gaps=before.gaps + report.gaps,
            gap_seconds=before.gap_seconds + report.gap_seconds,
            bad_records=before.bad_records + report.bad_records,
        )
