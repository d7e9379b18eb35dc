"""`encode`: what is written is what fastavro writes, and what Python's JSON reads."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from fanout.decoding import Avro, Json, SchemaRegistry
from fanout.errors import BadRowsError, OptionError, RetryLaterError
from fanout.kinesis import open_writer
from tests.decoding.avro_schemas import schemas, values
from tests.decoding.test_avro import single_object
from tests.support.avro_records import ORDER, ORDERS, written
from tests.support.kinesis.reading import Stream, session
from tests.support.schema_registry import embedded_registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.testing.kinesis.server import KinesisServer

# An array of one of them cannot be read: its items have no byte.
WITHOUT_BYTES = "has items without a byte"


def payloads(encoded: pa.RecordBatch) -> list[bytes | None]:
    found: list[bytes | None] = encoded.column("value").to_pylist()
    return found


def of(schema: Any, *rows: Any) -> pa.RecordBatch:
    """Columns of a schema of Avro, as the decoder makes them."""
    kind = Avro(schema).read(pa.array([], pa.binary()))[0].type
    return pa.RecordBatch.from_struct_array(pa.array(rows, kind))


def same(schema: Any, body: bytes | None, other: bytes | None) -> bool:
    """Whether bytes are those of fastavro, or a value that it reads as equal.

    It writes a decimal such as -128 with a byte more than it needs.
    """
    if body == other or body is None or other is None:
        return body == other
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    one, two = (fastavro.schemaless_reader(io.BytesIO(n), parsed, None) for n in (body, other))
    return bool(one == two)


@settings(suppress_health_check=list(HealthCheck))
@given(st.data())
def test_the_bytes_are_those_that_fastavro_writes(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    bodies = written(schema, data.draw(st.lists(values(schema), min_size=1, max_size=20)))
    try:
        orders = Avro(schema, into="order")
    except OptionError as error:
        assert WITHOUT_BYTES in str(error)  # noqa: PT017
        reject()
    found, problems = orders.read(pa.array([*bodies, None], pa.binary()))
    assert problems == {}
    batch = pa.RecordBatch.from_arrays([found], ["order"])
    encoded = payloads(orders.encode(batch))
    assert all(map(partial(same, schema), encoded, [*bodies, None]))
    assert payloads(orders.encode(batch.slice(1))) == encoded[1:]
    assert orders.encode(batch.slice(0, 0)).num_rows == 0


def test_numbers_of_every_length() -> None:
    most = 2**63 - 1
    ends = [
        n + near for shift in range(64) for n in (1 << shift, -(1 << shift)) for near in (-1, 0, 1)
    ]
    numbers = [0, *(n for n in ends if -most - 1 <= n <= most)]
    encoded = Avro("long").encode(pa.RecordBatch.from_pydict({"value": numbers}))
    assert payloads(encoded) == written("long", numbers)
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}
    large = [Decimal(n) for n in (*numbers, *(n << 62 for n in numbers)) if abs(n) < 10**38]
    column = pa.array(large, pa.decimal128(38, 0))
    found = payloads(Avro(decimal).encode(pa.RecordBatch.from_arrays([column], ["value"])))
    assert all(map(partial(same, decimal), found, written(decimal, large)))
    # The fewest bytes that hold the sign as well, as Java's BigInteger has them.
    fewest = [(n if n >= 0 else -n - 1).bit_length() // 8 + 1 for n in map(int, large)]
    assert [len(each or b"") - 1 for each in found] == fewest


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        ("long", pa.array([5, -6], pa.int8()), [5, -6]),
        ("double", pa.array([5, -6], pa.int32()), [5.0, -6.0]),
        ("double", pa.array([0.5, math.inf], pa.float32()), [0.5, math.inf]),
        ("float", pa.array([0.5, -2.0], pa.float64()), [0.5, -2.0]),
        ("string", pa.array(["é", ""], pa.large_string()), ["é", ""]),
        ("string", pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        ("bytes", pa.array([b"ab", b"cd"], pa.binary(2)), [b"ab", b"cd"]),
        ({"type": "fixed", "name": "F", "size": 2}, pa.array([b"ab", b"cd"]), [b"ab", b"cd"]),
        (
            {"type": "array", "items": "int"},
            pa.array([[1], []], pa.large_list(pa.int64())),
            [[1], []],
        ),
        (
            {"type": "array", "items": "int"},
            pa.array([[1], [2]], pa.list_(pa.int64(), 1)),
            [[1], [2]],
        ),
        (["null", "int"], pa.nulls(2), [None, None]),
        (["null", {"type": "array", "items": "int"}], pa.nulls(2), [None, None]),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2},
            pa.array([Decimal("1.5"), Decimal(-2)], pa.decimal256(60, 1)),
            [Decimal("1.50"), Decimal(-2)],
        ),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            pa.array([1_000, -2_000], pa.timestamp("ns", "America/New_York")),
            [
                dt.datetime(1970, 1, 1, 0, 0, 0, 1, dt.UTC),
                dt.datetime(1969, 12, 31, 23, 59, 59, 999_998, dt.UTC),
            ],
        ),
    ],
)
def test_columns_of_another_type_with_equal_values_are_taken(
    kind: Any, given: pa.Array, value: list[Any]
) -> None:
    batch = pa.RecordBatch.from_arrays([given], ["value"])
    bodies = payloads(Avro(kind).encode(batch))
    parsed = fastavro.parse_schema(kind)
    assert [fastavro.schemaless_reader(io.BytesIO(b or b""), parsed, None) for b in bodies] == value


NESTED: dict[str, Any] = {
    "type": "record",
    "name": "Nested",
    "fields": [
        {"name": "list", "type": {"type": "array", "items": ORDER}},
        {"name": "map", "type": {"type": "map", "values": "int"}},
    ],
}


@pytest.mark.parametrize(
    ("kind", "given", "reason"),
    [
        ("long", pa.array([1, None]), "value is null, and the schema has no null there"),
        ("int", pa.array([1, 2**31]), "value is no int32"),
        ("double", pa.array([1, 2**53 + 1]), "value is no double"),
        ("float", pa.array([0.5, 0.1]), "value is no float"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            pa.array([1000, 1001], pa.timestamp("us", "UTC")),
            "value has microseconds, and the schema milliseconds",
        ),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            pa.array([1000, 1001], pa.timestamp("ns", "UTC")),
            "value is no timestamp[us, tz=UTC]",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1},
            pa.array([Decimal("1.5"), Decimal("100.5")]),
            "value is no decimal128(3, 1)",
        ),
        (
            {"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 9},
            pa.array([Decimal(-128), Decimal(128)]),
            "value has more digits than 1 bytes have",
        ),
        (
            {"type": "fixed", "name": "F", "size": 2},
            pa.array([b"ab", b"c"]),
            "value has not 2 bytes",
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            pa.array(["A", "B"]),
            "value is no symbol",
        ),
        ('"null"', pa.array([None, 1]), "value is not null, and the schema has nothing else"),
        (["null"], pa.array([None, 1]), "value is not null, and the schema has nothing else"),
        (
            ["int", "string"],
            pa.array([{"member0": 1}, {"member0": 1, "member1": "a"}]),
            "value has several members of the union",
        ),
        (
            ["int", "string"],
            pa.array(
                [{"member0": 1}, {"member0": None}],
                pa.struct([("member0", pa.int32()), ("member1", pa.string())]),
            ),
            "value is null, and the schema has no null there",
        ),
        (
            {"type": "array", "items": "int"},
            pa.array([[1], [2, None]]),
            "value[] is null, and the schema has no null there",
        ),
        (
            {"type": "map", "values": "int"},
            pa.array(
                [[("a", 1)], [("a", 1), ("b", 1), ("a", 2)]], pa.map_(pa.string(), pa.int32())
            ),
            "value has a key twice",
        ),
    ],
)
def test_a_value_that_the_schema_has_not_makes_its_row_bad(
    kind: Any, given: pa.Array, reason: str
) -> None:
    batch = pa.RecordBatch.from_arrays([given, pa.array(["a", "b"])], ["value", "key"])
    with pytest.raises(
        BadRowsError, match="1 of the rows cannot be converted; row 1: value: "
    ) as got:
        Avro(kind, columns=["key"]).encode(batch)
    assert str(got.value.errors[1]).startswith(f"value: {reason}")
    assert got.value.decoded.to_pylist() == [
        {"value": payloads(Avro(kind).encode(batch.slice(0, 1)))[0], "key": "a"}
    ]


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        ("long", pa.array(["1"]), "value is string, and the schema has int64"),
        ("string", pa.array([b"1"]), "value is binary, and the schema has string"),
        ("int", pa.array([True]), "value is bool, and the schema has int32"),
        ("int", pa.array([1.0]), "value is double, and the schema has int32"),
        (
            {"type": "int", "logicalType": "date"},
            pa.array([1]),
            "value is int64, and the schema has d",
        ),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            pa.array([1], pa.timestamp("us")),
            "value is timestamp[us], and the schema has timestamp[us, tz=UTC]",
        ),
        (
            {"type": "array", "items": "int"},
            pa.array([1]),
            "value is int64, and the schema has list",
        ),
        (["int", "string"], pa.array([1]), "value is int64, and the schema has struct<member0"),
        (ORDER, pa.array([1]), "the records"),
    ],
)
def test_a_column_of_another_sort_is_an_error_of_options(
    kind: Any, given: pa.Array, words: str
) -> None:
    with pytest.raises(OptionError) as caught:
        Avro(kind).encode(pa.RecordBatch.from_arrays([given], ["value"]))
    assert words in str(caught.value)


def test_bad_rows_are_those_of_records_also_in_lists() -> None:
    kind = of(NESTED).schema
    rows = [{"list": [dict(ORDERS[0])] * n, "map": [("a", n)]} for n in range(4)]
    rows[2] = {"list": [ORDERS[0], ORDERS[0] | {"items": [None]}], "map": [("b", None)]}
    batch = pa.RecordBatch.from_pylist(rows, kind)
    with pytest.raises(BadRowsError) as caught:
        Avro(NESTED).encode(batch)
    no_null = "is null, and the schema has no null there"
    assert {row: str(error) for row, error in caught.value.errors.items()} == {
        2: f"value: list[].items[] {no_null}"
    }
    assert payloads(caught.value.decoded) == written(
        NESTED, [{"list": rows[n]["list"], "map": {"a": n}} for n in (0, 1, 3)]
    )


def test_parts_of_batches_and_tombstones_keep_their_places() -> None:
    fixed = {"type": "array", "items": {"type": "fixed", "name": "F", "size": 2}}
    column = pa.array([[b"ab", b"cd"], [b"ef"], [], [b"gh", b"ij"]], pa.list_(pa.binary()))
    part = pa.RecordBatch.from_arrays([column], ["value"]).slice(1)
    bodies = payloads(Avro(fixed).encode(part))
    assert bodies == written(fixed, [[b"ef"], [], [b"gh", b"ij"]])
    rows = [None, {"id": 1}, None, {"id": None}, {"id": 2}]
    structs = pa.RecordBatch.from_arrays(
        [pa.array(rows, pa.struct([("id", pa.int64())]))], ["order"]
    )
    schema = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]}
    for orders in (Avro(schema, into="order"), Json("id BIGINT NOT NULL", into="order")):
        with pytest.raises(BadRowsError) as caught:
            orders.encode(structs)
        assert list(caught.value.errors) == [3]
        found, problems = orders.read(caught.value.decoded["value"])
        assert (found.to_pylist(), problems) == ([None, {"id": 1}, None, {"id": 2}], {})


def test_keys_and_columns_stand_beside() -> None:
    orders = Avro(ORDER, columns=["topic"], key=Json("customer BIGINT", into="key"))
    batch = of(ORDER, *ORDERS)
    more = [pa.array([{"customer": n} if n else None for n in range(10)]), pa.array(["t"] * 10)]
    whole = pa.RecordBatch.from_arrays(
        [*batch.columns, *more, more[1]], [*batch.schema.names, "key", "topic", "more"]
    )
    encoded = orders.encode(whole)
    assert encoded.schema == pa.schema(
        [("topic", pa.string()), ("value", pa.binary()), ("key", pa.binary())]
    )
    assert encoded["key"].to_pylist()[:2] == [None, b'{"customer":1}']
    assert payloads(encoded) == written(ORDER, ORDERS)
    assert orders.encode(whole, column="data").schema.names == ["topic", "data", "key"]
    with pytest.raises(OptionError, match="id is in the schema, and no column of the records"):
        orders.encode(whole.drop_columns(["id"]))
    with pytest.raises(OptionError, match="the records need one column 'topic', and have id, "):
        orders.encode(whole.drop_columns(["topic"]))
    with pytest.raises(OptionError, match="it is int64, and the schema has struct<id: int64, "):
        Avro(ORDER, into="id").encode(whole)


def test_frames() -> None:
    batch, bodies = of(ORDER, *ORDERS), written(ORDER, ORDERS)
    single = Avro(ORDER, framing="single-object")
    assert payloads(single.encode(batch)) == [single_object(ORDER) + body for body in bodies]
    assert single.read(single.encode(batch)["value"])[0].to_pylist() == ORDERS
    with pytest.raises(
        OptionError, match="schema_id=5 must be a number for framing='confluent', and"
    ):
        Avro(ORDER, schema_id=5)
    registry = SchemaRegistry("http://127.0.0.1:1")
    with pytest.raises(OptionError, match="encode needs schema_id: id_of of the registry has"):
        Avro(ORDER, registry=registry).encode(batch)
    for wrong in (-1, 2**32, "5"):
        with pytest.raises(OptionError, match=f"schema_id={wrong!r} must be a number f"):
            Avro(ORDER, registry=registry, schema_id=wrong)
    with pytest.raises(OptionError, match="schema_id='x' must be a number for"):
        Json("id INT", framing="glue", schema_id="x")
    with pytest.raises(OptionError, match="encode needs schema_id with 'glue'"):
        Json("id INT", framing="glue").encode(batch)
    assert payloads(Avro(ORDER, registry=registry, schema_id=258).encode(batch)) == [
        b"\0\0\0\1\2" + body for body in bodies
    ]


def test_json_skips_and_writes_frames() -> None:
    version = uuid4()
    for framing, frame, schema_id in (
        ("confluent", b"\0\0\0\0\7", 7),
        ("glue", b"\3\0" + version.bytes, str(version)),
    ):
        decode = Json("id INT", framing=framing, schema_id=schema_id)  # type: ignore[arg-type]
        batch = pa.RecordBatch.from_pydict({"id": [1, None]})
        assert payloads(decode.encode(batch)) == [frame + b'{"id":1}', frame + b'{"id":null}']
        good = frame + b'{"id": 5}'
        found, problems = decode.read(pa.array([good, None, b'{"id": 5}', frame[:-1], good]))
        assert found.to_pylist() == [{"id": 5}, None, None, None, {"id": 5}]
        assert list(problems) == [2, 3]
        assert all(reason.startswith("it does not begin with") for reason in problems.values())


def test_what_confluents_own_serializer_of_json_writes_is_read(
    confluents_client: Callable[[str], Any],
) -> None:
    confluent = pytest.importorskip("confluent_kafka.schema_registry.json_schema")
    from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: PLC0415

    schema = {"title": "o", "type": "object", "properties": {"id": {"type": "integer"}}}
    with embedded_registry() as embedded:
        client = confluents_client(embedded.url)
        serialize = confluent.JSONSerializer(json.dumps(schema), client)
        context = SerializationContext("orders", MessageField.VALUE)
        sent = [serialize({"id": n}, context) for n in range(5)]
        deserialize = confluent.JSONDeserializer(json.dumps(schema))
        decode = Json(schema, framing="confluent", schema_id=1)
        found, problems = decode.read(pa.array(sent))
        assert (found.to_pylist(), problems) == ([{"id": n} for n in range(5)], {})
        again = payloads(decode.encode(pa.RecordBatch.from_struct_array(found)))
        assert [deserialize(each, context) for each in again] == found.to_pylist()


def test_a_schema_is_registered_and_found() -> None:
    batch = of(ORDER, *ORDERS)
    with embedded_registry() as embedded:
        registry = SchemaRegistry(embedded.url)
        with pytest.raises(OptionError, match="subject='orders-value' does not have the schema"):
            registry.id_of("orders-value", ORDER)
        number = registry.id_of("orders-value", ORDER, register=True)
        assert registry.id_of("orders-value", json.dumps(ORDER), register=True) == number
        assert registry.id_of("orders-value", ORDER) == number
        assert list(embedded.subjects) == ["orders-value"]
        orders = Avro(ORDER, registry=registry, schema_id=number)
        assert orders.read(orders.encode(batch)["value"])[0].to_pylist() == ORDERS
        for status, error in ((409, OptionError), (422, OptionError), (500, RetryLaterError)):
            embedded.status = status
            with pytest.raises(error, match=str(status)):
                registry.id_of("orders-value", ORDER, register=True)
        with pytest.raises(OptionError, match="the schema refers to others: name them by refer"):
            registry.id_of("orders-value", ('"long"', '"int"'))


def test_confluents_own_deserializer_reads_what_is_written(
    confluents_client: Callable[[str], Any],
) -> None:
    confluent = pytest.importorskip("confluent_kafka.schema_registry.avro")
    from confluent_kafka.serialization import MessageField, SerializationContext  # noqa: PLC0415

    with embedded_registry() as embedded:
        registry = SchemaRegistry(embedded.url)
        number = registry.id_of("orders-value", ORDER, register=True)
        encoded = Avro(ORDER, registry=registry, schema_id=number).encode(of(ORDER, *ORDERS))
        deserialize = confluent.AvroDeserializer(confluents_client(embedded.url))
        context = SerializationContext("orders", MessageField.VALUE)
        assert [deserialize(each, context) for each in payloads(encoded)] == ORDERS


async def test_what_a_writer_writes_a_source_reads(kinesis_server: KinesisServer) -> None:
    stream = Stream(kinesis_server, shards=2)
    orders = Avro(ORDER, columns=["partitionKey"])
    batch = of(ORDER, *ORDERS).append_column("partitionKey", pa.array(list("aabbccddee")))
    where: Any = {"endpoint_url": kinesis_server.endpoint_url, "session": session()}
    async with open_writer(stream.name, **where) as writer:
        await writer.write(orders.encode(batch, column="data"))
    async with stream.open(decode=Avro(ORDER, columns=["partitionKey"])) as opened:
        drained = await opened.drain(max_records=10, first_wait=math.inf)
    found = [row for each in drained.batches for row in each.records.to_pylist()]
    names = batch.schema.names
    assert sorted(({name: row[name] for name in names} for row in found), key=_id) == sorted(
        batch.to_pylist(), key=_id
    )


def _id(row: dict[str, Any]) -> int:
    return int(row["id"])


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
TIMES = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))  # noqa: DTZ001
ATOMS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    (pa.string(), TEXTS),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), TIMES.map(lambda at: at.replace(tzinfo=dt.UTC))),
    (pa.timestamp("us"), TIMES),
    (pa.decimal128(38, 20), st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: _scaled(n, 20))),
    (pa.decimal128(12, 0), st.integers(-(10**12) + 1, 10**12 - 1).map(Decimal)),
]


def _scaled(number: int, scale: int) -> Decimal:
    digits = tuple(map(int, str(abs(number))))
    return Decimal((number < 0, digits, -scale))


@st.composite
def fields(draw: Callable[..., Any], depth: int = 3) -> tuple[pa.Field, st.SearchStrategy[Any]]:
    """A field, and its values as Arrow has them."""
    name = draw(TEXTS.filter(bool))
    nullable = draw(st.booleans())
    kind, of_it = draw(st.sampled_from(ATOMS))
    match draw(st.sampled_from(["atom", "list", "map", "struct"])) if depth else "atom":
        case "list":
            item, of_item = draw(fields(depth - 1))
            kind, of_it = pa.list_(item.with_name("item")), st.lists(of_item, max_size=3)
        case "map":
            item, of_item = draw(fields(depth - 1))
            kind = pa.map_(pa.string(), item.with_name("value"))
            of_it = st.dictionaries(TEXTS, of_item, max_size=3).map(lambda d: list(d.items()))
        case "struct":
            inner = draw(st.lists(fields(depth - 1), min_size=1, max_size=3, unique_by=_name))
            kind = pa.struct([each for each, _ in inner])
            of_it = st.fixed_dictionaries({each.name: of_each for each, of_each in inner})
        case _:
            pass
    return pa.field(name, kind, nullable), st.none() | of_it if nullable else of_it


def _name(pair: tuple[pa.Field, Any]) -> str:
    return str(pair[0].name)


@pytest.mark.long
@settings(suppress_health_check=list(HealthCheck))
@given(st.data())
def test_documents_are_read_as_they_were(data: st.DataObject) -> None:
    inner = data.draw(st.lists(fields(), min_size=1, max_size=3, unique_by=_name))
    schema = pa.schema([each for each, _ in inner])
    row = st.fixed_dictionaries({each.name: of_each for each, of_each in inner})
    rows = data.draw(st.lists(row | st.none(), min_size=1, max_size=10))
    decode = Json(schema, into="all")
    whole = pa.array(rows, pa.struct(list(schema)))
    documents = decode.encode(pa.RecordBatch.from_arrays([whole], ["all"]))["value"]
    found, problems = decode.read(documents)
    assert problems == {}
    assert found.to_pylist() == whole.to_pylist()
    for document, given_row in zip(documents.to_pylist(), whole.to_pylist(), strict=True):
        if given_row is not None:
            assert _agrees(json.loads(document, parse_float=Decimal), given_row)


def _agrees(found: Any, value: Any) -> bool:  # noqa: PLR0911 - one case for each kind
    """Whether Python's JSON has a value of Arrow."""
    if isinstance(value, dict):
        return found.keys() == value.keys() and all(_agrees(found[n], value[n]) for n in value)
    if isinstance(found, dict):
        return all(_agrees(found[name], each) for name, each in value)
    if isinstance(value, list):
        return all(_agrees(one, other) for one, other in zip(found, value, strict=True))
    if isinstance(value, dt.datetime):
        return dt.datetime.fromisoformat(found) == value
    if isinstance(value, dt.date):
        return dt.date.fromisoformat(found) == value
    if isinstance(value, float):
        near = float(found)
        return value in {near, pa.scalar(near, pa.float32()).as_py()}
    return bool(found == value and (found is None) == (value is None))


