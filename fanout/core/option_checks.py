"""Checks of options that every source has, with one sentence for each mistake."""

from __future__ import annotations

import ipaddress

from fanout.core.sentence import Option
from fanout.errors import OptionError


def number(name: str, value: object) -> float:
    """Return an option's value as a number.

    Raises:
        OptionError: If it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(Option(name, value), " must be a number")
    return value


def whole(name: str, value: object, *, or_none: bool = False) -> int:
    """Return an option's value as a whole number.

    Args:
        name: The option.
        value: Its value.
        or_none: Whether None would have been right as well, for the message.

    Raises:
        OptionError: If it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        alternative = ", or None" if or_none else ""
        raise OptionError(Option(name, value), " must be a whole number", alternative)
    return value


def one_of(name: str, value: object, *allowed: str) -> None:
    """Check that an option has one of the values that it may have.

    Raises:
        OptionError: If it has another.
    """
    if value not in allowed:
        choices = " or ".join(map(repr, allowed))
        raise OptionError(Option(name, value), f" is not understood; use {choices}")


def check_path(name: str, value: str) -> None:
    """Check that a path can be stored, and read by programs that take paths for UTF-8.

    Args:
        name: The option.
        value: The path, or a URI.

    Raises:
        OptionError: It holds bytes that are not UTF-8, or that this process does not take for it,
            or a byte that no path has.
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
    """Check that the largest event fits into the memory of all.

    Raises:
        OptionError: If it does not, or one of them is no whole number.
    """
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
