"""The backlog of each split: how far a reader is behind, and how long unread records are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from fanout.core.findings import fine, named, problem, unknown, warning

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.core.findings import Finding

# A backlog that is kept for less than this share of the retention period is a warning.
SHORT: Final = 0.25
MILLIS_PER_HOUR: Final = 3_600_000


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What of one split is unread."""

    retention: float  # the hours for which the service keeps a record; infinite for ever
    hours: float  # unread records are kept for at least so long; 0 if some may have expired
    # The number of unread records; None where the service does not tell it.
    records: int | None = None
    # The age of the oldest unread record, 0 if there is none; None if it is not known.
    millis: int | None = None
    obstacle: str = ""  # why no better numbers are known; empty for none
    gone: bool = False  # whether the service does not list the split any more

    @property
    def expired(self) -> bool:
        """Whether unread records may have expired."""
        return not (self.hours or self.obstacle)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogAdvice:
    """What to do about a backlog, in the words of a service."""

    longer: str  # how to keep records for longer
    lost: str  # what to do about records that have expired
    splits: str  # what the service calls its splits, such as `shards`
    obstacles: Mapping[str, str]  # what to do where the backlog is not known, by its obstacle


def examine_backlogs(
    backlogs: Mapping[str, Backlog], advice: BacklogAdvice, *, not_begun: int = 0
) -> list[Finding]:
    """Judge how long unread records are kept: at most one finding for each status.

    `backlogs` are those of splits that are begun and not read to their end; so many more as
    `not_begun` are to be read from their oldest record on.
    """
    check = "backlog"
    safe = {id_: each for id_, each in backlogs.items() if each.hours >= SHORT * each.retention}
    others = {id_: each for id_, each in backlogs.items() if id_ not in safe}
    unreliable = {id_: each for id_, each in others.items() if each.obstacle}
    expired = {id_ for id_, each in others.items() if each.expired}
    short = {id_: each for id_, each in others.items() if each.hours and not each.obstacle}
    findings = []
    if expired:
        detail = f"the records that follow in {named(expired)} have expired"
        findings.append(problem(check, detail, advice.lost))
    if short:
        least = min(short.values(), key=lambda each: each.hours)
        detail = (
            f"unread records of {named(short)} expire in {least.hours:.1f} of {least.retention:g} h"
        )
        todo = f"start the reader, or make it faster, before they expire; {advice.longer}"
        findings.append(warning(check, detail, todo))
    if unreliable:
        obstacles = sorted({each.obstacle for each in unreliable.values()})
        todo = next((advice.obstacles[one] for one in obstacles if one in advice.obstacles), "")
        detail = f"not found out for {named(unreliable)}: {'; '.join(obstacles)}"
        findings.append(unknown(check, detail, todo or "try again in a minute"))
    good = []
    if safe:
        hours = min(each.hours for each in safe.values())
        kept = "until they are read" if hours == math.inf else f"for {hours:.1f} h or more"
        good.append(f"unread records are kept {kept} ({advice.splits}: {len(safe)})")
    if not_begun:
        good.append(f"to be read from the oldest record on ({advice.splits}: {not_begun})")
    if good or not findings:
        nothing = f"of the listed {advice.splits}, those that it knows were read to their end"
        findings.append(fine(check, "; ".join(good) or nothing))
    return findings


def examine_lag(backlogs: Mapping[str, Backlog]) -> Finding:
    """Report how far a reader is behind in its splits, at least one, in records and in time."""
    known = {id_: each for id_, each in backlogs.items() if each.millis is not None}
    if not known:
        obstacles = sorted({each.obstacle for each in backlogs.values() if each.obstacle})
        return unknown("lag", "; ".join(obstacles) or "the records that follow have expired")
    counts = [each.records for each in backlogs.values() if each.records is not None]
    last = max(known, key=lambda id_: known[id_].millis or 0)
    detail = f"{sum(counts):,} records; " if counts else ""
    if known[last].millis:
        seconds = (known[last].millis or 0) / 1000
        detail += f"the oldest unread record is {seconds:,.1f} s old, in {last}"
    else:
        detail += "nothing is unread"
    unsure = len(backlogs) - len(known)
    return fine("lag", detail + (f"; not known of {unsure} more" if unsure else ""))