@pytest.mark.parametrize(
    ("field", "given", "reason"),
    [
        (
            pa.field("a", pa.int32(), nullable=False),
            pa.array([1, None]),
            "a is NOT NULL, and is null",
        ),
        (pa.field("a", pa.int8()), pa.array([1, 128]), "a is no int8"),
        (pa.field("a", pa.float64()), pa.array([1, math.nan]), "a is NaN or infinite, which JSON"),
        (pa.field("a", pa.float32()), pa.array([1, math.inf]), "a is NaN or infinite, which JSON"),
        (
            pa.field("a", pa.timestamp("us", "UTC")),
            pa.array([0, 2**60], pa.timestamp("us", "UTC")),
            "a is no TIMESTAMP of the years 1 to 9999",
        ),
        (pa.field("a", pa.date32()), pa.array([0, -(10**6)], pa.date32()), "a is no DATE of the y"),
        (
            pa.field("a", pa.list_(pa.field("item", pa.int64(), nullable=False))),
            pa.array([[1], [None]]),
            "a[] is NOT NULL, and is null",
        ),
        (
            pa.field("a", pa.struct([pa.field("b", pa.int64(), nullable=False)])),
            pa.array([{"b": 1}, {"b": None}]),
            "a.b is NOT NULL, and is null",
        ),
        (
            pa.field("a", pa.map_(pa.string(), pa.int64())),
            pa.array([[("x", 1)], [("x", 1), ("x", 1)]], pa.map_(pa.string(), pa.int64())),
            "a has a key twice",
        ),
    ],
)
def test_a_value_that_json_has_not_makes_its_row_bad(
    field: pa.Field, given: pa.Array, reason: str
) -> None:
    decode = Json(pa.schema([field]))
    with pytest.raises(BadRowsError) as caught:
        decode.encode(pa.RecordBatch.from_arrays([given], ["a"]))
    assert str(caught.value.errors[1]).startswith(f"value: {reason}")
    found, problems = decode.read(caught.value.decoded["value"])
    assert (len(found), problems) == (1, {})


