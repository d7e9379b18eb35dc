"""Strategies for input that is almost right: valid bytes of which a few things are broken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What stands in the place of a value of a JSON document, as raw text.
_VALUES = (
    b"null",
    b"true",
    b"-1",
    b"1.5",
    b"9223372036854775808",
    b"9" * 400,
    b"9" * 5000,
    b"1e999",
    b"NaN",
    b'""',
    b'"a"',
    b'"\\u0000\\n"',
    b'"\\ud800"',
    b'"\\ud83d\\ud83d"',
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b'"' + b"x" * 2000 + b'"',
    b"[]",
    b"{}",
    b"[null]",
    b"[" * 5000,
    b"[" * 5000 + b"]" * 5000,
    b'{"x":' * 5000,
)
_MARK = "\x01mark\x01"


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Cut, flip, leave out, insert and repeat some of the bytes."""
    data = bytearray(draw(whole))
    for kind in draw(
        st.lists(st.sampled_from(["cut", "flip", "drop", "add", "repeat"]), max_size=3)
    ):
        at = draw(st.integers(0, len(data)))
        size = draw(st.integers(1, 20))
        match kind:
            case "cut":
                del data[at:]
            case "flip" if at < len(data):
                data[at] ^= 1 << size % 8
            case "drop":
                del data[at : at + size]
            case "add":
                data[at:at] = draw(st.binary(max_size=4))
            case _:
                data[at:at] = data[at : at + size]
    return bytes(data)


@st.composite
def documents(draw: st.DrawFn, valid: Sequence[Any]) -> bytes:
    """Write a valid JSON document with a few of its values replaced, left out or repeated."""
    document = json.loads(json.dumps(draw(st.sampled_from(valid))))
    replaced = []
    for _ in range(draw(st.integers(0, 2))):
        if not (places := list(_places(document))):
            break
        outer = [place for place in places if place[0] is document]
        inside, key = draw(st.sampled_from(places) | st.sampled_from(outer))
        if isinstance(inside, dict) and draw(st.integers(0, 4)) == 0:
            del inside[key]
            continue
        text = draw(st.sampled_from(_VALUES))
        if isinstance(inside, dict) and draw(st.integers(0, 4)) == 0:
            text = b"%s,%s:%s" % (json.dumps(inside[key]).encode(), json.dumps(key).encode(), text)
        replaced.append(text)
        inside[key] = f"{_MARK}{len(replaced)}"
    written = json.dumps(document, separators=(",", ":")).encode()
    for number, text in enumerate(replaced, 1):
        written = written.replace(json.dumps(f"{_MARK}{number}").encode(), text)
    return written


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Find every value of a document: what holds it, and under which key or index."""
    if isinstance(document, dict):
        keys: list[Any] = list(document)
    else:
        keys = list(range(len(document))) if isinstance(document, list) else []
    for key in keys:
        yield document, key
        yield from _places(document[key])


@st.composite
def cuts(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Cut bytes into pieces, some of them empty."""
    ends = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]
