"""JSON and Avro to Arrow: fanout's decoders against parsers for each record and `from_pylist`.

Flat records have seven fields, nested ones an array of structs that grows with the size.
"""

from __future__ import annotations

import io
import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from benchmarks.harness import Report, Row, median_seconds, peak_rss_bytes
from fanout.decoding import Avro, Json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ("BATCH", "SHAPES", "SIZES", "contenders", "rows_of", "run")

BATCH: Final = 4000
SIZES: Final = (200, 1000)
_ITEM: Final = {
    "type": "record",
    "name": "Item",
    "fields": [
        {"name": "sku", "type": "string"},
        {"name": "n", "type": "int"},
        {"name": "price", "type": "double"},
    ],
}
SHAPES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "flat": (
        "id BIGINT, name STRING, amount DOUBLE, at BIGINT, paid BOOLEAN, note STRING, text STRING",
        {
            "type": "record",
            "name": "Flat",
            "fields": [
                {"name": "id", "type": "long"},
                {"name": "name", "type": "string"},
                {"name": "amount", "type": "double"},
                {"name": "at", "type": "long"},
                {"name": "paid", "type": "boolean"},
                {"name": "note", "type": ["null", "string"]},
                {"name": "text", "type": "string"},
            ],
        },
    ),
    "nested": (
        "id BIGINT, items ARRAY<STRUCT<sku: STRING, n: INT, price: DOUBLE>>, text STRING",
        {
            "type": "record",
            "name": "Nested",
            "fields": [
                {"name": "id", "type": "long"},
                {"name": "items", "type": {"type": "array", "items": _ITEM}},
                {"name": "text", "type": "string"},
            ],
        },
    ),
}


def rows_of(shape: str, size: int) -> list[dict[str, Any]]:
    """Return the records of a shape."""
    if shape == "nested":
        items = [{"sku": f"s{n}", "n": n, "price": n * 1.25} for n in range(size // 100)]
        text = "x" * (size // 3)
        return [{"id": number, "items": items, "text": text} for number in range(BATCH)]
    return [
        {
            "id": number,
            "name": f"user-{number % 999}",
            "amount": number / 2,
            "at": 1_795_218_308_174 + number,
            "paid": number % 2 == 0,
            "note": None if number % 3 else "a note",
            "text": "x" * (size - 100),
        }
        for number in range(BATCH)
    ]


def contenders(shape: str, size: int) -> dict[str, Callable[[], pa.RecordBatch | pa.StructArray]]:
    """Return what makes columns of the records of a shape, by the format and the decoder."""
    import fastavro  # noqa: PLC0415 - the development environment has it

    ddl, avsc = SHAPES[shape]
    rows = rows_of(shape, size)
    documents = [json.dumps(row).encode() for row in rows]
    parsed = fastavro.parse_schema(json.loads(json.dumps(avsc)))
    bodies = []
    for row in rows:
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, row)
        bodies.append(body.getvalue())
    as_json, as_avro = Json(ddl), Avro(avsc)
    columns = pa.schema(list(as_json.read(pa.array([], pa.binary()))[0].type))
    parse = msgspec.json.Decoder().decode

    def from_rows(read: Callable[[bytes], Any], payloads: Sequence[bytes]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([read(each) for each in payloads], schema=columns)

    def read_avro(body: bytes) -> Any:
        return fastavro.schemaless_reader(io.BytesIO(body), parsed, None)

    payloads = pa.array(documents, pa.binary()), pa.array(bodies, pa.binary())
    return {
        "json fanout": lambda: as_json.read(payloads[0])[0],
        "json msgspec": partial(from_rows, parse, documents),
        "avro fanout": lambda: as_avro.read(payloads[1])[0],
        "avro fastavro": partial(from_rows, read_avro, bodies),
    }


def run(rounds: int, sizes: Sequence[int] = SIZES) -> Report:
    """Measure both formats with both shapes.

    Args:
        rounds: How often each is timed.
        sizes: About how many bytes a record has as JSON.
    """
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    for shape in SHAPES:
        for size in sizes:
            timed = contenders(shape, size)
            seconds = median_seconds(f"decode-records, {shape}, {size} B", timed, rounds)
            rows += [_row(shape, size, name, seconds[name]) for name in timed]
            for kind, peer in (("json", "msgspec"), ("avro", "fastavro")):
                ratio = seconds[f"{kind} {peer}"] / seconds[f"{kind} fanout"]
                ratios[f"decode-records/{shape} {size}/vs_{peer}"] = ratio
    return Report(scenario="decode-records", rows=rows, ratios=ratios)


def _row(shape: str, size: int, name: str, seconds: float) -> Row:
    return Row(
        name=f"{shape} {name}",
        record_bytes=size,
        records_per_second=BATCH / seconds,
        bytes_per_second=BATCH * size / seconds,
        peak_rss_bytes=peak_rss_bytes(partial(_once, shape, size, name)),
    )


def _once(shape: str, size: int, name: str) -> None:
    contenders(shape, size)[name]()