def test_json_of_another_sort_is_an_error_of_options() -> None:
    for kind, column in (("ARRAY<INT>", pa.array([1])), ("STRUCT<x: INT>", pa.array([[1]]))):
        with pytest.raises(OptionError, match=r"a is .*, and the schema has "):
            Json(f"a {kind}").encode(pa.RecordBatch.from_arrays([column], ["a"]))
    with pytest.raises(OptionError, match="b is in the schema, and no column of the records"):
        Json("b INT").encode(pa.RecordBatch.from_arrays([pa.array([1])], ["a"]))


@pytest.mark.parametrize("framing", ["confluent", "glue"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 100])
def test_json_in_frames_is_read_in_batches_of_any_size(framing: Any, count: int) -> None:
    frame = b"\0\0\0\0\1" if framing == "confluent" else b"\3\0" + bytes(16)
    given = [frame + b'{"id":1}'] * count
    found, problems = Json("id INT", framing=framing).read(pa.array([*given, None], pa.binary()))
    assert (found.to_pylist(), problems) == ([{"id": 1}] * count + [None], {})
    found, problems = Json("id INT", framing=framing).read(pa.nulls(count, pa.binary()))
    assert (found.to_pylist(), problems) == ([None] * count, {})


def test_a_decimal_that_does_not_fit_is_bad_and_no_other_one() -> None:
    digits = "35721959748133703468533618602333359131"
    rows = pa.RecordBatch.from_pydict({"x": pa.array([Decimal(digits), Decimal(7)])})
    avro = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": avro}]}
    for encoder in (Json("x DECIMAL(38, 10)"), Avro(schema)):
        with pytest.raises(BadRowsError) as caught:
            encoder.encode(rows)
        assert list(caught.value.errors) == [0]


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (pa.timestamp("us", "UTC"), (67_562 - 1970) * 31_556_952 * 10**6),
        (pa.timestamp("us"), -62_135_596_800_000_001),
        (pa.timestamp("us", "UTC"), 253_402_300_800_000_000),
        (pa.date32(), 23_956_986),
        (pa.date32(), 2_932_897),
    ],
)
def test_a_time_of_another_year_than_1_to_9999_is_bad(kind: pa.DataType, number: int) -> None:
    whole = pa.int32() if kind == pa.date32() else pa.int64()
    rows = pa.RecordBatch.from_pydict({"x": pa.array([number, 0], whole).cast(kind)})
    with pytest.raises(BadRowsError) as caught:
        Json(pa.schema([("x", kind)])).encode(rows)
    assert list(caught.value.errors) == [0]


