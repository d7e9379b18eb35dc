"""`Avro` against fastavro, value by value, and what is damaged."""

from __future__ import annotations

import io
import json
import pickle  # noqa: TID251 - our own value, as landers get it
import random
import time
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st

from fanout.decoding import Avro, Json, SchemaRegistry
from fanout.decoding.avro_columns import Bytes
from fanout.decoding.avro_plan import UnresolvedError, plan
from fanout.decoding.avro_schema import parse_avro
from fanout.errors import OptionError
from tests.decoding.avro_schemas import agrees, evolved, schemas, values
from tests.support.avro_records import ORDER, ORDERS, written


def read(decode: Avro, *payloads: bytes | None) -> tuple[list[Any], dict[int, str]]:
    found, problems = decode.read(pa.array(payloads, pa.binary()))
    good = [row for row in range(len(payloads)) if row not in problems]
    found.take(pa.array(good, pa.int64())).validate(full=True)
    found = pa.RecordBatch.from_struct_array(found.take(pa.array(good, pa.int64())))
    return found.to_pylist(), dict(problems)


def compare(writer: Any, reader: Any, rows: list[Any]) -> None:
    bodies = written(writer, rows)
    one, other = (fastavro.parse_schema(json.loads(json.dumps(s))) for s in (writer, reader))
    try:
        decode = Avro(json.dumps(reader), framing="single-object", writers=[writer])
    except OptionError as error:
        assert "has items without a byte" in str(error)  # noqa: PT017
        reject()
    mark = single_object(writer)
    found, problems = decode.read(pa.array([mark + body for body in bodies], pa.binary()))
    assert problems == {}
    found.validate(full=True)
    for row, body in zip(found.to_pylist(), bodies, strict=True):
        expected = fastavro.schemaless_reader(io.BytesIO(body), one, other)
        assert agrees(row, expected, reader), (row, expected)


