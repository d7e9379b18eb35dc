"""Report where records are in their partitions, once brokers have confirmed them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from fanout.kafka.partitions import Partition


@final
@dataclass(frozen=True, slots=True)
class Placed:
    """Records that lie one after the other in a partition.

    Args:
        partition: The partition.
        first_offset: The offset of the first record; None if the broker did not report it, because
            it had the records already.
        rows: The number of records.
    """

    partition: Partition
    first_offset: int | None
    rows: int


@final
class Delivery:
    """The confirmation of the records of one write; `await delivery.confirmed()`.

    Args:
        rows: The number of records.
    """

    def __init__(self, rows: int) -> None:
        self._left = rows
        self._placed: list[Placed] = []
        self._failure: Exception | None = None
        self._settled = asyncio.Event()
        if not rows:
            self._settled.set()

    async def confirmed(self) -> tuple[Placed, ...]:
        """Wait until brokers have confirmed all records of the write.

        Returns:
            The places of the records; those of one partition are in the order of the rows.

        Raises:
            FanOutError: If a record was not confirmed: the error of the writer.

        Cancellation: nothing is lost; call it again.
        """
        await self._settled.wait()
        if self._failure is not None:
            raise self._failure
        return tuple(self._placed)

    def place(self, placed: Placed) -> None:
        """Take the place of some records."""
        self._placed.append(placed)
        self._left -= placed.rows
        if not self._left:
            self._settled.set()

    def fail(self, error: Exception) -> None:
        """End the wait with an error, unless all records are confirmed."""
        if not self._settled.is_set():
            self._failure = error
            self._settled.set()


@final
@dataclass(frozen=True, slots=True)
class Part:
    """The rows of a batch that belong to one delivery."""

    delivery: Delivery
    rows: int


def cut_parts(parts: list[Part], rows: int) -> tuple[list[Part], list[Part]]:
    """Return the parts of the first rows of a batch, and those of the other rows."""
    first: list[Part] = []
    for number, part in enumerate(parts):
        if part.rows > rows:
            rest = [Part(part.delivery, part.rows - rows), *parts[number + 1 :]]
            return ([*first, Part(part.delivery, rows)] if rows else first), rest
        first.append(part)
        rows -= part.rows
    return first, []
