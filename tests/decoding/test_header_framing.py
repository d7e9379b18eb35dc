"""Confluent's GUIDs of schemas in headers, as its own serializers write them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest

from fanout.decoding import Avro, Json, Protobuf, SchemaRegistry
from fanout.errors import BadRowsError, OptionError, RetryLaterError
from fanout.kafka.reading.columns import HEADERS
from tests.decoding.protobuf_schemas import pythonic
from tests.decoding.test_protobuf import ORDER_CLASS, ROWS
from tests.decoding.test_protobuf import ORDERS as MESSAGES
from tests.support.avro_records import ORDER, ORDERS
from tests.support.schema_registry import EmbeddedRegistry, embedded_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fanout.decoding.decoder import Decoder

JSON = {"title": "o", "type": "object", "properties": {"id": {"type": "integer"}}}
DOCUMENTS = [{"id": number} for number in range(5)]
VALUE, KEY = "__value_schema_id", "__key_schema_id"
KINDS = ("avro", "json", "protobuf")
PROBLEM = f"value: the header {VALUE} is no GUID of a schema"
Record = tuple[bytes | None, list[tuple[str, bytes | None]]]


@pytest.fixture
def embedded() -> Iterator[EmbeddedRegistry]:
    with embedded_registry() as found:
        yield found


class Confluent:
    """Confluent's serializers; in turns they write to the header, and before the payload."""

    def __init__(self, client: Any, kind: str) -> None:
        pytest.importorskip(f"confluent_kafka.schema_registry.{kind if kind != 'json' else 'avro'}")
        from confluent_kafka.schema_registry import (  # noqa: PLC0415
            avro,
            header_schema_id_serializer,
            json_schema,
            prefix_schema_id_serializer,
            protobuf,
        )

        self.kind, self.client = kind, client
        self.serializers: list[Any] = []
        for place in (header_schema_id_serializer, prefix_schema_id_serializer):
            conf = {"schema.id.serializer": place}
            if kind == "avro":
                made: Any = avro.AvroSerializer(client, json.dumps(ORDER), conf=conf)
            elif kind == "json":
                made = json_schema.JSONSerializer(json.dumps(JSON), client, conf=conf)
            else:
                made = protobuf.ProtobufSerializer(ORDER_CLASS, client, conf=conf)
            self.serializers.append(made)

    def write(self, values: list[Any], field: str = "value") -> list[Record]:
        from confluent_kafka.serialization import (  # noqa: PLC0415
            MessageField,
            SerializationContext,
        )

        records: list[Record] = []
        for place, value in enumerate(values):
            headers: Any = [("trace", b"\1")]
            context = SerializationContext("orders", MessageField(field), headers)
            records.append((self.serializers[place % 2](value, context), headers))
        return records

    def headed(self, value: Any) -> tuple[bytes, bytes]:
        """Return a payload, and its header."""
        ((payload, headers),) = self.write([value])
        head = dict(headers)[VALUE]
        assert payload is not None
        assert head is not None
        return payload, head


def batch_of(records: list[Record], name: str = "value", **more: Any) -> pa.RecordBatch:
    columns = {
        "topic": pa.array(["t"] * len(records)),
        "partition": pa.array([0] * len(records), pa.int32()),
        "offset": pa.array(range(len(records)), pa.int64()),
        name: pa.array([payload for payload, _ in records], pa.binary()),
        "headers": pa.array(
            [[{"key": key, "value": value} for key, value in each] for _, each in records], HEADERS
        ),
    }
    return pa.RecordBatch.from_pydict(columns | more)


def decoder(kind: str, url: str) -> Decoder:
    registry = SchemaRegistry(url)
    if kind == "avro":
        return Avro(ORDER, registry=registry, into="row")
    if kind == "json":
        return Json(JSON, framing="confluent", into="row")
    return Protobuf(ORDER_CLASS, registry=registry, into="row")


VALUES = {"avro": ORDERS, "json": DOCUMENTS, "protobuf": MESSAGES}
FOUND = {"avro": ORDERS, "json": DOCUMENTS, "protobuf": ROWS}


def rows(batch: pa.RecordBatch) -> list[Any]:
    return [pythonic(each) for each in batch["row"].to_pylist()]