@settings(max_examples=2 * settings().max_examples, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_schemas_are_read_as_fastavro_reads_them(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    rows = data.draw(st.lists(values(schema), min_size=1, max_size=20))
    compare(schema, schema, rows)


@pytest.mark.long
@settings(max_examples=2 * settings().max_examples, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_schemas_are_resolved_as_fastavro_resolves_them(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    compare(schema, data.draw(evolved(schema)), data.draw(st.lists(values(schema), max_size=20)))


def test_a_schema_is_text_a_mapping_or_what_python_has_of_it() -> None:
    bodies = written(ORDER, ORDERS)
    for schema in (ORDER, json.dumps(ORDER)):
        assert read(Avro(schema), *bodies) == (ORDERS, {})
    one = Avro('"string"')
    assert read(one, *written("string", ["x", ""])) == ([{"value": "x"}, {"value": ""}], {})
    assert read(Avro(["null", "long"]), b"\0", b"\2\4")[0] == [{"value": None}, {"value": 2}]


def test_rows_without_a_payload_are_null() -> None:
    body = written(ORDER, ORDERS[:1])[0]
    found, problems = Avro(ORDER).read(pa.array([None, body, None], pa.binary()))
    assert found.is_null().to_pylist() == [True, False, True]
    assert problems == {}
    assert Avro(ORDER).read(pa.array([], pa.binary()))[0].type == found.type
    assert Avro(ORDER).read(pa.array([None], pa.binary()))[0].to_pylist() == [None]
    part = pa.array([b"bad", body, None, body], pa.binary())[1:3]
    assert Avro(ORDER).read(part)[0].to_pylist() == [ORDERS[0], None]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "id: the record ends early"),
        (b"\x80", "id: the record ends early"),
        (b"\xff" * 9 + b"\x02" + b"\0" * 3, "id: the record ends early"),
        (b"\2\3", "name: the record ends early"),
        (b"\2" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "name: the record ends early"),
        (b"\2" + b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "name: the record ends early"),
        (b"\2\2\xff\0\0", "name is not UTF-8"),
        (b"\2\0" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"\0" * 9, "items: the record"),
        (b"\2\0" + b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"\0" * 9, "items: the record"),
        (b"\2\0\2\2x", "items: the record ends early"),
        (b"\2\0\0\4", "note is of no type of the union"),
        (b"\2\0\0\1", "note is of no type of the union"),
        (b"\2\0\0\0\0", "bytes are left behind the last field"),
    ],
)
def test_a_damaged_record_is_bad_and_moves_no_other(body: bytes, reason: str) -> None:
    good = written(ORDER, ORDERS)
    found, problems = read(Avro(ORDER), *good[:5], body, *good[5:])
    assert found == ORDERS
    assert list(problems) == [5]
    assert problems[5].startswith(reason)


ITEM: dict[str, Any] = {
    "type": "record",
    "name": "Item",
    "fields": [
        {"name": "map", "type": {"type": "map", "values": ["null", "double", "string"]}},
        {"name": "lists", "type": {"type": "array", "items": {"type": "array", "items": "int"}}},
        {"name": "ok", "type": "boolean"},
        {"name": "size", "type": {"type": "enum", "name": "E", "symbols": ["S", "L"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "F", "size": 3}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "orders", "type": {"type": "array", "items": ORDER}},
    ],
}


@pytest.mark.timeout(240)
def test_20_000_damaged_records_are_bad_or_what_fastavro_reads() -> None:
    generator = random.Random(1)
    with_values = values(ITEM)
    good = written(ITEM, [_example(with_values, seed) for seed in range(20)])
    parsed = fastavro.parse_schema(json.loads(json.dumps(ITEM)))
    decode, bad = Avro(ITEM), 0
    for _ in range(40):
        payloads = [damaged(generator.choice(good), generator) for _ in range(500)]
        payloads[::50] = good[:10]
        found, problems = decode.read(pa.array(payloads, pa.binary()))
        kept = [row for row in range(len(payloads)) if row not in problems]
        whole = found.take(pa.array(kept))
        whole.validate(full=True)
        bad += len(problems)
        assert not {*range(0, 500, 50)} & problems.keys()
        for row, value in zip(kept, _pylist(whole), strict=True):
            if value is not None:
                body = io.BytesIO(payloads[row])
                assert agrees(value, fastavro.schemaless_reader(body, parsed, None), ITEM)
    assert bad > 10_000


def _example(strategy: Any, seed: int) -> Any:
    found = []

    @settings(max_examples=1, database=None, deadline=None, derandomize=False)
    @hypothesis_seed(seed)
    @given(strategy)
    def draw(value: Any) -> None:
        found.append(value)

    draw()
    return found[-1]


def _pylist(whole: pa.Array) -> list[Any]:
    """Python's values; None where Python has no such time."""
    rows = []
    for row in whole:
        try:
            rows.append(row.as_py())
        except (ValueError, OverflowError):
            rows.append(None)
    return rows


def damaged(body: bytes, generator: random.Random) -> bytes:
    wrong = bytearray(body)
    for _ in range(generator.randint(1, 3)):
        at = generator.randrange(len(wrong) + 1)
        match generator.randrange(5):
            case 0:
                del wrong[at:]
            case 1:
                wrong[at:at] = generator.randbytes(generator.randint(1, 12))
            case 2:
                del wrong[at : at + generator.randint(1, 4)]
            case 3 if at < len(wrong):
                wrong[at] ^= 1 << generator.randrange(8)
            case _:
                wrong[at:at] = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    return bytes(wrong)


@pytest.mark.long
def test_one_array_of_100_000_items_among_small_ones_is_read_at_once() -> None:
    schema = {"type": "array", "items": ORDER}
    row: list[Any] = [{"id": n, "name": "", "items": [], "note": None} for n in range(100_000)]
    bodies = written(schema, [row, [], row[:3]])
    found, problems = Avro(schema).read(pa.array(bodies, pa.binary()))
    assert problems == {}
    assert [len(each["value"]) for each in found.to_pylist()] == [100_000, 0, 3]
    assert found.to_pylist()[0]["value"][99_999]["id"] == 99_999


def test_items_have_a_byte_and_blocks_may_have_a_size() -> None:
    with pytest.raises(OptionError, match=r"value\[\] has items without a byte"):
        Avro({"type": "array", "items": "null"})
    with_size = b"\x03\x04\x02\x04\x00"  # two items in four bytes
    assert read(Avro({"type": "array", "items": "int"}), with_size)[0] == [{"value": [1, 2]}]


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        ("int", b"\x80\x80\x80\x80\x10", "value is too large for int32"),
        ("boolean", b"\2", "value is no boolean"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\2", "value has a symbol that the"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1},
            b"\4\x03\xe8",
            "value has more digits than decimal128(3, 1)",
        ),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            b"\xfe" + b"\xff" * 8 + b"\x01",
            "value is too large for timestamp[us, tz=UTC]",
        ),
    ],
)
def test_a_value_that_no_column_has_is_bad(kind: Any, body: bytes, reason: str) -> None:
    found, problems = read(Avro(kind), body)
    assert found == []
    assert problems[0].startswith(reason)


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        ({"name": "more", "type": "int"}, "more is not there, and has no default"),
        ({"name": "id", "type": "string"}, "id is long, and the schema has string"),
        ({"name": "id", "type": "int"}, "id is long, and the schema has int"),
        ({"name": "id", "type": ["null", "string"]}, "id is long, and the schema has no such type"),
    ],
)
def test_records_of_a_schema_that_does_not_fit_are_bad(later: Any, reason: str) -> None:
    decode = Avro(ORDER | {"fields": [later]}, framing="single-object", writers=[json.dumps(ORDER)])
    mark = single_object(ORDER)
    bodies = [mark + body for body in written(ORDER, ORDERS)]
    assert read(decode, *bodies) == (
        [],
        dict.fromkeys(range(10), f"it was written with another schema: {reason}"),
    )


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        (("long", "timestamp-millis"), ("long", "timestamp-micros"), "is timestamp-millis, not"),
        (("long", "timestamp-micros"), ("long", "timestamp-millis"), "is timestamp-micros, not"),
        (("int", None), ("long", "timestamp-millis"), "is int, and the schema has long"),
    ],
)
def test_a_time_never_becomes_another_one(
    writer: tuple[str, str | None], reader: tuple[str, str | None], reason: str
) -> None:
    def order(kind: str, logical: str | None) -> str:
        of_kind = {"type": kind} if logical is None else {"type": kind, "logicalType": logical}
        fields = [{"name": "at", "type": of_kind}]
        return json.dumps({"type": "record", "name": "Order", "fields": fields})

    with pytest.raises(UnresolvedError, match=reason):
        plan(parse_avro(order(*writer)), parse_avro(order(*reader)))


