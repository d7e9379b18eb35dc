"""What a user asks for as a start: one for every split, or one for each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias, final

from fanout.core.positions import Cursor, Horizon, Latest, Start, Timestamp
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ("OTHERS", "PerSplit", "SplitStart", "parse_start", "start_of_each")

SplitStart: TypeAlias = Start | Cursor

OTHERS: Final = "*"
"""In a mapping, the name of all splits that it does not name."""

_NAMES: Final[Mapping[str, Start]] = {
    "earliest": Horizon(),
    "trim_horizon": Horizon(),
    "latest": Latest(),
}
# As many digits as a stored position may have.
_SEQUENCE: Final = re.compile(r"[0-9]{1,128}")


@final
@dataclass(frozen=True, slots=True)
class PerSplit:
    """Where to begin in each split.

    Args:
        named: The splits that have a start of their own, by id.
        others: The start of every other split; None where all of them have to be named.
    """

    named: tuple[tuple[str, SplitStart], ...]
    others: Start | None = None


def parse_start(start: object) -> Start | PerSplit:
    """Turn what a user wrote into a start.

    Args:
        start: A start; `"earliest"` or `"latest"`, also by the names that Kinesis users know
            (`"TRIM_HORIZON"`, `"LATEST"`); an aware datetime; or a mapping of split ids to any of
            these, to a sequence number as a string of digits, or to a Cursor. A split begins after
            its sequence number. `"*"` stands for the splits that are not named.

    Raises:
        OptionError: If it is anything else. A bare number is refused: it could be seconds or
            milliseconds.
    """
    match start:
        case PerSplit():
            return start
        case Mapping():
            named = {str(name): _parse_split_start(str(name), start[name]) for name in start}
            others = named.pop(OTHERS, None)
            if isinstance(others, Cursor):
                raise OptionError(f"start[{OTHERS!r}] is a sequence number, which one split has")
            return PerSplit(tuple(sorted(named.items(), key=_name)), others)
        case _:
            return _parse_one("start", start)


def start_of_each(
    start: Start | PerSplit, split_ids: Iterable[str]
) -> Mapping[str, Start | Cursor]:
    """Return where each split begins.

    Args:
        start: What the user asks for.
        split_ids: Every split that the service lists.

    Raises:
        OptionError: If a mapping names a split that is not listed, or lacks one that is.
    """
    if not isinstance(start, PerSplit):
        return dict.fromkeys(split_ids, start)
    named, listed = dict(start.named), set(split_ids)
    if unknown := sorted(named.keys() - listed):
        raise OptionError(
            f"start names what is not listed, or no longer: {', '.join(unknown)}; there are "
            f"{', '.join(sorted(listed)) or 'none'}"
        )
    if start.others is not None:
        return dict.fromkeys(listed, start.others) | named
    if missing := sorted(listed - named.keys()):
        raise OptionError(
            f"start names no position for {', '.join(missing)}; name them, or give one for all "
            f"others as {OTHERS!r}"
        )
    return named


def _parse_split_start(name: str, start: object) -> SplitStart:
    match start:
        case Cursor():
            return start
        case str() if _SEQUENCE.fullmatch(start):
            return Cursor(int(start))
        case _:
            return _parse_one(f"start[{name!r}]", start)


def _parse_one(what: str, start: object) -> Start:
    match start:
        case Horizon() | Latest() | Timestamp():
            return start
        case datetime():
            try:
                return Timestamp.at(start)
            except OptionError as error:
                raise OptionError(f"{what}: {error}") from error
        case str() if start.lower() in _NAMES:
            return _NAMES[start.lower()]
        case _:
            raise OptionError(
                f"{what}={start!r} is not understood; use 'TRIM_HORIZON' (or 'earliest'), 'LATEST' "
                f"(or 'latest'), or an aware datetime"
            )


def _name(item: tuple[str, SplitStart]) -> str:
    return item[0]
