"""What Confluent's serializers register at a real registry is read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from fanout.decoding import Avro, Protobuf, SchemaRegistry
from fanout.errors import OptionError
from tests.decoding.apicurio import serve_apicurio
from tests.decoding.test_avro import read
from tests.decoding.test_protobuf import FILES, ORDER_CLASS, ROWS
from tests.decoding.test_protobuf import ORDERS as MESSAGES
from tests.decoding.test_protobuf import read as read_messages
from tests.decoding.test_protobuf_registry import TEXT
from tests.decoding.test_registry import LATER
from tests.support.avro_records import ORDER, ORDERS, framed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Confluent's client leaves sockets open.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def apicurio() -> Iterator[str]:
    with serve_apicurio() as url:
        yield url


def test_schemas_that_evolve_and_refer_to_others_are_read_from_apicurio(
    apicurio: str, confluents_client: Callable[[str], Any]
) -> None:
    confluent = pytest.importorskip("confluent_kafka.schema_registry")
    avro = pytest.importorskip("confluent_kafka.schema_registry.avro")
    from confluent_kafka.serialization import (  # noqa: PLC0415
        MessageField,
        SerializationContext,
    )

    client = confluents_client(apicurio)
    context = SerializationContext("orders", MessageField.VALUE)
    old = avro.AvroSerializer(client, json.dumps(ORDER))
    new = avro.AvroSerializer(client, json.dumps(LATER))
    payloads = [old(row, context) for row in ORDERS]
    payloads += [new({"id": n, "name": "new", "paid": True}, context) for n in range(5)]
    registry = SchemaRegistry(apicurio)
    found, problems = read(Avro(registry.latest("orders-value"), registry=registry), *payloads)
    assert problems == {}
    assert [row["paid"] for row in found] == [False] * 10 + [True] * 5
    money = {"type": "fixed", "name": "shop.Cents", "size": 4}
    client.register_schema("money", confluent.Schema(json.dumps(money), "AVRO"))
    cart = {"type": "record", "name": "Cart", "fields": [{"name": "sum", "type": "shop.Cents"}]}
    reference = confluent.SchemaReference("shop.Cents", "money", 1)
    schema = confluent.Schema(json.dumps(cart), "AVRO", [reference])
    number = client.register_schema("carts-value", schema)
    decode = Avro(registry.latest("carts-value"), registry=registry)
    assert read(decode, *framed(number, [b"abcd"]), *framed(4711, [b"abcd"])) == (
        [{"sum": b"abcd"}],
        {1: "the registry has no schema 4711"},
    )


def test_messages_of_protobuf_are_read_with_apicurio(
    apicurio: str, confluents_client: Callable[[str], Any]
) -> None:
    confluent = pytest.importorskip("confluent_kafka.schema_registry")
    protobuf = pytest.importorskip("confluent_kafka.schema_registry.protobuf")
    from confluent_kafka.serialization import (  # noqa: PLC0415
        MessageField,
        SerializationContext,
    )

    client = confluents_client(apicurio)
    serialize = protobuf.ProtobufSerializer(ORDER_CLASS, client)
    context = SerializationContext("messages", MessageField.VALUE)
    payloads = [serialize(each, context) for each in MESSAGES]
    registry = SchemaRegistry(apicurio)
    # It answers as it was asked: what is registered as text stays text.
    number = client.register_schema("text-value", confluent.Schema(TEXT, "PROTOBUF"))
    payloads += framed(number, [b"\0\x0a\1x"])
    for descriptor in (registry.latest("messages-value"), FILES):
        assert read_messages(Protobuf(descriptor, "shop.Order", registry=registry), *payloads) == (
            ROWS,
            {10: "it is of the message shop.Item, and not of shop.Order"},
        )


def test_schemas_are_registered_and_found_at_apicurio(
    apicurio: str, confluents_client: Callable[[str], Any]
) -> None:
    avro = pytest.importorskip("confluent_kafka.schema_registry.avro")
    from confluent_kafka.serialization import (  # noqa: PLC0415
        MessageField,
        SerializationContext,
    )

    registry = SchemaRegistry(apicurio)
    with pytest.raises(OptionError, match="subject='sent-value' does not have the schema"):
        registry.id_of("sent-value", ORDER)
    number = registry.id_of("sent-value", ORDER, register=True)
    assert registry.id_of("sent-value", json.dumps(ORDER)) == number
    assert registry.id_of("sent-value", ORDER, register=True) == number
    with pytest.raises(OptionError, match="subject='sent-value' does not have the schema"):
        registry.id_of("sent-value", LATER)
    with pytest.raises(OptionError, match=r"the registry .* refuses the schema"):
        registry.id_of("sent-value", {"type": "records"}, register=True)
    orders = Avro(ORDER, registry=registry, schema_id=number)
    columns = pa.array(ORDERS, orders.read(pa.array([], pa.binary()))[0].type)
    encoded = orders.encode(pa.RecordBatch.from_struct_array(columns))["value"].to_pylist()
    deserialize = avro.AvroDeserializer(confluents_client(apicurio))
    context = SerializationContext("sent", MessageField.VALUE)
    assert [deserialize(each, context) for each in encoded] == ORDERS
    assert read(orders, *encoded) == (ORDERS, {})
