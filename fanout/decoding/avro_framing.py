"""What stands before the body of an Avro record, and says which schema has written it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.decoding.avro_cursors import Ints

FRAMINGS: Final = ("none", "confluent", "single-object")
_SIZES: Final = {"none": 0, "confluent": 5, "single-object": 10}
_MAGIC: Final = {"none": b"", "confluent": b"\0", "single-object": b"\xc3\x01"}
_EMPTY: Final = 0xC15D213AA4D7A795


def frames(
    framing: str, data: np.ndarray, begins: Ints, ends: Ints
) -> Iterator[tuple[int | None, Ints]]:
    """Yield each id of a schema with the rows that have it; None for rows without a frame."""
    if framing == "none":
        yield 0, np.arange(len(begins))
        return
    size, magic = _SIZES[framing], _MAGIC[framing]
    whole = np.flatnonzero(ends - begins >= size)
    heads = data[begins[whole][:, None] + np.arange(size)]
    framed = (heads[:, : len(magic)] == np.frombuffer(magic, np.uint8)).all(axis=1)
    whole, heads = whole[framed], np.ascontiguousarray(heads[framed, len(magic) :])
    if len(whole) < len(begins):
        yield None, np.setdiff1d(np.arange(len(begins)), whole)
    ids = heads.view(">u4" if framing == "confluent" else "<u8").reshape(-1)
    for number in np.unique(ids):
        yield int(number), whole[ids == number]


def body_begins(framing: str, begins: Ints) -> Ints:
    """Return where the bodies begin."""
    return begins + _SIZES[framing]


def fingerprint(schema: Any) -> int:
    """Return the 64-bit fingerprint of a schema, which single-object encoding has.

    https://avro.apache.org/docs/1.12.0/specification/#schema-fingerprints
    """
    text = json.dumps(_canonical(schema, ""), separators=(",", ":"), ensure_ascii=False)
    value = _EMPTY
    for byte in text.encode():
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
    return value


def _canonical(schema: Any, namespace: str) -> Any:
    """Return the parsing canonical form of a schema."""
    if isinstance(schema, list):
        return [_canonical(each, namespace) for each in schema]
    if isinstance(schema, str):
        return (
            schema
            if schema in _NAMES or "." in schema or not namespace
            else f"{namespace}.{schema}"
        )
    kind = schema["type"]
    if not isinstance(kind, str):
        return _canonical(kind, namespace)
    if kind in _NAMES:
        return kind
    made: dict[str, Any] = {}
    if "name" in schema:
        space = schema["name"].rpartition(".")[0] or schema.get("namespace", namespace)
        name = schema["name"]
        made["name"] = name if "." in name or not space else f"{space}.{name}"
        namespace = space
    made["type"] = kind
    if "fields" in schema:
        made["fields"] = [
            {"name": each["name"], "type": _canonical(each["type"], namespace)}
            for each in schema["fields"]
        ]
    if "symbols" in schema:
        made["symbols"] = schema["symbols"]
    for word in ("items", "values"):
        if word in schema:
            made[word] = _canonical(schema[word], namespace)
    if "size" in schema:
        made["size"] = int(schema["size"])
    return made if len(made) > 1 else _canonical(kind, namespace)


_NAMES: Final = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_EMPTY & -(value & 1))
        table.append(value)
    return table


_TABLE: Final = _table()
