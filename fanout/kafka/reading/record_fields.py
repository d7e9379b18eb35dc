"""Find the fields of Kafka's records in a record batch, for all records at once.

A record consists of variable-length integers in zigzag form, and of bytes with such lengths before
them: https://kafka.apache.org/documentation/#record
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

Bytes: TypeAlias = NDArray[np.uint8]
Numbers: TypeAlias = NDArray[np.int64]

OUT_OF_RANGE: Final = 1 << 40
"""A position after the end of any data in memory: a field that begins here cannot be read."""

_MORE: Final = 0x80
_LAST_SHIFT: Final = 63  # of the tenth byte, which has room for one bit
# With fewer records at a time, a numpy step for all of them takes longer than one record after the
# other.
_MANY: Final = 16
_LEAST_HEADER: Final = 2  # the length of its key, and that of its value

# Of one header: where its key and its value begin and end, and whether the value is null.
_HeaderSpan: TypeAlias = tuple[int, int, int, int, bool]


@final
@dataclass(frozen=True, slots=True)
class Spans:
    """Where the values of a field are, in bytes; no span overlaps one before it.

    `null` says which values are null and have no bytes; it is None where no value is null.
    """

    begins: Numbers
    ends: Numbers
    null: NDArray[np.bool_] | None


@final
@dataclass(frozen=True, slots=True)
class HeaderFields:
    """The headers of records, one record after the other; no key is null.

    `ends` has the number of headers up to the end of each record, with a 0 before the first.
    """

    ends: Numbers
    keys: Spans
    values: Spans


@final
@dataclass(frozen=True, slots=True)
class RecordFields:
    """The fields of records; `headers` is None where no record has any.

    The deltas are to the first timestamp of the batch, in milliseconds, and to its first offset.
    """

    timestamp_deltas: Numbers
    offset_deltas: Numbers
    keys: Spans
    values: Spans
    headers: HeaderFields | None

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.offset_deltas)


def find_records(data: bytes, at: int, rows: int, begins: list[int]) -> bool:
    """Find where the records of a batch begin; return whether they fill it exactly.

    Only the lengths of records are read. The positions are appended to `begins`. Where the records
    do not fill the uncompressed batch, those that lie in it as a whole are found.
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
        begins.pop()  # the last record may reach beyond the end
    return False


def find_fields(data: Bytes, begins: Numbers) -> RecordFields:
    """Return the fields of the records that begin here, up to one that breaks the format."""
    length, at = read_varints(data, begins)
    ends = at + length
    timestamps, at = read_varints(data, at + 1)  # after the attributes, which have no meaning yet
    offsets, at = read_varints(data, at)
    keys, at = _bytes(data, at)
    values, at = _bytes(data, at)
    counts, at = read_varints(data, at)
    headers = None
    if counts.any():
        possible = (counts >= 0) & (counts <= (ends - at) // _LEAST_HEADER)
        at[~possible] = OUT_OF_RANGE
        headers, at = _headers(data, at, np.where(possible, counts, 0))
    broken = np.flatnonzero(at != ends)
    if len(broken):
        return find_fields(data, begins[: broken[0]])
    return RecordFields(timestamps, offsets, keys, values, headers)


def _bytes(data: Bytes, at: Numbers) -> tuple[Spans, Numbers]:
    """Find bytes that follow their lengths; bytes of a negative length are null, as in Java."""
    length, begins = read_varints(data, at)
    null = None
    if length.min(initial=0) < 0:
        null = length < 0
        length[null] = 0
    if length.max(initial=0) > len(data):
        # Beyond the end of the data, but too small for the sum of many to overflow.
        length = np.minimum(length, len(data) + 1)
    ends = begins + length
    return Spans(begins, ends, null), ends


def _headers(data: Bytes, at: Numbers, counts: Numbers) -> tuple[HeaderFields, Numbers]:
    """Find the headers of all records; return them, and where they end.

    The first headers of all records are read first, then the second ones, and so on.
    """
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    spans = np.empty((5, ends[-1]), np.int64)
    lanes, done = np.flatnonzero(counts), 0
    while len(lanes) >= _MANY:
        keys, after = _bytes(data, at[lanes])
        if keys.null is not None:
            after[keys.null] = OUT_OF_RANGE
        values, after = _bytes(data, after)
        to = ends[lanes] + done
        spans[0, to], spans[1, to] = keys.begins, keys.ends
        spans[2, to], spans[3, to] = values.begins, values.ends
        spans[4, to] = 0 if values.null is None else values.null
        at[lanes] = after
        done += 1
        lanes = lanes[counts[lanes] > done]
    for lane in lanes.tolist():
        try:
            found, at[lane] = _headers_of_one(data, int(at[lane]), int(counts[lane]) - done)
        except (IndexError, ValueError):
            at[lane] = OUT_OF_RANGE
        else:
            spans[:, ends[lane] + done : ends[lane + 1]] = np.array(found).T
    null = spans[4].astype(np.bool_)
    keys = Spans(spans[0], spans[1], None)
    values = Spans(spans[2], spans[3], null if null.any() else None)
    return HeaderFields(ends, keys, values), at


def _headers_of_one(data: Bytes, at: int, count: int) -> tuple[list[_HeaderSpan], int]:
    """Find some headers of one record: each key and value, and whether the value is null."""
    found = []
    view = data.data
    for _ in range(count):
        size, key = read_varint(view, at)
        if not 0 <= size <= len(view):
            raise ValueError("the key of a header has an impossible length")
        length, value = read_varint(view, key + size)
        if length > len(view):
            raise ValueError("the value of a header has an impossible length")
        at = value + max(length, 0)
        found.append((key, key + size, value, at, length < 0))
    return found, at


def read_varint(data: Sequence[int], at: int) -> tuple[int, int]:
    """Read one varint; return its value, and where the next field begins.

    Raises:
        ValueError: If the number has more than 64 bits.
        IndexError: If the bytes end before the number does.
    """
    byte = data[at]
    if byte < _MORE:  # as nearly all numbers are
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, shift = byte & 0x7F, 7
    while (byte := data[at := at + 1]) >= _MORE and shift < _LAST_SHIFT:
        number |= (byte & 0x7F) << shift
        shift += 7
    if shift == _LAST_SHIFT and byte > 1:
        raise ValueError("a number has more than 64 bits")
    number |= byte << shift
    return (number >> 1) ^ -(number & 1), at + 1


def read_varints(data: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """Read one varint at each of many positions; return them, and where the next fields begin.

    Nothing is raised: a number of more than 64 bits ends at OUT_OF_RANGE, and a number at a
    position after the end of the data has no meaning. No position is negative, and where there is
    one there is a byte of data.
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
            after[longer[byte > 1]] = OUT_OF_RANGE
        longer = longer[byte >= _MORE]
        if not len(longer):
            break
    return _signed(number), after


def _signed(zigzag: NDArray[np.uint64]) -> Numbers:
    return (zigzag >> 1).view(np.int64) ^ -(zigzag & 1).view(np.int64)
