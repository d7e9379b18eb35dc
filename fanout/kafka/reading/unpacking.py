"""Numbers in zigzag form, of as many bytes as they need: one by one, and many at once.

The records of Kafka are made of them: https://kafka.apache.org/documentation/#record
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = (
    "BEYOND",
    "Bytes",
    "Fields",
    "Headers",
    "Numbers",
    "Spans",
    "read_varint",
    "read_varints",
    "unpack",
    "walk",
)


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


# With fewer records at a time, a step for all of them takes longer than one record after the other.
_MANY: Final = 16

_LEAST_HEADER: Final = 2  # the length of its key, and that of its value

# Of one header: where its key and its value begin and end, and whether the value is null.
_Place: TypeAlias = tuple[int, int, int, int, bool]


@final
@dataclass(frozen=True, slots=True)
class Spans:
    """Where the bytes of a field are, one span for each value; none overlaps one before it.

    Args:
        begins: Where they begin.
        ends: Where they end.
        null: Which values are null, and have no bytes; None where none is.
    """

    begins: Numbers
    ends: Numbers
    null: NDArray[np.bool_] | None


@final
@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of records, one record after the other.

    Args:
        ends: How many there are up to the end of each record; one number more, beginning with 0.
        keys: Their keys; none is null.
        values: Their values.
    """

    ends: Numbers
    keys: Spans
    values: Spans


@final
@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of records.

    Args:
        timestamp_deltas: Milliseconds since the first timestamp of its batch.
        offset_deltas: How far each is from the first offset of its batch.
        keys: Their keys.
        values: Their values.
        headers: Their headers; None where no record has any.
    """

    timestamp_deltas: Numbers
    offset_deltas: Numbers
    keys: Spans
    values: Spans
    headers: Headers | None

    def __len__(self) -> int:
        """Return how many records these are."""
        return len(self.offset_deltas)


def walk(data: bytes, at: int, rows: int, begins: list[int]) -> bool:
    """Find where the records of a batch begin; return whether they fill it.

    Nothing but their lengths is read. Where they do not fill it, those are found that lie in it as
    a whole.

    Args:
        data: The batch, not compressed.
        at: Where its first record begins.
        rows: How many records it says that it holds.
        begins: Takes where each of them begins.
    """
    found, append = len(begins), begins.append
    try:
        for _ in range(rows):
            length = data[at]
            append(at)
            if length < 0x80:  # noqa: PLR2004 - a varint's last byte
                at += 1 + (length >> 1)
                continue
            more = data[at + 1]
            if more < 0x80:  # noqa: PLR2004
                at += 2 + ((((more - 1) << 7) + length) >> 1)
            else:
                length, at = read_varint(data, at)
                at += max(length, 0)
    except (IndexError, ValueError):
        at = -1
    if at == len(data):
        return True
    if len(begins) > found:
        begins.pop()  # the last one may reach beyond the end
    return False


def unpack(data: Bytes, begins: Numbers) -> Fields:
    """Return the fields of records, up to the first that breaks the format.

    Args:
        data: The bytes that they are in.
        begins: Where they begin, as `walk` has found it.
    """
    length, at = read_varints(data, begins)
    ends = at + length
    timestamps, at = read_varints(data, at + 1)  # behind the attributes, which say nothing
    offsets, at = read_varints(data, at)
    keys, at = _bytes(data, at)
    values, at = _bytes(data, at)
    counts, at = read_varints(data, at)
    headers = None
    if counts.any():
        possible = (counts >= 0) & (counts <= (ends - at) // _LEAST_HEADER)
        at[~possible] = BEYOND
        headers, at = _headers(data, at, np.where(possible, counts, 0))
    broken = np.flatnonzero(at != ends)
    if len(broken):
        return unpack(data, begins[: broken[0]])
    return Fields(timestamps, offsets, keys, values, headers)


def _bytes(data: Bytes, at: Numbers) -> tuple[Spans, Numbers]:
    """Read bytes behind their lengths; those of a negative length are null, as for Java."""
    length, begins = read_varints(data, at)
    null = None
    if length.min(initial=0) < 0:
        null = length < 0
        length[null] = 0
    if length.max(initial=0) > len(data):
        # More than there is, and not so much that many of them overflow.
        length = np.minimum(length, len(data) + 1)
    ends = begins + length
    return Spans(begins, ends, null), ends


def _headers(data: Bytes, at: Numbers, counts: Numbers) -> tuple[Headers, Numbers]:
    """Read as many headers as each record has; return them, and where they end.

    The first headers of all records come first, then the second ones; what is read is put where it
    belongs.
    """
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    places = np.empty((5, ends[-1]), np.int64)
    lanes, done = np.flatnonzero(counts), 0
    while len(lanes) >= _MANY:
        keys, after = _bytes(data, at[lanes])
        if keys.null is not None:
            after[keys.null] = BEYOND
        values, after = _bytes(data, after)
        to = ends[lanes] + done
        places[0, to], places[1, to] = keys.begins, keys.ends
        places[2, to], places[3, to] = values.begins, values.ends
        places[4, to] = 0 if values.null is None else values.null
        at[lanes] = after
        done += 1
        lanes = lanes[counts[lanes] > done]
    for lane in lanes.tolist():
        try:
            found, at[lane] = _headers_of_one(data, int(at[lane]), int(counts[lane]) - done)
        except (IndexError, ValueError):
            at[lane] = BEYOND
        else:
            places[:, ends[lane] + done : ends[lane + 1]] = np.array(found).T
    null = places[4].astype(np.bool_)
    keys = Spans(places[0], places[1], None)
    values = Spans(places[2], places[3], null if null.any() else None)
    return Headers(ends, keys, values), at


def _headers_of_one(data: Bytes, at: int, count: int) -> tuple[list[_Place], int]:
    """Read some headers of one record: where each key and value is, and whether that is null."""
    found = []
    view = data.data
    for _ in range(count):
        size, key = read_varint(view, at)
        if not 0 <= size <= len(view):
            raise ValueError("the key of a header has a length that cannot be")
        length, value = read_varint(view, key + size)
        if length > len(view):
            raise ValueError("the value of a header has a length that cannot be")
        at = value + max(length, 0)
        found.append((key, key + size, value, at, length < 0))
    return found, at
