"""Keys of headers that are not UTF-8, although Kafka's protocol says that they are.

Some producers write them all the same. aiokafka's decoder then refuses the whole record batch, and
nothing would get past it; Java's consumer puts replacement characters where such bytes were.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("with_readable_keys",)

_MARKED: Final = "fanout.kafka.marked"
_LONGEST_VARINT: Final = 63


def with_readable_keys(batch: memoryview, at: int, rows: int) -> bytearray:
    """Return a record batch with a question mark for each byte of a header's key that is no text.

    So the lengths in it stay right. Its checksum does not: check it before.

    Args:
        batch: A batch that is not compressed.
        at: Where its first record begins.
        rows: How many records it holds.

    Raises:
        ValueError: If it breaks the format of records.
    """
    data = bytearray(batch)
    for begin, end in _keys(data, at, rows):
        data[begin:end] = data[begin:end].decode(errors=_MARKED).encode()
    return data


def _keys(data: bytearray, at: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yield where the keys of headers begin and end.

    The fields of a record are those of https://kafka.apache.org/documentation/#record
    """
    for _ in range(rows):
        _, at = _varint(data, at)  # the record's length
        _, at = _varint(data, at + 1)  # its time, behind its attributes
        _, at = _varint(data, at)  # its offset
        at = _behind(data, at)  # its key
        at = _behind(data, at)  # its value
        headers, at = _varint(data, at)
        for _ in range(headers):
            size, at = _varint(data, at)
            if size < 0:
                raise ValueError("the key of a header has a negative length")
            yield at, at + size
            at = _behind(data, at + size)  # the header's value


def _behind(data: bytearray, at: int) -> int:
    """Return where bytes end that follow their length; those of a negative length are null."""
    size, at = _varint(data, at)
    return at + max(size, 0)


def _varint(data: bytearray, at: int) -> tuple[int, int]:
    """Read a number in zigzag form; return it, and where the next field begins."""
    number = shift = 0
    while at < len(data) and shift <= _LONGEST_VARINT:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:  # noqa: PLR2004 - a varint's last byte
            return (number >> 1) ^ -(number & 1), at
        shift += 7
    raise ValueError("a number has no end")


def _mark(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "?" * (error.end - error.start), error.end


codecs.register_error(_MARKED, _mark)
