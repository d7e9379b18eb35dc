"""JSON, Avro and Protobuf to Arrow: fanout's decoders against a parser and `from_pylist`.

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
from fanout.decoding import Avro, Json, Protobuf

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = (
    "BATCH",
    "PEERS",
    "SHAPES",
    "SIZES",
    "bodies_of",
    "contenders",
    "message_class",
    "rows_of",
    "run",
)

BATCH: Final = 4000
SIZES: Final = (200, 1000)
PEERS: Final = {"json": "msgspec", "avro": "fastavro", "protobuf": "google"}
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
_PROTO: Final = """name: "records.proto" syntax: "proto3"
message_type { name: "Flat"
  field { name: "id" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "name" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "amount" number: 3 type: TYPE_DOUBLE label: LABEL_OPTIONAL }
  field { name: "at" number: 4 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "paid" number: 5 type: TYPE_BOOL label: LABEL_OPTIONAL }
  field { name: "note" number: 6 type: TYPE_STRING label: LABEL_OPTIONAL
    proto3_optional: true oneof_index: 0 }
  field { name: "text" number: 7 type: TYPE_STRING label: LABEL_OPTIONAL }
  oneof_decl { name: "_note" } }
message_type { name: "Item"
  field { name: "sku" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "n" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "price" number: 3 type: TYPE_DOUBLE label: LABEL_OPTIONAL } }
message_type { name: "Nested"
  field { name: "id" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "items" number: 2 type: TYPE_MESSAGE type_name: ".Item" label: LABEL_REPEATED }
  field { name: "text" number: 3 type: TYPE_STRING label: LABEL_OPTIONAL } }"""


def _flat_row(found: Any) -> dict[str, Any]:
    return {
        "id": found.id,
        "name": found.name,
        "amount": found.amount,
        "at": found.at,
        "paid": found.paid,
        "note": found.note if found.HasField("note") else None,
        "text": found.text,
    }


def _nested_row(found: Any) -> dict[str, Any]:
    items = [{"sku": each.sku, "n": each.n, "price": each.price} for each in found.items]
    return {"id": found.id, "items": items, "text": found.text}


def message_class(shape: str) -> Any:
    """Return Google's class of the messages of a shape."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # noqa: PLC0415
    from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415
    from google.protobuf.text_format import Parse  # noqa: PLC0415

    pool = DescriptorPool()
    pool.Add(Parse(_PROTO, FileDescriptorProto()))
    return GetMessageClass(pool.FindMessageTypeByName(shape.title()))


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


def bodies_of(shape: str, size: int) -> list[bytes]:
    """Return records of a shape, as fastavro writes them."""
    import fastavro  # noqa: PLC0415 - the development environment has it

    parsed = fastavro.parse_schema(json.loads(json.dumps(SHAPES[shape][1])))
    bodies = []
    for row in rows_of(shape, size):
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, row)
        bodies.append(body.getvalue())
    return bodies


def contenders(shape: str, size: int) -> dict[str, Callable[[], pa.RecordBatch | pa.StructArray]]:
    """Return what makes columns of the records of a shape, by the format and the decoder."""
    import fastavro  # noqa: PLC0415 - the development environment has it

    ddl, avsc = SHAPES[shape]
    rows = rows_of(shape, size)
    documents = [json.dumps(row).encode() for row in rows]
    parsed = fastavro.parse_schema(json.loads(json.dumps(avsc)))
    bodies = bodies_of(shape, size)
    message = message_class(shape)
    messages = [message(**row).SerializeToString() for row in rows]
    as_json, as_avro, as_protobuf = Json(ddl), Avro(avsc), Protobuf(message)
    values = _flat_row if shape == "flat" else _nested_row
    columns = pa.schema(list(as_json.read(pa.array([], pa.binary()))[0].type))
    parse = msgspec.json.Decoder().decode

    def from_rows(read: Callable[[bytes], Any], payloads: Sequence[bytes]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([read(each) for each in payloads], schema=columns)

    def read_avro(body: bytes) -> Any:
        return fastavro.schemaless_reader(io.BytesIO(body), parsed, None)

    def read_protobuf(body: bytes) -> Any:
        return values(message.FromString(body))

    payloads = [pa.array(each, pa.binary()) for each in (documents, bodies, messages)]
    return {
        "json fanout": lambda: as_json.read(payloads[0])[0],
        "json msgspec": partial(from_rows, parse, documents),
        "avro fanout": lambda: as_avro.read(payloads[1])[0],
        "avro fastavro": partial(from_rows, read_avro, bodies),
        "protobuf fanout": lambda: as_protobuf.read(payloads[2])[0],
        "protobuf google": partial(from_rows, read_protobuf, messages),
    }


def run(rounds: int, sizes: Sequence[int] = SIZES) -> Report:
    """Measure each format with both shapes.

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
            for kind, peer in PEERS.items():
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
