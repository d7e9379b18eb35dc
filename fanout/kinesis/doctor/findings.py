"""What an examination of a stream says, one check at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

__all__ = ("Finding", "Status", "fine", "problem", "unknown", "warning")

Status: TypeAlias = Literal["ok", "warning", "problem", "unknown"]


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Args:
        check: What was looked at: a subject such as `clock`, or the IAM action of a call that was
            made, such as `kinesis:ListShards`.
        status: `ok`; `warning`, where reading works but may not for long; `problem`, where it does
            not work or records are lost; `unknown`, where it could not be found out.
        detail: What was found, as a clause.
        advice: What to do about it, as a clause; empty where nothing is to be done.
    """

    check: str
    status: Status
    detail: str
    advice: str = ""


def fine(check: str, detail: str) -> Finding:
    """Build the finding of a check that found nothing wrong."""
    return Finding(check, "ok", detail)


def warning(check: str, detail: str, advice: str) -> Finding:
    """Build the finding of something that may become a problem."""
    return Finding(check, "warning", detail, advice)


def problem(check: str, detail: str, advice: str) -> Finding:
    """Build the finding of something that keeps the stream from being read, or loses records."""
    return Finding(check, "problem", detail, advice)


def unknown(check: str, detail: str, advice: str = "") -> Finding:
    """Build the finding of a check that could not be made."""
    return Finding(check, "unknown", detail, advice)