def single_object(schema: Any) -> bytes:
    canonical = fastavro.schema.to_parsing_canonical_form(
        fastavro.parse_schema(json.loads(json.dumps(schema)))
    )
    return b"\xc3\x01" + bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))


def test_a_branch_that_the_reader_lacks_is_bad_where_it_is_used() -> None:
    narrow = ORDER | {"fields": [{"name": "note", "type": "string"}]}
    decode = Avro(narrow, framing="single-object", writers=[ORDER])
    mark = single_object(ORDER)
    found, problems = read(decode, *(mark + body for body in written(ORDER, ORDERS)))
    assert found == [{"note": "n"}] * 5
    assert problems == dict.fromkeys(range(0, 10, 2), "note is null, and the schema has string")


def test_frames_that_are_none_are_bad() -> None:
    decode = Avro(ORDER, framing="single-object")
    body = written(ORDER, ORDERS[:1])[0]
    found, problems = read(
        decode, single_object(ORDER) + body, body, b"", b"\xc3\x01" + bytes(8) + body
    )
    assert found == ORDERS[:1]
    no_frame = "it does not begin with C3 01 and a fingerprint"
    unknown = "the schema with the fingerprint 0000000000000000 is not among the writers"
    assert problems == {1: no_frame, 2: no_frame, 3: unknown}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schema": "{"}, "the schema of Avro has the unknown type {"),
        ({"schema": 5}, "schema=5 must be the text of a schema of Avro, or JSON"),
        ({"schema": {"type": "record"}}, "a record in the schema of Avro has no name"),
        ({"schema": {"type": "fixed", "name": "F"}}, "F in the schema of Avro has no size"),
        ({"schema": {"name": "x"}}, "a part of the schema of Avro has no type"),
        (
            {
                "schema": {
                    "type": "record",
                    "name": "Node",
                    "fields": [{"name": "next", "type": ["null", "Node"]}],
                }
            },
            "the schema of Avro has Node in itself: columns have an end",
        ),
        (
            {
                "schema": {
                    "type": "bytes",
                    "logicalType": "decimal",
                    "precision": 40,
                    "scale": 2,
                }
            },
            "value has more than 38 digits",
        ),
        ({"registry": "http://registry"}, "registry must be a SchemaRegistry"),
        ({"framing": "xml"}, "framing='xml' is not understood"),
        ({"framing": "glue"}, "framing='glue' needs a registry, a GlueSchemaRegistry"),
        ({"framing": "confluent"}, "framing='confluent' needs a registry, a SchemaRegistry"),
        (
            {"registry": SchemaRegistry("https://r"), "framing": "none"},
            "a registry is for framing='confluent'",
        ),
        ({"writers": [ORDER]}, "writers are for framing='single-object'"),
    ],
)
def test_a_malformed_option_is_named(options: Any, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        Avro(**{"schema": ORDER} | options)
    assert words in str(caught.value)


def test_it_is_a_value_that_other_processes_get() -> None:
    decode = Avro(ORDER, into="order", key=Json("id INT", into="key"))
    assert pickle.loads(pickle.dumps(decode)) == decode  # noqa: S301
    assert hash(decode) == hash(Avro(ORDER, into="order", key=Json("id INT", into="key")))


def test_an_array_that_cannot_be_read_is_left_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    skip = Bytes.skip

    def counted(self: Bytes, cursors: Any) -> None:
        nonlocal calls
        calls += 1
        skip(self, cursors)

    monkeypatch.setattr(Bytes, "skip", counted)
    body = written("long", [1000])[0] + b"\xff" * 1000
    problems = read(Avro({"type": "array", "items": "string"}), *[body] * 50)[1]
    assert problems == dict.fromkeys(range(50), "value[]: the record ends early")
    assert calls < 5


def test_a_map_of_nulls_keeps_its_keys() -> None:
    schema = {"type": "map", "values": "null"}
    body = written(schema, [{"a": None, "b": None}])
    assert read(Avro(schema), *body) == ([{"value": [("a", None), ("b", None)]}], {})


def test_the_last_entry_of_a_key_counts_in_a_map_that_has_it_twice() -> None:
    schema = {"type": "map", "values": "int"}
    twice = b"\x06\x02k\x02\x02a\x06\x02k\x04\x00"  # k: 1, a: 3, k: 2
    once = written(schema, [{"k": 7}])[0]
    found, problems = read(Avro(schema), once, twice, once)
    parsed = fastavro.parse_schema(schema)
    expected = [
        fastavro.schemaless_reader(io.BytesIO(each), parsed, None) for each in (once, twice)
    ]
    assert [dict(row["value"]) for row in found] == [expected[0], expected[1], expected[0]]
    assert [len(row["value"]) for row in found] == [1, 2, 1]
    assert not problems


def order_of(*fields: Any) -> Any:
    return {"type": "record", "name": "Order", "fields": list(fields)}


DECIMAL = {"logicalType": "decimal", "precision": 4, "scale": 1}


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("long", 1.5),
        ("long", 1.0),
        ("long", "1"),
        ("long", True),
        ("long", 2**63),
        ("int", 2**31),
        ("int", None),
        ("double", "1"),
        ("boolean", 0),
        ("string", 5),
        ("bytes", "\u0100"),
        ({"type": "fixed", "name": "F", "size": 2}, "abc"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
        ({"type": "bytes"} | DECIMAL, "\x7f\xff"),
        ({"type": "array", "items": "int"}, {"a": 1}),
        ({"type": "array", "items": "int"}, [1, 1.5]),
        ({"type": "map", "values": "int"}, [1]),
        (["null", "long"], 1.5),
        (["null", "long"], "x"),
        (order_of({"name": "x", "type": "int"}) | {"name": "R"}, {}),
        (order_of({"name": "x", "type": "int"}) | {"name": "R"}, {"x": 1.5}),
    ],
)
def test_a_default_of_another_type_is_an_error_at_once(kind: Any, default: Any) -> None:
    inner = order_of({"name": "more", "type": kind, "default": default}) | {"name": "Inner"}
    for schema in (
        order_of({"name": "a", "type": "int"}, {"name": "more", "type": kind, "default": default}),
        order_of({"name": "a", "type": ["null", {"type": "array", "items": inner}]}),
    ):
        with pytest.raises(OptionError, match="more has a default of another type"):
            Avro(schema)


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        (["null", "long", "string"], 5, {"member0": 5, "member1": None}),
        (["null", "long", "string"], "x", {"member0": None, "member1": "x"}),
        (["int", "long"], 2**31, {"member0": None, "member1": 2**31}),
        ("double", 5, 5.0),
        ({"type": "bytes"} | DECIMAL, "\x02", Decimal("0.2")),
        (
            order_of({"name": "x", "type": "int", "default": 7}) | {"name": "R"},
            {},
            {"x": 7},
        ),
    ],
)
def test_a_default_is_of_the_first_type_that_has_it(kind: Any, default: Any, value: Any) -> None:
    later = order_of({"name": "more", "type": kind, "default": default})
    decode = Avro(later, framing="single-object", writers=[ORDER])
    payloads = [single_object(ORDER) + body for body in written(ORDER, ORDERS[:2])]
    assert read(decode, *payloads) == ([{"more": value}] * 2, {})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            [
                {"name": "a", "type": "long", "aliases": ["id"]},
                {"name": "b", "type": "long", "aliases": ["id"], "default": 0},
            ],
            "id is an alias of both a and b",
        ),
        (
            [{"name": "a", "type": ["long", "string"], "aliases": ["id", "name"]}],
            "it has two fields that are a by its aliases",
        ),
    ],
)
def test_an_alias_of_two_fields_is_refused(fields: list[Any], reason: str) -> None:
    decode = Avro(order_of(*fields), framing="single-object", writers=[ORDER])
    payloads = [single_object(ORDER) + body for body in written(ORDER, ORDERS[:2])]
    found, problems = read(decode, *payloads)
    assert found == []
    assert problems == dict.fromkeys(range(2), f"it was written with another schema: {reason}")


