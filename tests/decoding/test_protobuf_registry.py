"""Messages of Protobuf in Confluent's framing, with a registry."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

import fanout
from fanout.decoding import Avro, Protobuf, SchemaRegistry
from fanout.decoding.protobuf_schema import messages_at
from fanout.errors import OptionError
from tests.decoding.protobuf_schemas import parse, pythonic
from tests.decoding.test_protobuf import (
    BODIES,
    FILES,
    ORDER_CLASS,
    ORDERS,
    ROWS,
    one_of,
    read,
)
from tests.support.avro_records import ORDER as AVRO_ORDER
from tests.support.kinesis.reading import Stream
from tests.support.schema_registry import EmbeddedRegistry, embedded_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fanout.testing.kinesis.server import KinesisServer

TEXT = """
syntax = "proto3";
package shop; // message Comment {
import "google/protobuf/timestamp.proto";
option java_package = "message Text {";
message Item { string sku = 1; int32 count = 2; }
/* message Old { */
enum Size { S = 0; L = 1; }
message Order {
  int64 id = 1 [(some.option) = { a: "x" }];
  map<string, Item> prices = 8;
  oneof payment { fixed32 card = 10; Item voucher = 11; }
  message Line { message Deep { } reserved 1, 2; }
  optional string message = 4;
  message Last { }
};
service Shop { rpc Buy (Order) returns (Order) { option deprecated = true; } }
message Cart { optional group Part = 1 { } extensions 100 to 199; }
"""


def base64_of(files: bytes, place: int = -1) -> str:
    file = FileDescriptorSet.FromString(files).file[place]
    return base64.b64encode(file.SerializeToString()).decode()


def framed(number: int, index: bytes, *bodies: bytes) -> list[bytes]:
    return [b"\0" + number.to_bytes(4, "big") + index + body for body in bodies]


@pytest.fixture
def embedded() -> Iterator[EmbeddedRegistry]:
    with embedded_registry() as found:
        yield found


def test_the_messages_of_a_text_and_of_a_descriptor_are_found() -> None:
    for schema, names in (
        (TEXT, ["shop.Item", "shop.Order", "shop.Cart"]),
        (base64_of(FILES), ["shop.Item", "shop.Order"]),
        ("message A {}", ["A"]),
    ):
        found = [messages_at(schema, (index,)) for index in range(len(names))]
        assert found == [{name} for name in names]
        assert messages_at(schema, (len(names),)) == messages_at(schema, (-1,)) == frozenset()


NESTED = """package shop; message Order { enum Kind { A = 0; } map<string, int32> sums = 1;
  message Item { message Tax {} } oneof paid { int32 card = 2; } optional group Old = 3 { }
  message Refund {} } message Cart {}"""


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ((0,), {"shop.Order"}),
        ((1,), {"shop.Cart"}),
        ((0, 0), {"shop.Order.SumsEntry", "shop.Order.Item"}),
        ((0, 1), {"shop.Order.Item", "shop.Order.Old"}),
        ((0, 0, 0), {"shop.Order.Item.Tax"}),
        ((0, 3), {"shop.Order.Refund"}),
        ((0, 4), set()),
        ((0, -1), set()),
    ],
)
def test_messages_inside_others_are_told_apart(path: tuple[int, ...], names: set[str]) -> None:
    """With a map before them, the serializers count in two ways."""
    assert messages_at(NESTED, path) == names


def test_a_record_of_another_message_inside_is_bad() -> None:
    text = """name: "t.proto" package: "shop" syntax: "proto3" message_type { name: "Order"
      field { name: "id" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
      nested_type { name: "Item"
        field { name: "price" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL } }
      nested_type { name: "Refund"
        field { name: "price" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL } } }"""
    files = parse(text)
    with embedded_registry() as embedded:
        number = embedded.register("orders-value", base64_of(files), schemaType="PROTOBUF")
        registry = SchemaRegistry(embedded.url)
        paths = (b"\0", b"\4\0\0", b"\4\0\2", b"\2\0")
        records = [each for path in paths for each in framed(number, path, b"\x08\x63")]
        for name, good in (("Order", [0, 3]), ("Order.Item", [1]), ("Order.Refund", [2])):
            decode = Protobuf(files, f"shop.{name}", registry=registry)
            _, problems = read(decode, *records)
            assert [row for row in range(4) if row not in problems] == good


@pytest.mark.parametrize("text", [TEXT, ""])
def test_records_of_another_message_are_bad(embedded: EmbeddedRegistry, text: str) -> None:
    number = embedded.register("orders-value", base64_of(FILES), schemaType="PROTOBUF", text=text)
    avro = embedded.register("avro-value", AVRO_ORDER)
    registry = SchemaRegistry(embedded.url)
    decode = Protobuf(registry.latest("orders-value"), "shop.Order", registry=registry)
    payloads = [
        *framed(number, b"\2\2", *BODIES),
        None,
        *framed(number, b"\0", b"\x0a\1x"),
        *framed(number, b"\2\0", b"\x0a\1x"),
        *framed(number, b"\2\x10", b"\x0a\1x"),
        *framed(77, b"\2\2", b""),
        *framed(avro, b"\2\2", b""),
        b"",
        b"\0\0\0\0",
        b"\0\0\0\0\1",
        b"\1\0\0\0\1\2\2",
        *framed(number, b"\2", b""),
        *framed(number, b"\2\x80", b""),
        *framed(number, b"\1\2", b""),
        *framed(number, b"\2\1", b""),
        *framed(number, b"\xfe\xff\xff\xff\x0f", b""),
        *framed(number, b"\2\2", b"", b"\xff"),
    ]
    rows, problems = read(decode, *payloads)
    assert rows[:10] == ROWS
    assert rows[10] is None
    assert len(rows) == 12
    no_frame = "it does not begin with 0, the id of a schema and the index of a message"
    assert [problems.get(row) for row in range(11, len(payloads))] == [
        "it is of the message shop.Item, and not of shop.Order",
        "it is of the message shop.Item, and not of shop.Order",
        f"the schema {number} has no message 8",
        "the registry has no schema 77",
        f"the schema {avro} is AVRO, and not PROTOBUF",
        no_frame,
        no_frame,
        no_frame,
        no_frame,
        "the index of the message: the record ends early",
        "the index of the message: the record ends early",
        no_frame,
        f"the schema {number} has no message -1",
        no_frame,
        None,
        "it is no shop.Order",
    ]
    calls = len(embedded.calls)
    read(decode, *payloads)
    assert len(embedded.calls) == calls
    body = framed(number, b"", b"\2")
    problem = f"the schema {number} is PROTOBUF, and not AVRO"
    assert Avro(AVRO_ORDER, registry=registry).read(_array(body))[1] == {0: problem}


def _array(payloads: list[bytes]) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    return pa.array(payloads, pa.binary())


def test_schemas_import_others_by_the_names_of_their_references(
    embedded: EmbeddedRegistry,
) -> None:
    money = 'name: "other" syntax: "proto3" package: "a" message_type { name: "Money" FIELD }'
    field = 'field { name: "cents" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }'
    cart = """name: "default" syntax: "proto3" dependency: "PATH"
      message_type { name: "Cart" field { name: "sum" number: 1 type: TYPE_MESSAGE
        type_name: ".a.Money" label: LABEL_OPTIONAL } }"""
    name = "a/" * 80 + "money.proto"
    text = base64_of(parse(money.replace("FIELD", field)))
    embedded.register("money", text, schemaType="PROTOBUF", text="...")
    references = [{"name": name, "subject": "money", "version": 1}]
    text = base64_of(parse(cart.replace("PATH", name)))
    number = embedded.register("carts", text, schemaType="PROTOBUF", references=references)
    registry = SchemaRegistry(embedded.url)
    decode = Protobuf(registry.latest("carts"), registry=registry)
    assert read(decode, *framed(number, b"\0", b"\x0a\2\x08\7")) == ([{"sum": {"cents": 7}}], {})


def test_a_registry_that_has_texts_alone_is_named(embedded: EmbeddedRegistry) -> None:
    embedded.register("orders-value", TEXT, schemaType="PROTOBUF")
    with pytest.raises(OptionError, match="has the schema as text alone: pass a descriptor set"):
        Protobuf(SchemaRegistry(embedded.url).latest("orders-value"), "shop.Order")


def test_what_confluents_own_serializer_writes_is_read(
    embedded: EmbeddedRegistry, confluents_client: Callable[[str], Any]
) -> None:
    confluent = pytest.importorskip("confluent_kafka.schema_registry.protobuf")
    from confluent_kafka.serialization import (  # noqa: PLC0415
        MessageField,
        SerializationContext,
    )

    client = confluents_client(embedded.url)
    serialize = confluent.ProtobufSerializer(ORDER_CLASS, client)
    context = SerializationContext("orders", MessageField.VALUE)
    payloads = [serialize(each, context) for each in ORDERS]
    registry = SchemaRegistry(embedded.url)
    for decode in (
        Protobuf(registry.latest("orders-value"), "shop.Order", registry=registry),
        Protobuf(ORDER_CLASS, registry=registry),
    ):
        assert read(decode, *payloads) == (ROWS, {})
    item = type(ORDERS[1].voucher)
    others = confluent.ProtobufSerializer(item, client)
    payloads.insert(5, others(item(sku="x"), SerializationContext("items", MessageField.VALUE)))
    assert read(decode, *payloads) == (
        ROWS,
        {5: "it is of the message shop.Item, and not of shop.Order"},
    )


async def test_messages_are_landed_as_columns(
    kinesis_server: KinesisServer, embedded: EmbeddedRegistry, tmp_path: Path
) -> None:
    number = embedded.register("orders-value", base64_of(FILES), schemaType="PROTOBUF", text=TEXT)
    bodies = framed(number, b"\2\2", *BODIES)
    stream = Stream(kinesis_server)
    kinesis_server.put_records("orders", [("key", body) for body in bodies])
    registry = SchemaRegistry(embedded.url)
    decode = Protobuf(FILES, "shop.Order", registry=registry, into="o")
    source = stream.source(decode=decode)
    async with fanout.land(source, str(tmp_path), max_wait=0.0) as landing:
        rows: list[object] = []
        while len(rows) < len(ROWS):
            entry = await anext(landing)
            for file in entry.files:
                rows += [pythonic(row) for row in pq.read_table(file).column("o").to_pylist()]
    assert rows == ROWS


def test_an_empty_message_is_true_where_it_is_there() -> None:
    decode = one_of("TYPE_MESSAGE", field='type_name: ".E"', file='message_type { name: "E" }')
    assert read(decode, b"\x0a\0", b"") == ([{"f": True}, {"f": None}], {})


INSIDE = """name: "i.proto" package: "t" syntax: "proto3"
message_type { name: "M" field { name: "in" number: 4 type: TYPE_MESSAGE type_name: ".t.I"
  label: LABEL_OPTIONAL } }
message_type { name: "N" field { name: "s" number: 13 type: TYPE_STRING label: LABEL_OPTIONAL } }
message_type { name: "I" field { name: "f" number: 1 type: TYPE_KIND label: LABEL_LABEL } }"""


@pytest.mark.parametrize(
    ("writer", "reader", "body"),
    [
        ("INT32", "SINT32", b"\x08\1"),
        ("SINT64", "INT64", b"\x08\1"),
        ("BOOL", "SINT32", b"\x08\1"),
        ("INT32", "UINT64", b"\x08" + b"\xff" * 9 + b"\1"),
        ("UINT64", "INT32", b"\x08" + b"\xff" * 9 + b"\1"),
        ("FIXED32", "FLOAT", b"\x0d\1\0\0\0"),
        ("SFIXED64", "DOUBLE", b"\x09" + b"\1" * 8),
        ("FIXED64", "SFIXED64", b"\x09" + b"\xff" * 8),
        ("INT32", "FIXED32", b"\x0a\4\1\1\1\1"),
        ("STRING", "INT32", b"\x0a\1a"),
        ('MESSAGE type_name: ".t.N"', "STRING", b"\x0a\2j\0"),
        ("STRING", 'MESSAGE type_name: ".t.N"', b"\x0a\2j\0"),
    ],
)
def test_a_type_that_makes_another_value_of_the_same_bytes_is_refused(
    embedded: EmbeddedRegistry, writer: str, reader: str, body: bytes
) -> None:
    label = "REPEATED" if body[0] == 0x0A else "OPTIONAL"
    written, known = (
        parse(INSIDE.replace("KIND", each).replace("LABEL_LABEL", f"LABEL_{label}"))
        for each in (writer, reader)
    )
    number = embedded.register("m-value", base64_of(written), schemaType="PROTOBUF")
    registry = SchemaRegistry(embedded.url)
    payload = framed(number, b"\0", b"\x22" + bytes([len(body)]) + body)
    names = (each.split()[0].lower() for each in (reader, writer))
    reason = "in.f is {}, and was written as {}".format(*names)
    assert read(Protobuf(known, "t.M", registry=registry), *payload) == ([], {0: reason})
    assert len(read(Protobuf(written, "t.M", registry=registry), *payload)[0]) == 1


def test_several_values_are_not_read_as_the_last_one(embedded: EmbeddedRegistry) -> None:
    several, one = (
        parse(INSIDE.replace("KIND", "STRING").replace("LABEL_LABEL", f"LABEL_{label}"))
        for label in ("REPEATED", "OPTIONAL")
    )
    registry = SchemaRegistry(embedded.url)
    payloads = [
        framed(embedded.register("m-value", base64_of(each), schemaType="PROTOBUF"), b"\0", body)
        for each, body in ((several, b"\x22\6\x0a\1a\x0a\1b"), (one, b"\x22\3\x0a\1a"))
    ]
    found = read(Protobuf(one, "t.M", registry=registry), *payloads[0], *payloads[1])
    reason = "in.f is one value, and was written as repeated"
    assert found == ([{"in": {"f": "a"}}], {0: reason})
    found = read(Protobuf(several, "t.M", registry=registry), *payloads[0], *payloads[1])
    assert found == ([{"in": {"f": ["a", "b"]}}, {"in": {"f": ["a"]}}], {})


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        ("INT32", "INT64"),
        ("INT64", "INT32"),
        ("BOOL", "UINT64"),
        ("UINT32", "INT64"),
        ("UINT32", "UINT64"),
        ("STRING", "BYTES"),
        ("SINT32", "SINT64"),
        ("BOOL", "INT32"),
    ],
)
def test_a_type_with_equal_values_is_read(
    embedded: EmbeddedRegistry, writer: str, reader: str
) -> None:
    written, known = (
        parse(INSIDE.replace("KIND", each).replace("LABEL_LABEL", "LABEL_OPTIONAL"))
        for each in (writer, reader)
    )
    number = embedded.register("m-value", base64_of(written), schemaType="PROTOBUF")
    body = b"\x0a\1a" if writer == "STRING" else b"\x08\1"
    payload = framed(number, b"\0", b"\x22" + bytes([len(body)]) + body)
    decode = Protobuf(known, "t.M", registry=SchemaRegistry(embedded.url))
    assert read(decode, *payload)[1] == {}
