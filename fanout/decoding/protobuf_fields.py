"""Where the fields of many messages of Protobuf are, found for all of them at once.

https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from fanout.decoding.avro_cursors import EARLY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.decoding.avro_cursors import Cursors, Ints

VARINT, FIXED64, LENGTH, GROUP, END_GROUP, FIXED32 = range(6)
# Messages that are left when going through them one by one takes less time.
_FEW: Final = 64
_DONE: Final = np.iinfo(np.int64).max
_LARGEST_TAG: Final = (1 << 32) - 1
_MOST_GROUPS: Final = 100
_MORE: Final = 0x80


class Found(NamedTuple):
    """Values of a field: the number of the message that each is in, and where it begins and ends.

    Those of a message are in the order of its bytes.
    """

    messages: Ints
    begins: Ints
    ends: Ints


class FieldFinder:
    """Finds fields by their numbers; `wires` has the forms that the values of each may have.

    All messages go on to their next field together, those with the lowest number first, so that
    messages with the same fields stay together.
    """

    def __init__(self, path: str, wires: Mapping[int, tuple[str, frozenset[int]]]) -> None:
        self._path = path or "it"
        self._wires = wires

    def find(self, cursors: Cursors) -> dict[int, Found]:
        """Return the values of each field."""
        pieces: dict[int, list[Found]] = {}
        single: dict[int, list[tuple[int, int, int]]] = {}
        few = max(_FEW, len(cursors) >> 8)
        tags = np.full(len(cursors) + 1, _DONE)
        starts = cursors.positions.copy()  # of the tags
        fresh = np.flatnonzero(starts < cursors.ends)
        while True:
            some = cursors.take(fresh)
            starts[fresh] = some.positions
            tags[fresh] = some.unsigned(self._path).view(np.int64)
            cursors.positions[fresh] = some.positions
            tag = int(tags.min())
            if tag == _DONE:
                break
            chosen = np.flatnonzero(tags == tag)
            tags[chosen] = _DONE
            if len(chosen) <= few or tag & 7 == GROUP:
                for message in chosen.tolist():
                    self._find_in_one(cursors, message, int(starts[message]), single)
                fresh = chosen[:0]
                continue
            some = cursors.take(chosen)
            begins = self._values(some, tag)
            cursors.positions[chosen] = some.positions
            if tag >> 3 in self._wires:
                pieces.setdefault(tag >> 3, []).append(Found(chosen, begins, some.positions))
            fresh = chosen[some.positions < some.ends]
        for number, values in single.items():
            pieces.setdefault(number, []).append(Found(*np.array(values, np.int64).T))
        return {number: _joined(each) for number, each in pieces.items()}

    def _values(self, cursors: Cursors, tag: int) -> Ints:
        """Go behind a value of each cursor, and return where it begins."""
        if problem := self._problem(tag):
            cursors.fail(np.ones(len(cursors), bool), problem)
            return cursors.positions
        if tag & 7 == VARINT:
            begins = cursors.positions
            cursors.unsigned(self._path)
            return begins
        if tag & 7 == LENGTH:
            return cursors.advance(cursors.unsigned(self._path).view(np.int64), self._path)
        return cursors.advance(8 if tag & 7 == FIXED64 else 4, self._path)

    def _problem(self, tag: int) -> str | None:
        """Return why no value of ours follows a tag."""
        if not _is_tag(tag) or tag & 7 == END_GROUP:
            return f"{self._path}: what follows is no field"
        path, wires = self._wires.get(tag >> 3, ("", None))
        if wires is not None and tag & 7 not in wires:
            return f"{path} has another type than in the descriptor"
        return None

    def _find_in_one(
        self, cursors: Cursors, message: int, at: int, found: dict[int, list[tuple[int, int, int]]]
    ) -> None:
        """Go through one message, from a tag on."""
        end = int(cursors.ends[message])
        data = memoryview(cursors.data)[:end]  # type: ignore[arg-type]
        problem = None
        try:
            while at < end and not problem:
                tag, begin, stop, at = _field(data, at)
                problem = self._problem(tag)
                if tag >> 3 in self._wires and not problem:
                    found.setdefault(tag >> 3, []).append((message, begin, stop))
        except IndexError:
            problem = f"{self._path}: {EARLY}"
        except ValueError:
            problem = f"{self._path}: what follows is no field"
        if problem:
            cursors.failures.setdefault(int(cursors.rows[message]), problem)


def _joined(pieces: list[Found]) -> Found:
    if len(pieces) == 1:
        return pieces[0]
    return Found(*(np.concatenate(arrays) for arrays in zip(*pieces, strict=True)))


def _is_tag(tag: int) -> bool:
    return 1 << 3 <= tag <= _LARGEST_TAG and tag & 7 <= FIXED32


def _field(data: memoryview, at: int, depth: int = 0) -> tuple[int, int, int, int]:
    """Read a field: its tag, where its value begins and ends, and where the next one begins."""
    tag, begin = _varint(data, at)
    wire = tag & 7
    if not _is_tag(tag) or depth > _MOST_GROUPS:
        raise ValueError(tag)
    if wire == END_GROUP:
        return tag, at, at, begin
    if wire == GROUP:
        inner, at = tag, begin
        while inner & 7 != END_GROUP:
            inner, stop, _, at = _field(data, at, depth + 1)
        if inner >> 3 != tag >> 3:
            raise ValueError(inner)
        return tag, begin, stop, at
    if wire == VARINT:
        stop = _varint(data, begin)[1]
    elif wire == LENGTH:
        size, begin = _varint(data, begin)
        stop = begin + size
    else:
        stop = begin + (8 if wire == FIXED64 else 4)
    if stop > len(data):
        raise IndexError(stop)
    return tag, begin, stop, stop


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Read one number, and return where it ends."""
    number = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < _MORE and not number >> 64:
            return number, at
        if byte < _MORE:
            break
    raise IndexError(at)