def test_an_alias_that_is_not_needed_is_none() -> None:
    fields = [{"name": "id", "type": "long", "aliases": ["name"]}]
    decode = Avro(order_of(*fields), framing="single-object", writers=[ORDER])
    payloads = [single_object(ORDER) + body for body in written(ORDER, ORDERS[:2])]
    assert read(decode, *payloads) == ([{"id": row["id"]} for row in ORDERS[:2]], {})


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (("int", "time-millis"), ("int", "date")),
        (("int", "date"), ("int", "time-millis")),
        (("int", "time-millis"), ("long", "time-micros")),
        (("int", "time-millis"), ("long", "timestamp-micros")),
        (("long", "time-micros"), ("long", "timestamp-micros")),
        (("long", "timestamp-nanos"), ("long", "timestamp-micros")),
        (("long", "timestamp-micros"), ("long", "local-timestamp-micros")),
        (("int", "date"), ("long", "timestamp-millis")),
    ],
)
def test_a_time_of_another_unit_is_bad(writer: tuple[str, str], reader: tuple[str, str]) -> None:
    one, other = (
        order_of({"name": "at", "type": {"type": kind, "logicalType": logical}})
        for kind, logical in (writer, reader)
    )
    reason = f"at is {writer[1]}, not {reader[1]}"
    with pytest.raises(UnresolvedError, match=reason):
        plan(parse_avro(json.dumps(one)), parse_avro(json.dumps(other)))
    for union in (["null", {"type": reader[0], "logicalType": reader[1]}],):
        optional = order_of({"name": "at", "type": union})
        with pytest.raises(UnresolvedError):
            plan(parse_avro(json.dumps(one)), parse_avro(json.dumps(optional)))


def test_a_schema_that_grows_by_its_names_is_refused_at_once() -> None:
    kind: Any = "int"
    for number in range(30):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"R{number - 1}"}]
        kind = {"type": "record", "name": f"R{number}", "fields": fields[: 1 + (number > 0)]}
    begin = time.process_time()
    many = "the schema of Avro has more than 20000 types in one another"
    with pytest.raises(OptionError, match=many):
        Avro(kind)
    decode = Avro("long", framing="single-object", writers=[kind])
    with pytest.raises(OptionError, match=many):
        read(decode, b"\xc3\x01" + bytes(8))
    assert time.process_time() - begin < 30


def test_unions_in_unions_are_resolved_at_once() -> None:
    def nested(name: str) -> Any:
        kind: Any = "int"
        for number in range(30):
            fields = [{"name": "x", "type": ["null", kind]}]
            kind = {"type": "record", "name": f"{name}{number}", "fields": fields}
        return kind

    begin = time.process_time()
    one, other = (order_of({"name": "x", "type": nested(name)}) for name in "AB")
    plan(parse_avro(json.dumps(one)), parse_avro(json.dumps(other)))
    assert time.process_time() - begin < 30
