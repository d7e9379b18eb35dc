"""Messages of Protobuf in AWS Glue, with what AWS's serializer in Java wrote."""

from __future__ import annotations

import base64
import zlib
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from fanout.decoding import GlueSchemaRegistry, Protobuf
from fanout.decoding.protobuf_schema import messages_sorted
from fanout.decoding.registry import Found
from fanout.errors import OptionError
from tests.decoding.protobuf_schemas import parse
from tests.decoding.test_protobuf import read

PROTO = """
syntax = "proto2";
package shop;
message Order {
  optional int64 id = 1;
  map<string, int32> unit_prices = 2;
  map<int32, Line> by_2line = 3;
  message Line { optional string sku = 1; message Tax { optional int32 rate = 1; } }
  optional group Part = 5 { optional int32 n = 1; }
  oneof paid { int32 card = 6; Line voucher = 7; }
  message Last { optional int32 n = 1; }
}
message Cart { optional int32 n = 1; map<string, string> note_Text = 2; }
message order { optional int32 n = 1; }
message Order_ { optional int32 n = 1; }
"""
# The text that ProtobufSerializer of software.amazon.glue:schema-registry-serde:1.1.27 registers
# for it, without some fields.
OF_AWS = """
// Proto schema formatted by Wire, do not edit.
syntax = "proto2";
package shop;
message Order {
  repeated .shop.Order.UnitPricesEntry unit_prices = 2;
  oneof paid {
    int32 card = 6;
    .shop.Order.Line voucher = 7;
  }
  message UnitPricesEntry {
    option map_entry = true;
    optional string key = 1;
  }
  message By2lineEntry {
    option map_entry = true;
    optional int32 key = 1;
    optional .shop.Order.Line value = 2;
  }
  message Line {
    optional string sku = 1;
    message Tax {
      optional int32 rate = 1;
    }
  }
  message Part {
    optional int32 n = 1;
  }
  message Last {
    optional int32 n = 1;
  }
}
message Cart {
  message NoteTextEntry {
    option map_entry = true;
  }
}
message order {
}
message Order_ {
}
"""
# What its ProtobufWireFormatEncoder writes for an empty message of each.
WRITTEN = {
    "shop.Order": "02",
    "shop.Cart": "00",
    "shop.order": "0a",
    "shop.Order_": "09",
    "shop.Order.Line": "05",
    "shop.Order.Part": "07",
    "shop.Order.Last": "04",
    "shop.Order.Line.Tax": "06",
    "shop.Order.UnitPricesEntry": "08",
    "shop.Order.By2lineEntry": "03",
    "shop.Cart.NoteTextEntry": "01",
}
N = 'field { name: "n" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }'
FILES = parse(
    f"""name: "o.proto" package: "shop"
    message_type {{ name: "Order" {N}
      nested_type {{ name: "UnitPricesEntry" {N} }} nested_type {{ name: "By2lineEntry" {N} }}
      nested_type {{ name: "Line" {N} nested_type {{ name: "Tax" {N} }} }}
      nested_type {{ name: "Part" {N} }} nested_type {{ name: "Last" {N} }} }}
    message_type {{ name: "Cart" {N} nested_type {{ name: "NoteTextEntry" {N} }} }}
    message_type {{ name: "order" {N} }} message_type {{ name: "Order_" {N} }}"""
)
DESCRIPTOR = base64.b64encode(
    FileDescriptorSet.FromString(FILES).file[0].SerializeToString()
).decode()
AVRO, UNKNOWN = uuid4(), uuid4()


@pytest.fixture(params=[PROTO, OF_AWS, DESCRIPTOR], ids=["proto", "of AWS", "descriptor"])
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> UUID:
    """The version of a schema that Glue has."""
    own = uuid4()
    answers: dict[str, Any] = {
        str(own): {"SchemaDefinition": request.param, "DataFormat": "PROTOBUF"},
        str(AVRO): {"SchemaDefinition": '"int"', "DataFormat": "AVRO"},
    }

    def call(_: GlueSchemaRegistry, operation: str, **parameters: Any) -> Any:
        assert operation == "get_schema_version"
        return answers.get(parameters["SchemaVersionId"])

    monkeypatch.setattr(GlueSchemaRegistry, "_call", call)
    return own


