from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.provers.crash.sinks.avro_file import read_avro

if TYPE_CHECKING:
    from pathlib import Path

SYNC = bytes(range(16))
SCHEMA = {
    "type": "record",
    "name": "entry",
    "fields": [
        {"name": "status", "type": "int"},
        {"name": "snapshot", "type": ["null", "long"]},
        {"name": "path", "type": "string"},
        {"name": "own", "type": {"type": "fixed", "name": "two", "size": 2}},
        {"name": "other", "type": "two"},
        {"name": "sizes", "type": {"type": "array", "items": "long"}},
        {"name": "bounds", "type": {"type": "map", "values": "bytes"}},
        {"name": "rate", "type": "double"},
        {"name": "good", "type": "boolean"},
    ],
}
RECORD = (
    b"\x02"  # 1
    b"\x02\xac\x02"  # the second type of the union: 150
    b"\x06a/b"
    b"xy"
    b"zz"
    b"\x03\x04\x02\x04\x00"  # a block of -2 items, its bytes, 1 and 2, and the end
    b"\x02\x02k\x04\x00\xff\x00"
    b"\x00\x00\x00\x00\x00\x00\xf0\x3f"
    b"\x01"
)
MEANT: dict[str, Any] = {
    "status": 1,
    "snapshot": 150,
    "path": "a/b",
    "own": b"xy",
    "other": b"zz",
    "sizes": [1, 2],
    "bounds": {"k": b"\x00\xff"},
    "rate": 1.0,
    "good": True,
}


def number(value: int) -> bytes:
    coded = b""
    value <<= 1
    while value > 0x7F:
        coded, value = coded + bytes([value & 0x7F | 0x80]), value >> 7
    return coded + bytes([value])


def text(value: bytes) -> bytes:
    return number(len(value)) + value


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_records_are_read_by_the_schema_of_their_file(tmp_path: Path, codec: str) -> None:
    block = RECORD * 2
    if codec == "deflate":
        block = zlib.compress(block, wbits=-zlib.MAX_WBITS)
    meta = {b"avro.schema": json.dumps(SCHEMA).encode(), b"avro.codec": codec.encode()}
    header = number(len(meta)) + b"".join(text(k) + text(v) for k, v in meta.items()) + b"\x00"
    blocks = (number(2) + text(block) + SYNC) * 2
    file = tmp_path / "entries.avro"
    file.write_bytes(b"Obj\x01" + header + SYNC + blocks)
    assert list(read_avro(file)) == [MEANT] * 4
