"""Name a few of many things in a message."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    _T = TypeVar("_T")

# A stream may have thousands of splits, and a message names a few of them.
_NAMED: Final = 5


def few(items: Collection[_T], name: Callable[[_T], str] = str) -> str:
    """Name the first few things, and count the others.

    Args:
        items: The things, in order.
        name: Returns the name of one.
    """
    names = ", ".join(name(item) for item in islice(items, _NAMED))
    more = len(items) - _NAMED
    return f"{names} and {more} more" if more > 0 else names
