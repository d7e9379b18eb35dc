"""Read a file of Avro, as the manifests of Iceberg are; see https://avro.apache.org/docs/."""

from __future__ import annotations

import json
import struct
import zlib
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ("read_avro",)

_MAGIC: Final = b"Obj\x01"
_SYNC: Final = 16
_FLOATS: Final = {"float": "<f", "double": "<d"}
_PLAIN: Final = {"null", "boolean", "int", "long", *_FLOATS, "bytes", "string"}
_META: Final = {"type": "map", "values": "bytes"}


def read_avro(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file whose blocks are plain or deflated.

    Args:
        path: The file.
    """
    file = _Decoder(path.read_bytes())
    assert file.take(len(_MAGIC)) == _MAGIC
    meta = file.decode(_META)
    file.take(_SYNC)
    schema, codec = json.loads(meta["avro.schema"]), meta.get("avro.codec", b"null")
    while file.more():
        count, data = file.decode("long"), file.decode("bytes")
        file.take(_SYNC)
        block = _Decoder(_plain(codec, data))
        for _ in range(count):
            yield block.decode(schema)


def _plain(codec: bytes, data: bytes) -> bytes:
    assert codec in {b"null", b"deflate"}, codec
    return data if codec == b"null" else zlib.decompress(data, -zlib.MAX_WBITS)


@final
class _Decoder:
    def __init__(self, data: bytes) -> None:
        self._data = BytesIO(data)
        self._size = len(data)
        self._named: dict[str, Any] = {}

    def more(self) -> bool:
        return self._data.tell() < self._size

    def take(self, size: int) -> bytes:
        return self._data.read(size)

    def decode(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return self.decode(schema[self._long()])
        if isinstance(schema, str):
            return self._plain(schema) if schema in _PLAIN else self.decode(self._named[schema])
        if "name" in schema:
            self._named[schema["name"]] = schema
        return self._nested(schema)

    def _plain(self, kind: str) -> Any:
        match kind:
            case "null":
                return None
            case "boolean":
                return self.take(1) == b"\x01"
            case "int" | "long":
                return self._long()
            case "float" | "double":
                layout = _FLOATS[kind]
                return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
            case _:
                data = self.take(self._long())
                return data.decode() if kind == "string" else data

    def _nested(self, schema: Any) -> Any:
        match schema["type"]:
            case "fixed":
                return self.take(schema["size"])
            case "record":
                return {each["name"]: self.decode(each["type"]) for each in schema["fields"]}
            case "array":
                return [self.decode(schema["items"]) for _ in self._items()]
            case "map":
                return {self.decode("string"): self.decode(schema["values"]) for _ in self._items()}
            case inner:
                return self.decode(inner)

    def _items(self) -> Iterator[None]:
        """Count the items of an array or a map, which come in blocks."""
        while count := self._long():
            if count < 0:
                self._long()  # the bytes of the block
            yield from [None] * abs(count)

    def _long(self) -> int:
        shift = value = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
