"""Records of Avro, as fastavro writes them and as Confluent's serializers frame them."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import fastavro

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("ORDER", "ORDERS", "framed", "written")

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "items", "type": {"type": "array", "items": "string"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


def written(schema: Any, rows: Sequence[Any]) -> list[bytes]:
    """Return the bytes of values, as fastavro writes them."""
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    bodies = []
    for row in rows:
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, row)
        bodies.append(body.getvalue())
    return bodies


def framed(number: int, bodies: list[bytes]) -> list[bytes]:
    return [b"\0" + number.to_bytes(4, "big") + body for body in bodies]


ORDERS = [
    {"id": n * 10**n, "name": f"é{n}", "items": ["a" * n] * n, "note": "n" if n % 2 else None}
    for n in range(10)
]
