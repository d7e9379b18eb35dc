"""Count the memory that the queued rows of a write keep, though its other rows are confirmed.

The batches of a write are slices of the same buffers. A small one that waits for the leader of its
partition keeps all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(slots=True, eq=False)
class IdleMemory:
    """About the bytes of confirmed rows that are still in memory.

    Args:
        nbytes: Their number.
    """

    nbytes: int = 0


@final
@dataclass(slots=True, eq=False)
class WriteBuffers:
    """The buffers of one write, which are in memory until none of its slices is queued.

    Args:
        total: The idle memory of all writes.
        size: The bytes of the buffers.
        encoded: The bytes of all slices, as they are queued.
        slices: The slices that are queued, and one more while the write adds some.
        idle: About the bytes of the others.
    """

    total: IdleMemory
    size: int
    encoded: int
    slices: int = 1
    idle: int = 0

    def release(self, encoded: int) -> None:
        """Count a slice that is queued no more.

        Args:
            encoded: Its bytes, as it was queued.
        """
        share = self.size * encoded // self.encoded
        self.slices -= 1
        self.idle += share
        self.total.nbytes += share
        if not self.slices:
            self.total.nbytes -= self.idle
            self.idle = 0
