"""Few bytes may be very many items of arrays: what they take is bounded, and measured."""

from __future__ import annotations

import resource
import subprocess
import sys
import tracemalloc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import fanout
from fanout.core.user_decode import TooManyRowsError
from fanout.decoding import Avro, Json, Protobuf
from fanout.decoding.decoder import MOST_OF_ITEMS
from fanout.decoding.json_columns import JsonColumns
from fanout.decoding.protobuf_columns import Parsers, _size_of_items
from fanout.decoding.protobuf_decoder import _plan
from tests.decoding.protobuf_schemas import parse
from tests.decoding.test_protobuf import read
from tests.support.avro_records import written
from tests.support.kinesis.reading import Stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.decoding.decoder import Decoder
    from fanout.testing.kinesis.server import KinesisServer

FIELDS = [f"f{number}" for number in range(1, 101)]
# What 100 fields of 8 bytes take, once more for ptars, times the items in 1 MB.
PEAK = 300 * 1024 * 1024


def decoder(kind: str) -> Decoder:
    if kind == "protobuf":
        fields = "".join(
            f'field {{ name: "{name}" number: {name[1:]} type: TYPE_INT64 label: LABEL_OPTIONAL }}'
            for name in FIELDS
        )
        items = 'name: "items" number: 1 type: TYPE_MESSAGE type_name: ".I" label: LABEL_REPEATED'
        text = f'message_type {{ name: "M" field {{ {items} }} }}'
        return Protobuf(
            parse(f'name: "m.proto" syntax: "proto3" message_type {{ name: "I" {fields} }} {text}'),
            "M",
        )
    if kind == "avro":
        item = {
            "type": "record",
            "name": "I",
            "fields": [{"name": name, "type": "long"} for name in FIELDS],
        }
        return Avro(AVRO | {"fields": [{"name": "items", "type": _array(["null", item])}]})
    ddl = f"items ARRAY<STRUCT<{', '.join(f'{name}: BIGINT' for name in FIELDS)}>>"
    return Json(ddl if kind == "json" else f"{ddl}, m MAP<STRING, INT>")


AVRO = {"type": "record", "name": "M"}


def _array(items: object) -> dict[str, object]:
    return {"type": "array", "items": items}


def record(kind: str, items: int) -> bytes:
    """A record with empty items."""
    if kind == "protobuf":
        return b"\x0a\0" * items
    if kind == "avro":
        nulls = AVRO | {"fields": [{"name": "items", "type": _array("int")}]}
        return written(nulls, [{"items": [0] * items}])[0]
    return b'{"items":[' + b",".join([b"{}"] * items) + b"]}"


KINDS = ["json", "json with maps", "avro", "protobuf"]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_very_many_empty_items_are_refused_before_they_take_room(kind: str) -> None:
    decode = decoder(kind)
    most = MOST_OF_ITEMS // (1600 if kind == "protobuf" else 800)
    few, many = record(kind, 1000), record(kind, most + 5)
    found, problems = decode.read(pa.array([few, few], pa.binary()))
    assert problems == {}
    assert [len(row["items"]) for row in found.to_pylist()] == [1000, 1000]
    reason = "items of arrays would take more than 134217728 bytes: decode fewer at once"
    if kind == "protobuf":
        found, problems = decode.read(pa.array([few, many, few], pa.binary()))
        assert problems == {1: "its items would take more than 134217728 bytes"}
        assert [len(row["items"]) for row in found.to_pylist()] == [1000, 0, 1000]
    else:
        with pytest.raises(TooManyRowsError, match=reason):
            decode.read(pa.array([few, many], pa.binary()))
    together = pa.array([record(kind, most // 3)] * 4, pa.binary())
    if kind == "protobuf":
        found, problems = decode.read(together)
        assert problems == {}
        assert pc.list_value_length(found.field(0)).to_pylist() == [most // 3] * 4
    else:
        with pytest.raises(TooManyRowsError):
            decode.read(together)


def test_items_of_messages_are_counted_in_messages() -> None:
    text = """name: "m.proto" syntax: "proto3" message_type { name: "M"
      field { name: "i" number: 300 type: TYPE_MESSAGE type_name: ".I" label: LABEL_OPTIONAL } }
    message_type { name: "I"
      field { name: "n" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
      field { name: "j" number: 2 type: TYPE_MESSAGE type_name: ".J" label: LABEL_REPEATED } }
    message_type { name: "J"
      field { name: "n" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL } }"""
    decode = Protobuf(parse(text), "M")
    columns, _ = _plan(decode.descriptor, decode.message, times=True)  # type: ignore[arg-type]
    body = b"\xe2\x12\x06\x08\1\x12\0\x12\0"
    assert _size_of_items(body, columns) == 24 + 2 * 16
    damaged = [body * 1000, body * 1_500_000 + b"\x08", body]
    assert read(decode, *damaged)[1] == {1: "it is no M"}


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_peak_of_a_megabyte_of_empty_items_is_bounded(kind: str) -> None:
    """Each process measures its own peak."""
    code = f"from tests.decoding.test_items import peak; print(peak({kind!r}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)  # noqa: S603
    assert int(done.stdout) < PEAK


def peak(kind: str) -> int:
    """Return how many bytes a process takes more while it decodes a record of a megabyte."""
    size = {"protobuf": 2, "avro": 1}.get(kind, 3)
    decode, payloads = decoder(kind), pa.array([record(kind, (1 << 20) // size)], pa.binary())
    decode.read(pa.array([record(kind, 10)], pa.binary()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    problems: Mapping[int, str] = {0: "too many rows"}
    with suppress(TooManyRowsError):
        _, problems = decode.read(payloads)
    assert problems.keys() == {0}
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


@pytest.mark.long
def test_messages_with_many_items_are_parsed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []
    at_once = Parsers._at_once

    def noted(self: Parsers, payloads: pa.BinaryArray) -> Any:
        parts.append(len(payloads))
        return at_once(self, payloads)

    monkeypatch.setattr(Parsers, "_at_once", noted)
    most = MOST_OF_ITEMS // 1600
    payloads = [record("protobuf", most // 3)] * 4
    assert decoder("protobuf").read(pa.array([*payloads, b""], pa.binary()))[1] == {}
    assert sorted(parts) == [2, 3]


def test_pythons_values_of_empty_items_take_no_room_for_each_field() -> None:
    columns = JsonColumns(decoder("map").schema)  # type: ignore[attr-defined]
    columns.read(pa.array([record("json", 10)], pa.binary()))
    tracemalloc.start()
    try:
        found, problems = columns.read(pa.array([record("json", 2_000)], pa.binary()))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert problems == {}
    items = found.field("items")[0].values
    assert (len(items), items.field("f1").null_count) == (2_000, 2_000)
    assert peak < 2_000 * 1_000


async def test_such_a_record_is_bad_and_the_others_come(kinesis_server: KinesisServer) -> None:
    stream = Stream(kinesis_server)
    decode = decoder("json")
    payloads = [record("json", 5), record("json", 200_000), record("json", 6)]
    kinesis_server.put_records(stream.name, [("key", each) for each in payloads])
    source = stream.source(decode=decode, on_bad_record="gap")
    async with fanout.open(source) as opened:
        lengths: list[int] = []
        async for batch in opened:
            lengths += [len(items) for items in batch.records.column("items").to_pylist()]
            if len(lengths) == 2:
                break
    assert lengths == [5, 6]
