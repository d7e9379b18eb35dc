"""What the job writes to, and what it holds, which a campaign reads without the library."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ("NEWEST", "ROWS", "Destination", "Row")

ROWS = "rows"
"""The table, or the directory of it, with every record once."""

NEWEST = "newest"
"""The table with the newest record of each key, where a sink can merge rows."""


class Row(NamedTuple):
    """A record, as a sink holds it.

    Args:
        key: Its key.
        value: Its value.
    """

    key: bytes | None
    value: bytes | None


class Destination(Protocol):
    """What a sink writes to; made by `open_destination`."""

    @property
    def location(self) -> str:
        """The address that the job is given."""

    @property
    def environment(self) -> Mapping[str, str]:
        """What the environment of the job has for it."""

    @property
    def ordered(self) -> bool:
        """Whether the rows of a key have an order, which is then that of the records."""

    @property
    def repeated(self) -> int:
        """The rows that `rows` has left out because of their id, at its last call."""

    def rows(self) -> Iterable[Row]:
        """Read every record that is written, from the beginning; it blocks."""

    def newest(self) -> Iterable[Row] | None:
        """Read the table with the newest record of each key; None where there is none."""
