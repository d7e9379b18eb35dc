"""Build frames that the encoder of fanout.testing would not write: their checksums are right."""

from __future__ import annotations

import struct
import zlib


def sealed(headers: bytes, payload: bytes = b"", total: int | None = None) -> bytes:
    """Frame raw header bytes, with right checksums over any announced lengths."""
    total = 16 + len(headers) + len(payload) if total is None else total
    prelude = struct.pack(">II", total, len(headers))
    body = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return body + struct.pack(">I", zlib.crc32(body))


def header(name: bytes, kind: int, value: bytes) -> bytes:
    return bytes([len(name)]) + name + bytes([kind]) + value