def read(decode: Decoder, batch: pa.RecordBatch) -> tuple[list[Any], dict[int, str]]:
    try:
        return rows(decode(batch)), {}
    except BadRowsError as error:
        return rows(error.decoded), {row: str(each) for row, each in error.errors.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_what_confluents_serializers_write_to_headers_and_before_payloads_is_read(
    embedded: EmbeddedRegistry, confluents_client: Callable[[str], Any], kind: str
) -> None:
    confluent = Confluent(confluents_client(embedded.url), kind)
    decode, batch = decoder(kind, embedded.url), batch_of(confluent.write(VALUES[kind]))
    assert read(decode, batch) == (FOUND[kind], {})
    assert read(decode, batch.slice(1, 2)) == (FOUND[kind][1:3], {})
    # Confluent's own deserializers take a GUID before a payload, too.
    (payload, head) = confluent.headed(VALUES[kind][0])
    assert read(decode, batch_of([(head + payload, [])])) == (FOUND[kind][:1], {})


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_headers_make_records_bad(
    embedded: EmbeddedRegistry, confluents_client: Callable[[str], Any], kind: str
) -> None:
    confluent = Confluent(confluents_client(embedded.url), kind)
    decode = decoder(kind, embedded.url)
    payload, head = confluent.headed(VALUES[kind][0])
    wrong = [b"", b"\1", b"\2" + head[1:], head[:16], head[:-1], head + b"\0", b"\0" + head[1:5]]
    if kind != "protobuf":
        wrong.remove(b"\0" + head[1:5])
    else:
        wrong += [head[:17], head[:17] + b"\4\0", head[:17] + b"\2\x80", head[:17] + b"\0\0"]
    records: list[Record] = [(payload, [(VALUE, each)]) for each in wrong]
    bad = len(records)
    records += [
        (payload, [(VALUE, head), (VALUE, head[:-1] + b"\7")]),
        (payload, [(VALUE, head), ("other", b""), (VALUE, head), (KEY, b"")]),
        (None, [(VALUE, head)]),
        (None, [(VALUE, b"")]),
    ]
    found, problems = read(decode, batch_of(records))
    assert problems == dict.fromkeys(range(bad + 1), PROBLEM)
    assert found == [FOUND[kind][0], None, None]


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_a_guid_that_the_registry_lacks_is_bad_and_one_that_is_down_waits(
    embedded: EmbeddedRegistry, confluents_client: Callable[[str], Any], kind: str
) -> None:
    confluent = Confluent(confluents_client(embedded.url), kind)
    decode = decoder(kind, embedded.url)
    payload, head = confluent.headed(VALUES[kind][0])
    embedded.register("other-value", JSON, schemaType="JSON")
    # A GUID that has the number of an id is none.
    others = [UUID(int=1), UUID(embedded.guid(2)), UUID(bytes=b"x" * 16)]
    records: list[Record] = [
        (payload, [(VALUE, head[:1] + each.bytes + head[17:])]) for each in others
    ]
    found, problems = read(decode, batch_of([*records, (payload, [(VALUE, head)])]))
    assert found == FOUND[kind][:1]
    assert problems == {
        0: f"value: the registry has no schema {others[0]}",
        1: f"value: the schema {others[1]} is JSON, and not {kind.upper()}",
        2: f"value: the registry has no schema {others[2]}",
    }
    embedded.status = 503
    unknown = head[:1] + bytes(16) + head[17:]
    with pytest.raises(RetryLaterError, match="the schema registry answers 503"):
        decode(batch_of([(payload, [(VALUE, unknown)])]))


async def test_keys_have_a_header_of_their_own_and_schemas_are_asked_for_off_the_loop(
    embedded: EmbeddedRegistry, confluents_client: Callable[[str], Any]
) -> None:
    confluent = Confluent(confluents_client(embedded.url), "avro")
    registry = SchemaRegistry(embedded.url)
    decode = Avro(
        ORDER, registry=registry, into="row", key=Avro(ORDER, registry=registry, into="k")
    )
    keys = confluent.write(ORDERS, "key")
    values = confluent.write(ORDERS)
    records: list[Record] = [
        (value, [*of_value, *of_key])
        for (value, of_value), (_, of_key) in zip(values, keys, strict=True)
    ]
    batch = batch_of(records, key=pa.array([key for key, _ in keys], pa.binary()))
    with pytest.raises(RetryLaterError, match=r"await prepare\(records\)"):
        decode(batch)
    await decode.prepare(batch)
    found = decode(batch)
    assert found["row"].to_pylist() == found["k"].to_pylist() == ORDERS


def test_headers_are_left_alone_where_the_framing_is_another() -> None:
    records: list[Record] = [(b'{"id": 1}', [(VALUE, b"x")])]
    assert read(Json(JSON, into="row"), batch_of(records)) == ([{"id": 1}], {})


@pytest.mark.parametrize("kind", KINDS)
def test_guids_are_written_to_headers_as_confluents_serializers_do(
    embedded: EmbeddedRegistry, confluents_client: Callable[[str], Any], kind: str
) -> None:
    (payload, head) = Confluent(confluents_client(embedded.url), kind).headed(VALUES[kind][0])
    guid, decode = str(UUID(bytes=head[1:17])), decoder(kind, embedded.url)
    encoder: Any = replace(decode, schema_id=guid, columns=["headers"])  # type: ignore[call-arg]
    # What another schema has left in headers is replaced, and other headers stay.
    before = batch_of([(payload, [("trace", b"\1"), (VALUE, head)])])
    fields = decode(before).append_column("headers", before["headers"])
    found = encoder.encode(fields)
    assert found["headers"].to_pylist() == [
        [{"key": "trace", "value": b"\1"}, {"key": VALUE, "value": head}]
    ]
    (ours,) = found["value"].to_pylist()
    if kind == "avro":
        assert ours == payload
    assert read(decode, batch_of([(ours, [(VALUE, head)])])) == (FOUND[kind][:1], {})


def test_keys_and_tombstones_have_the_headers_that_they_need(embedded: EmbeddedRegistry) -> None:
    registry = SchemaRegistry(embedded.url)
    guid = registry.id_of("orders-value", ORDER, register=True, guid=True)
    assert guid == registry.id_of("orders-value", ORDER, guid=True) == embedded.guid(1)
    key = Json("id INT", into="key", framing="confluent", schema_id=guid)
    whole = Json("id INT", into="value", framing="confluent", schema_id=guid, key=key)
    head = b"\1" + UUID(str(guid)).bytes
    rows = {"value": [{"id": 1}, None, {"id": 3}], "key": [{"id": 1}, {"id": 2}, None]}
    kind = pa.struct([("id", pa.int32())])
    fields = pa.schema([("value", kind), ("key", kind)])
    found = whole.encode(pa.RecordBatch.from_pydict(rows, fields).slice(1)).to_pylist()
    of_key, of_value = {"key": KEY, "value": head}, {"key": VALUE, "value": head}
    assert found == [
        {"value": None, "key": b'{"id":2}', "headers": [of_key]},
        {"value": b'{"id":3}', "key": None, "headers": [of_value]},
    ]
    with pytest.raises(OptionError, match="schema_id is a GUID, which stands in a header of Kaf"):
        whole.encode(pa.RecordBatch.from_pydict(rows, fields), column="data")
    embedded.answer = b'{"id": 1}'
    with pytest.raises(OptionError, match="the registry has no GUIDs of schemas"):
        registry.id_of("orders-value", ORDER, guid=True)


def encoded_headers(headers: pa.Array) -> list[list[str]]:
    encoder = Json(
        "id BIGINT", framing="confluent", schema_id=str(UUID(int=1)), columns=["headers"]
    )
    ids = pa.array(range(len(headers)), pa.int64())
    rows = encoder.encode(pa.RecordBatch.from_arrays([ids, headers], names=["id", "headers"]))
    return [[each["key"] for each in row] for row in rows["headers"].to_pylist()]


@pytest.mark.parametrize("names", ["key val", "name value", "key value more", "key"])
def test_headers_of_other_names_are_an_error(names: str) -> None:
    kind = pa.list_(pa.struct([(name, pa.string()) for name in names.split()]))
    row = dict.fromkeys(names.split(), "a")
    with pytest.raises(OptionError, match="the column headers must be a list of structs of a str"):
        encoded_headers(pa.array([[row]], kind))


def test_null_headers_may_have_content() -> None:
    kind = pa.struct([("key", pa.string()), ("value", pa.binary())])
    values = pa.array([{"key": each, "value": b""} for each in "abcd"], kind)
    offsets = pa.array([0, 1, 3, 4], pa.int32())
    mask = pa.array([False, True, False])
    headers = pa.ListArray.from_arrays(offsets, values, mask=mask)
    assert encoded_headers(headers) == [["a", VALUE], [VALUE], ["d", VALUE]]
