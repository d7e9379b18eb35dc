"""Findings of `fanout doctor`, and the checks that are alike for all services."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Status: TypeAlias = Literal["ok", "warning", "problem", "unknown"]

# The splits that a finding names; it counts the others.
_NAMED: Final = 5


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """Hold the result of one check.

    Args:
        check: The subject, such as `clock`, or the IAM action of a call that was made, such as
            `kinesis:ListShards`.
        status: `ok`; `warning` if reading works but may not for long; `problem` if it does not
            work or records are lost; `unknown` if the check could not be made.
        detail: What was found, as a clause.
        advice: What to do about it, as a clause; empty if there is nothing to do.
    """

    check: str
    status: Status
    detail: str
    advice: str = ""


def fine(check: str, detail: str) -> Finding:
    """Return the finding of a check that found nothing wrong."""
    return Finding(check, "ok", detail)


def warning(check: str, detail: str, advice: str) -> Finding:
    """Return the finding of something that may become a problem."""
    return Finding(check, "warning", detail, advice)


def problem(check: str, detail: str, advice: str) -> Finding:
    """Return the finding of something that prevents the work, or loses records."""
    return Finding(check, "problem", detail, advice)


def unknown(check: str, detail: str, advice: str = "") -> Finding:
    """Return the finding of a check that could not be made."""
    return Finding(check, "unknown", detail, advice)


def named(ids: Iterable[str]) -> str:
    """Name a few splits, and count the others."""
    names = sorted(ids)
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


LANDERS_APART: Final = 0.1
"""Landers begin so many seconds apart: Kinesis takes 20 descriptions of a stream a second."""

# What a lander decodes, in bytes a second; see docs/scaling.md.
_LANDER_RATE: Final = 50_000_000
_MEGABYTE: Final = 1_000_000


def lander_count(
    landers: int, splits: int, name: str, *, bytes_per_second: int | None = None
) -> Finding:
    """Compare a number of landers with the splits that they would share.

    `name` is what the open splits are called, such as "open shards". `bytes_per_second` is the most
    that the service sends of one split; None for no limit.
    """
    if not splits:
        return unknown("landers", f"{landers}, and there are no {name} to compare them with")
    detail = f"{landers} for {splits:,} {name if splits > 1 else name.removesuffix('s')}"
    if landers > splits:
        idle = landers - splits
        return warning(
            "landers",
            f"{detail}: {idle} would have nothing to read, and hold a core each",
            f"use --landers {splits} at most; a reshard or new partitions may need more later",
        )
    each = math.ceil(splits / landers)
    if bytes_per_second is None:
        return fine(
            "landers",
            f"{detail}: {each} at most for each lander, which takes 50 to 60 MB/s; no limit of the "
            f"service says how much they send",
        )
    rate = each * bytes_per_second
    detail += f": {each} at most for each lander, which send up to {rate / _MEGABYTE:,.0f} MB/s"
    if rate > _LANDER_RATE * 1.2:
        enough = min(splits, math.ceil(splits * bytes_per_second / _LANDER_RATE))
        return warning(
            "landers",
            f"{detail}, and a lander takes 50 to 60 MB/s",
            f"use --landers {enough} if all {name} are as busy as that; `query.progress().landers` "
            f"shows how much each lander reads",
        )
    return fine("landers", detail)


def lander_cores(landers: int) -> Finding:
    """Say how many cores Spark needs."""
    hold = "1 lander holds a core" if landers == 1 else f"{landers} landers hold {landers} cores"
    return fine(
        "cores for landers",
        f"{hold} for as long as the query runs, and batches need others: give Spark {landers + 1} "
        f"cores at least",
    )


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
