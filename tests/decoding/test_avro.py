"""`Avro` against fastavro, value by value, and what is damaged."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanout.decoding import Avro
from tests.decoding.avro_schemas import agrees, evolved, schemas, values

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def read(decode: Avro, *payloads: bytes | None) -> tuple[list[Any], dict[int, str]]:
    found, problems = decode.read(pa.array(payloads, pa.binary()))
    good = [row for row in range(len(payloads)) if row not in problems]
    found.take(pa.array(good, pa.int64())).validate(full=True)
    found = pa.RecordBatch.from_struct_array(found.take(pa.array(good, pa.int64())))
    return found.to_pylist(), dict(problems)


def compare(writer: Any, reader: Any, rows: list[Any]) -> None:
    bodies = written(writer, rows)
    parsed = [fastavro.parse_schema(json.loads(json.dumps(each))) for each in (writer, reader)]
    decode = Avro(json.dumps(reader), framing="single-object", writers=[json.dumps(writer)])
    mark = (
        b"\xc3\x01"
        + bytes.fromhex(
            fastavro.schema.fingerprint(
                fastavro.schema.to_parsing_canonical_form(parsed[0]), "CRC-64-AVRO"
            )
        )[::-1][::1]
    )
    found, problems = decode.read(pa.array([mark + body for body in bodies], pa.binary()))
    assert problems == {}
    found.validate(full=True)
    for row, body in zip(found.to_pylist(), bodies, strict=True):
        expected = fastavro.schemaless_reader(io.BytesIO(body), *parsed)
        assert agrees(row, expected, reader), (row, expected)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_schemas_are_read_as_fastavro_reads_them(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    rows = data.draw(st.lists(values(schema), min_size=1, max_size=20))
    compare(schema, schema, rows)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_schemas_are_resolved_as_fastavro_resolves_them(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    compare(schema, data.draw(evolved(schema)), data.draw(st.lists(values(schema), max_size=20)))