def test_lists_of_each_layout_are_encoded_alike() -> None:
    numbers = [[1, 2, 3], [], None, [4, 5, 6]]
    for kind in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view):
        rows = pa.RecordBatch.from_pydict({"x": pa.array(numbers, kind(pa.int64()))}).slice(1)
        texts = payloads(Json("x ARRAY<BIGINT>").encode(rows))
        assert texts == [b'{"x":[]}', b'{"x":null}', b'{"x":[4,5,6]}']


def test_a_large_whole_number_is_a_float_where_it_is_equal() -> None:
    rows = pa.RecordBatch.from_pydict({"x": pa.array([2**60 + 1, 1])})
    with pytest.raises(BadRowsError) as caught:
        Json("x FLOAT").encode(rows)
    assert list(caught.value.errors) == [0]


@pytest.mark.parametrize(
    ("decode", "records", "words"),
    [
        (
            Json("a INT", columns=["value"]),
            pa.record_batch({"a": [1], "value": [b"x"]}),
            "columns has 'value', which encode makes",
        ),
        (
            Json("a INT", columns=["key"], key=Json("a INT")),
            pa.record_batch({"a": [1], "key": [b"x"]}),
            "columns has 'key', which encode makes",
        ),
        (
            Json("a INT"),
            pa.table({"a": [1]}),
            "encode takes a pyarrow.RecordBatch",
        ),
    ],
)
def test_what_would_get_lost_is_not_encoded(decode: Json, records: Any, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        decode.encode(records)
    assert str(caught.value).startswith(words)


def test_a_truth_is_no_id() -> None:
    with pytest.raises(OptionError, match="schema_id=True must be a number"):
        Json("a INT", framing="confluent", schema_id=True)


@pytest.mark.parametrize("schema", [Json("n DOUBLE"), Avro({"type": "double"}, into="of_avro")])
@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
def test_a_whole_number_is_a_double_where_both_are_equal(schema: Any, kind: pa.DataType) -> None:
    equal, others = [2**53, 2**60, 2**62 + 2**11, 2**63 - 2**10], [2**53 + 1, 2**60 - 1, 2**63 - 1]
    if kind == pa.int64():
        equal += [-(2**63)]
    else:
        equal, others = [*equal, 2**63, 2**64 - 2**11], [*others, 2**64 - 1]
    batch = pa.RecordBatch.from_arrays([pa.array(equal + others, kind)], ["n"])
    if schema.into is not None:
        values = pa.StructArray.from_arrays(batch.columns, ["value"])
        batch = pa.RecordBatch.from_arrays([values], [schema.into])
    with pytest.raises(BadRowsError) as caught:
        schema.encode(batch)
    bad = dict.fromkeys(range(len(equal), len(equal + others)))
    assert caught.value.errors.keys() == bad.keys()
    found, _ = schema.read(caught.value.decoded.column("value"))
    assert found.field(0).to_pylist() == equal


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_text_that_is_not_utf8_is_bad(kind: pa.DataType) -> None:
    """Arrow does not look at what a library passes it."""
    texts = pa.array([b"good", b"\xff", None, "é".encode(), b"\xed\xa0\x80"], pa.binary())
    damaged = texts.cast(pa.string(), safe=False).cast(kind)
    names = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3, 4]), damaged)
    for decode in (
        Json("a STRING, l ARRAY<STRING>, m MAP<STRING, STRING>"),
        Avro(
            {
                "type": "record",
                "name": "R",
                "fields": [
                    {"name": "a", "type": ["null", "string"]},
                    {"name": "l", "type": ["null", {"type": "array", "items": "string"}]},
                    {"name": "m", "type": ["null", {"type": "map", "values": "string"}]},
                ],
            }
        ),
    ):
        texts_of_items = damaged.cast(pa.string(), safe=False).fill_null("")
        offsets = pa.array([0, 1, 2, 3, 4, 5])
        lists = pa.ListArray.from_arrays(offsets, texts_of_items)
        maps = pa.MapArray.from_arrays(offsets, texts_of_items, texts_of_items)
        nothing = pa.nulls(5)
        for columns, reason in (
            ([damaged, nothing, nothing], "value: a is not UTF-8"),
            ([names, nothing, nothing], "value: a is not UTF-8"),
            ([nothing, lists, nothing], "value: l[] is not UTF-8"),
            ([nothing, nothing, maps], "value: m (key) is not UTF-8"),
        ):
            batch = pa.RecordBatch.from_arrays(columns, ["a", "l", "m"])
            with pytest.raises(BadRowsError) as caught:
                decode.encode(batch)
            assert {n: str(e) for n, e in caught.value.errors.items()} == {1: reason, 4: reason}
            assert caught.value.decoded.num_rows == 3
