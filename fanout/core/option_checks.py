"""Checks of options that every source has, with one sentence for each mistake."""

from __future__ import annotations

import ipaddress
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from fanout.core.sentence import Option
from fanout.errors import OptionError, UnwritableRecordError


def wrong_type(name: str, value: object, wanted: str) -> OptionError:
    """Build the error of a value of a wrong type, without the value, which may be a secret."""
    shown = "None" if value is None else f"of the type {type(value).__name__}"
    return OptionError(Option(name), f" must be {wanted}; it is {shown}")


def check_offers(name: str, value: object, method: str, wanted: str) -> None:
    """Check that an option is an object with a method, and so of a protocol."""
    if isinstance(value, type) or not callable(getattr(value, method, None)):
        raise wrong_type(name, value, wanted)


def check_source(source: object) -> None:
    """Check that an option is a source."""
    check_offers("source", source, "connect", "a source, such as a KafkaSource or a KinesisSource")


def check_mapping(name: str, value: object) -> None:
    """Check that an option is a mapping of names, or None."""
    if value is not None and not isinstance(value, Mapping):
        raise wrong_type(name, value, "a mapping of names to values")


def as_sequence(name: str, value: object, wanted: str) -> Sequence[Any]:
    """Return what an option lists; a text, which is a sequence too, is no list."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise wrong_type(name, value, wanted)
    return value


def as_rows(records: object) -> Sequence[Mapping[str, Any]]:
    """Return records to write that are no record batch, where they are rows."""
    rows = records if isinstance(records, Sequence) else ()
    if rows is not records or not all(issubclass(kind, Mapping) for kind in {*map(type, rows)}):
        wanted = "a pyarrow.RecordBatch, or a list of mappings"
        raise UnwritableRecordError(wrong_type("records", records, wanted))
    return rows


def location_text(name: str, value: str | os.PathLike[str]) -> str:
    """Return a path or a URI as text."""
    found = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(found, str):
        raise wrong_type(name, value, "a path or a URI, as text or a pathlib.Path")
    return found


def check_files(options: object, *names: str) -> None:
    """Check that options are paths or None."""
    for name in names:
        if (value := getattr(options, name)) is not None:
            location_text(name, value)


def number(name: str, value: object) -> float:
    """Return an option's value as a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(Option(name, value), " must be a number")
    return value


def whole(name: str, value: object, *, or_none: bool = False) -> int:
    """Return an option's value as a whole number; with `or_none` the error names None too."""
    if isinstance(value, bool) or not isinstance(value, int):
        alternative = ", or None" if or_none else ""
        raise OptionError(Option(name, value), " must be a whole number", alternative)
    return value


def at_least_one(name: str, value: object, *, or_none: bool = False) -> None:
    """Check that an option is a whole number above 0, or None where that is allowed."""
    if not (value is None and or_none) and whole(name, value, or_none=or_none) < 1:
        raise OptionError(Option(name, value), " must be at least 1", ", or None" * or_none)


def check_seconds(name: str, value: object) -> None:
    """Check an option that is a time in seconds: a finite number above 0."""
    if not 0 < number(name, value) < math.inf:
        raise OptionError(Option(name, value), " must be more than 0 seconds, and finite")


def one_of(name: str, value: object, *allowed: str) -> None:
    """Check that an option has one of the values that it may have."""
    if value not in allowed:
        choices = " or ".join(map(repr, allowed))
        raise OptionError(Option(name, value), f" is not understood; use {choices}")


def check_text(name: str, value: object, *, or_none: bool = True) -> None:
    """Check that an option is a string, and not empty; or None where that is allowed."""
    if not (value is None and or_none) and not (isinstance(value, str) and value):
        raise OptionError(Option(name, value), " must be a string, and not empty")


def check_strings(options: object, *names: str) -> None:
    """Check that options are strings or None. No message has a value, which may be a secret."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not isinstance(value, str):
            raise OptionError(Option(name), f" must be a string, not {type(value).__name__}")


def check_path(name: str, value: str) -> None:
    """Check that a path or URI can be stored, and read by programs that take paths for UTF-8.

    Refused are bytes that are not UTF-8, or that this process does not take for it, and those that
    no path has.
    """
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise OptionError(
            Option(name, value),
            " must be a path in UTF-8, which Parquet and Spark need; rename it, or start this "
            "process with a locale such as C.UTF-8",
        ) from error
    if "\0" in value:
        raise OptionError(Option(name, value), " must be a path, which has no NUL")


def check_memory(max_event_bytes: object, max_bytes_in_flight: object) -> None:
    """Check that the largest event fits into the memory of all."""
    event = whole("max_event_bytes", max_event_bytes)
    in_flight = whole("max_bytes_in_flight", max_bytes_in_flight)
    if not 0 < event <= in_flight:
        raise OptionError(
            Option("max_event_bytes", event),
            " must be at least 1 and at most ",
            Option("max_bytes_in_flight", in_flight),
        )


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine by its name or address alone; nothing is looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
