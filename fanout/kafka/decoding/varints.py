"""Numbers in zigzag form, of as many bytes as they need: one by one, and many at once.

The records of Kafka are made of them: https://kafka.apache.org/documentation/#record
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("BEYOND", "Bytes", "Numbers", "read_varint", "read_varints")

Bytes: TypeAlias = NDArray[np.uint8]
Numbers: TypeAlias = NDArray[np.int64]

BEYOND: Final = 1 << 40
"""A position after the end of whatever is in memory, from which there is no way back."""

_MORE: Final = 0x80
_LAST_SHIFT: Final = 63  # of the tenth byte, which has room for one bit


def read_varint(data: Sequence[int], at: int) -> tuple[int, int]:
    """Read one number; return it, and where the next field begins.

    Args:
        data: The bytes.
        at: Where the number begins.

    Raises:
        ValueError: If it has more than 64 bits.
        IndexError: If the bytes end before it does.
    """
    number = shift = 0
    while (byte := data[at]) >= _MORE:
        number |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if shift > _LAST_SHIFT:
            break
    if shift >= _LAST_SHIFT and (shift > _LAST_SHIFT or byte > 1):
        raise ValueError("a number has more than 64 bits")
    number |= byte << shift
    return (number >> 1) ^ -(number & 1), at + 1


def read_varints(data: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """Read one number at each of many positions; return them, and where the next fields begin.

    Nothing is raised: a number that has more than 64 bits ends at BEYOND, and what is read at a
    position after the end of the data has no meaning.

    Args:
        data: The bytes, at least one where there is a position.
        at: Where the numbers begin; none of them before the data.
    """
    first = data.take(at, mode="clip")
    after = at + 1
    if first.max(initial=0) < _MORE:
        return _signed(first.astype(np.uint64)), after
    number = (first & 0x7F).astype(np.uint64)
    if first.min() >= _MORE:
        second = data.take(after, mode="clip")
        if second.max() < _MORE:
            return _signed(number | second.astype(np.uint64) << np.uint64(7)), after + 1
    longer = np.flatnonzero(first >= _MORE)
    for shift in range(7, _LAST_SHIFT + 1, 7):
        byte = data.take(after[longer], mode="clip")
        after[longer] += 1
        number[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        if shift == _LAST_SHIFT:
            after[longer[byte > 1]] = BEYOND
        longer = longer[byte >= _MORE]
        if not len(longer):
            break
    return _signed(number), after


def _signed(zigzag: NDArray[np.uint64]) -> Numbers:
    return (zigzag >> 1).view(np.int64) ^ -(zigzag & 1).view(np.int64)
