"""Findings: the results of the checks that `fanout doctor` makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Iterable

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
