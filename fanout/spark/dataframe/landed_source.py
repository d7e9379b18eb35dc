"""A source that a query lands by itself: what of its options says which, where and how."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, Self, final

from fanout.errors import OptionError
from fanout.spark.dataframe.given_options import GivenOptions
from fanout.spark.dataframe.landing_thread import LandingOptions
from fanout.spark.dataframe.options import READ_OPTIONS, ReadOptions
from fanout.spark.dataframe.source_options import (
    LANDING_OPTIONS,
    refuse_without_source,
    source_from_options,
    words_of,
)
from fanout.spark.dataframe.storage_settings import STORAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fanout.core.source import Source

_AGE: Final = re.compile(r"([0-9]{1,6})([mhdw])")
_LONGEST_WAIT: Final = 3600.0
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LandedSource:
    """A source that a query lands by itself."""

    # Returns the source with this process's secrets, and checks the options that describe it.
    make: Callable[[], Source]
    landing: LandingOptions
    reading: ReadOptions

    @classmethod
    def parse(cls, options: Mapping[str, str], source: Source | None) -> Self | None:
        """Check options, but those that describe the source; None if they describe none.

        Upper and lower case of their names are the same. `source` is None where options describe
        it.

        Raises:
            OptionError: An option is unknown, missing or malformed.
        """
        own = {name: options[name] for name in options if not name.lower().startswith(STORAGE)}
        given, words = GivenOptions(own), dict[str, str]()
        if source is not None:
            given.refuse_others((*READ_OPTIONS, *LANDING_OPTIONS), {}, "it belongs to the source")
            make: Callable[[], Source] = partial(_same, source)
        elif given.text("source") is None:
            refuse_without_source(own)
            return None
        else:
            make = partial(source_from_options, own, READ_OPTIONS)
            words = words_of(given)
        names = {name.lower() for name in READ_OPTIONS}
        reading = ReadOptions.parse(
            {name: options[name] for name in options if name not in own or name.lower() in names},
            streaming=True,
        )
        landing = replace(_landing(given, reading), words=words)
        return cls(make=make, landing=landing, reading=reading)


def _same(source: Source) -> Source:
    return source


def _landing(given: GivenOptions, reading: ReadOptions) -> LandingOptions:
    keep, wait, ahead = given.text("keep"), given.seconds("maxWait"), given.number("maxBytesAhead")
    age = None if keep is None else _AGE.fullmatch(keep)
    if keep is not None and age is None:
        raise OptionError(f"keep={keep!r} must be an age such as 90m, 12h, 7d or 2w")
    if keep is not None and reading.reader is None:
        raise OptionError(
            "keep deletes what was landed longer ago: name the query with the option reader, so "
            "that what it has not read stays"
        )
    if wait is not None and not 0 <= wait <= _LONGEST_WAIT:
        raise OptionError(f"maxWait={wait:g} must be 0 to {_LONGEST_WAIT:g} seconds")
    if ahead == 0:
        raise OptionError("maxBytesAhead=0 must be at least 1")
    landing = LandingOptions(reading.landing, storage=reading.storage)
    return replace(
        landing,
        keep=None if age is None else timedelta(**{_UNITS[age[2]]: int(age[1])}),
        max_wait=landing.max_wait if wait is None else wait,
        max_bytes_ahead=landing.max_bytes_ahead if ahead is None else ahead,
    )
