"""Parse the option `start`: one start for every split, one for each, or a function that chooses.

Services differ in how users write a place in a split, and in which starts there are. A `Dialect`
holds these differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, TypeAlias, final

from fanout.core.error_text import text_of
from fanout.core.events import Split
from fanout.core.positions import Committed, Cursor, Horizon, Latest, Start, Timestamp
from fanout.core.sentence import Option, Sentence
from fanout.core.user_functions import check_function, drop_unawaited, is_interrupt
from fanout.errors import OptionError

SplitStart: TypeAlias = Start | Cursor

Chooser: TypeAlias = Callable[[Sequence[Split]], Mapping[str, object]]
"""A user's function: from every split that is listed to the start of each, by split id.

It is called once, when a stream opens without stored positions, and must not block. What it returns
is read like a mapping that a user writes down.
"""

OTHERS: Final = "*"
"""In a mapping, the name of all splits that it does not name."""

_WORDS: Final[Mapping[str, Start]] = MappingProxyType(
    {"earliest": Horizon(), "latest": Latest(), "committed": Committed()}
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How users of one service write a start."""

    choices: str  # what an error suggests, as the end of "use ..."
    # Reads the value that a mapping has for one split as a place in that split; returns None where
    # it is something else.
    cursor: Callable[[object], Cursor | None]
    # Further words for a start, in lower case; `earliest`, `latest` and `committed` are everyone's,
    # and case never matters.
    words: Mapping[str, Start] = field(default_factory=dict)
    # Why there are no committed positions, a clause; None where there are.
    no_commits: str | None = None


@final
@dataclass(frozen=True, slots=True)
class PerSplit:
    """Where to begin in each split."""

    named: tuple[tuple[str, SplitStart], ...]  # by id, the splits that have a start of their own
    others: Start | None = None  # of every other split; None where all of them have to be named


def parse_start(
    start: object, dialect: Dialect, *, option: str = "start"
) -> Start | PerSplit | Chooser:
    """Parse the option.

    It is a start; one of the dialect's words, such as `"earliest"` or `"latest"`; an aware
    datetime; a mapping of split ids to any of these, to a place in the split as the dialect writes
    it, or to a Cursor, after which the split is read, where `"*"` stands for the splits that are
    not named; or a `Chooser`. A bare number is refused: it could be seconds or milliseconds.
    """
    match start:
        case PerSplit():
            for name, its in (*start.named, (OTHERS, start.others)):
                _check_commits(Sentence(Option(option), f"[{name!r}]"), its, dialect)
            return start
        case Mapping():
            return _parse_mapping(start, dialect, option)
        case type():
            return _parse_one(
                Option(option), start, dialect
            )  # a class can be called, and is no function
        case Callable():
            check_function(option, start, "a start, or a function of splits")
            return start
        case _:
            return _parse_one(Option(option), start, dialect)


def start_of_each(
    start: Start | PerSplit | Chooser,
    splits: Sequence[Split],
    dialect: Dialect,
    *,
    option: str = "start",
) -> Mapping[str, SplitStart]:
    """Return where each of the listed splits begins, by its id.

    A mapping that names another split or lacks one is an OptionError. So is a user's function that
    raised, which is then the cause, or returned no such mapping.
    """
    match start:
        case PerSplit():
            return _fitted(start, {split.id for split in splits}, option)
        case Horizon() | Latest() | Timestamp() | Committed():
            return dict.fromkeys((split.id for split in splits), start)
        case choose:
            chosen = _chosen(choose, splits, dialect, option)
            return _fitted(chosen, {split.id for split in splits}, option)


def _chosen(choose: Chooser, splits: Sequence[Split], dialect: Dialect, option: str) -> PerSplit:
    try:
        chosen = choose(splits)
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise OptionError(
            "the function that was passed as ",
            Option(option),
            f" raised {type(error).__name__}: {text_of(error)}",
        ) from error
    if not isinstance(chosen, Mapping):
        drop_unawaited(chosen)
        raise OptionError(
            "the function that was passed as ",
            Option(option),
            f" returned {type(chosen).__name__}; it has to return a mapping of split ids to starts",
        )
    return _parse_mapping(chosen, dialect, option)


def _fitted(start: PerSplit, listed: set[str], option: str) -> Mapping[str, SplitStart]:
    named = dict(start.named)
    if unknown := sorted(named.keys() - listed):
        raise OptionError(
            Option(option),
            f" names what is not listed, or no longer: {', '.join(unknown)}; there are "
            f"{', '.join(sorted(listed)) or 'none'}",
        )
    if start.others is not None:
        return dict.fromkeys(listed, start.others) | named
    if missing := sorted(listed - named.keys()):
        raise OptionError(
            Option(option),
            f" names no position for {', '.join(missing)}; name them, or give one for all others "
            f"as {OTHERS!r}",
        )
    return named


def _parse_mapping(start: Mapping[Any, object], dialect: Dialect, option: str) -> PerSplit:
    named = {
        str(name): _parse_split_start(
            Sentence(Option(option), f"[{str(name)!r}]"), start[name], dialect
        )
        for name in start
    }
    others = named.pop(OTHERS, None)
    if isinstance(others, Cursor):
        raise OptionError(Option(option), f"[{OTHERS!r}] is a place in one split; name the split")
    return PerSplit(tuple(sorted(named.items(), key=_name)), others)


def _parse_split_start(what: str, start: object, dialect: Dialect) -> SplitStart:
    if isinstance(start, Cursor):
        return start
    cursor = dialect.cursor(start)
    return _parse_one(what, start, dialect) if cursor is None else cursor


def _parse_one(what: str, start: object, dialect: Dialect) -> Start:
    parsed: Start
    match start:
        case Horizon() | Latest() | Timestamp() | Committed():
            parsed = start
        case datetime():
            try:
                parsed = Timestamp.at(start)
            except OptionError as error:
                raise OptionError(what, ": ", error) from error
        case str() if (word := start.lower()) in _WORDS or word in dialect.words:
            parsed = {**_WORDS, **dialect.words}[word]
        case _:
            raise OptionError(what, f"={start!r} is not understood; use {dialect.choices}")
    _check_commits(what, parsed, dialect)
    return parsed


def _check_commits(what: str, start: SplitStart | None, dialect: Dialect) -> None:
    if isinstance(start, Committed) and dialect.no_commits is not None:
        raise OptionError(what, f"={start!r} cannot be: {dialect.no_commits}")


def _name(item: tuple[str, SplitStart]) -> str:
    return item[0]