def of(version: UUID, *bodies: bytes) -> list[bytes]:
    return [b"\3\0" + version.bytes + body for body in bodies]


@pytest.mark.parametrize("schema", [PROTO, OF_AWS, DESCRIPTOR])
def test_messages_are_counted_as_aws_counts_them(schema: str) -> None:
    names = messages_sorted(schema)
    assert {name: f"{names.index(name):02x}" for name in names} == WRITTEN


def test_each_message_is_told_apart_and_written_as_aws_does(version: UUID) -> None:
    registry = GlueSchemaRegistry(str(version))
    body = b"\x08\7"
    payloads = of(version, *(bytes.fromhex(each) + body for each in WRITTEN.values()))
    for place, name in enumerate(WRITTEN):
        if name.endswith("Entry"):
            continue
        decode = Protobuf(FILES, name, registry=registry, schema_id=str(version))
        values, problems = decode.read(pa.array(payloads, pa.binary()))
        assert sorted(problems) == [row for row in range(len(payloads)) if row != place]
        assert set(problems.values()) == {
            f"it is of the message {each}, and not of {name}" for each in WRITTEN if each != name
        }
        found = values.slice(place, 1)
        assert found.field("n").to_pylist() == [7]
        batch = pa.RecordBatch.from_struct_array(found)
        assert decode.encode(batch)["value"].to_pylist() == [payloads[place]]


def test_damaged_records_are_bad_and_compressed_ones_are_read(version: UUID) -> None:
    decode = Protobuf(FILES, "shop.Order", registry=GlueSchemaRegistry(str(version)))
    (good,) = of(version, b"\2\x08\7")
    packed = b"\3\5" + good[2:18] + zlib.compress(good[18:])
    payloads = [
        good,
        packed,
        None,
        packed[:-1],
        good[:18],
        good[:17],
        b"\0" + good[1:],
        b"\3\1" + good[2:],
        *of(version, b"\x0b", b"\x80", b"\xff" * 9 + b"\1", b"\xff" * 10, b"\2\xff"),
        *of(UNKNOWN, b"\2"),
        *of(AVRO, b"\2"),
        *of(version, b"\x82\0\x08\7"),  # Java reads it, too
    ]
    rows, problems = read(decode, *payloads)
    assert [None if row is None else row["n"] for row in rows] == [7, 7, None, 7]
    no_frame = (
        "it does not begin with 3, the id of a version of a schema and the index of a message"
    )
    assert problems == {
        3: "it is not what zlib has compressed",
        **dict.fromkeys(range(4, 8), no_frame),
        8: f"the schema {version} has no message 11",
        9: "the index of the message: the record ends early",
        10: f"the schema {version} has no message -1",
        11: "the index of the message: the record ends early",
        12: "it is no shop.Order",
        13: f"the registry has no version {UNKNOWN} of a schema",
        14: f"the schema {AVRO} is AVRO, and not PROTOBUF",
    }


def test_an_index_of_two_bytes_is_written_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = "".join(f'message_type {{ name: "M{number}" {N} }}' for number in range(1000, 1300))
    files = parse(f'name: "m.proto" {kinds}')
    text = base64.b64encode(FileDescriptorSet.FromString(files).file[0].SerializeToString())
    found = Found((text.decode(),), "PROTOBUF")
    monkeypatch.setattr(GlueSchemaRegistry, "_ask", lambda *_: found)
    version = uuid4()
    decode = Protobuf(files, "M1299", registry=GlueSchemaRegistry("many"), schema_id=str(version))
    batch = pa.RecordBatch.from_pydict({"n": pa.array([7], pa.int32())})
    (encoded,) = decode.encode(batch)["value"].to_pylist()
    assert encoded == of(version, b"\xab\x02\x08\7")[0]
    assert read(decode, encoded) == ([{"n": 7}], {})


def test_an_id_of_another_registry_is_named() -> None:
    with pytest.raises(OptionError, match="schema_id=5 must be a number for framing='confluent'"):
        Protobuf(FILES, "shop.Order", registry=GlueSchemaRegistry(), schema_id=5)
    with pytest.raises(OptionError, match="must be a SchemaRegistry or a GlueSchemaRegistry"):
        Protobuf(FILES, "shop.Order", registry="https://r")  # type: ignore[arg-type]
