"""`Json`: a value is that of the document, or the record is bad."""

from __future__ import annotations

import datetime as dt
import json
import pickle  # noqa: TID251 - our own value, as landers get it
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fanout.decoding import Json
from fanout.decoding.json_columns import JsonColumns
from fanout.decoding.json_values import MismatchError, parse
from fanout.errors import BadRowsError, OptionError

CANARY = "canary"
DEEP = 100_000


def read(schema: Any, *documents: bytes | str | None) -> list[Any]:
    """Return the first field of each document, or why it is bad."""
    payloads = [each.encode() if isinstance(each, str) else each for each in documents]
    values, problems = Json(schema).read(pa.array(payloads, pa.binary()))
    rows = [None if row is None else next(iter(row.values())) for row in values.to_pylist()]
    return [problems.get(number, row) for number, row in enumerate(rows)]


@pytest.mark.parametrize(
    ("kind", "written", "value"),
    [
        ("BIGINT", "9223372036854775807", 2**63 - 1),
        ("BIGINT", "-0", 0),
        ("TINYINT", "-128", -128),
        ("DOUBLE", "1", 1.0),
        ("DOUBLE", "0.1", 0.1),
        ("DOUBLE", "1e-400", 0.0),
        ("BOOLEAN", "false", False),
        ("STRING", '"\\u00e9\\ud83d\\ude00\\u0000\\/"', "é😀\0/"),
        ("DATE", '"2026-01-31"', dt.date(2026, 1, 31)),
        ("DECIMAL(10, 2)", "1.250", Decimal("1.25")),
        ("DECIMAL(10, 2)", '"-99999999.99"', Decimal("-99999999.99")),
        ("DECIMAL(10, 2)", "1e2", Decimal(100)),
        (
            "TIMESTAMP",
            '"2026-01-31T12:00:00.000001+02:00"',
            dt.datetime(2026, 1, 31, 10, 0, 0, 1, dt.UTC),
        ),
        ("TIMESTAMP_NTZ", '"2026-01-31 12:00:00"', dt.datetime(2026, 1, 31, 12)),  # noqa: DTZ001
        ("ARRAY<ARRAY<INT>>", "[[1, null], [], null]", [[1, None], [], None]),
        ("STRUCT<x: INT>", '{"y": 1, "x": 2}', {"x": 2}),
        ("MAP<STRING, INT>", '{"x": 1, "y": null}', [("x", 1), ("y", None)]),
    ],
)
def test_a_value_is_that_of_the_document(kind: str, written: str, value: Any) -> None:
    documents = [f'{{"other": [{{}}], "a": {written}}}', '{"a": null}', "{}", None, "null"]
    assert read(f"a {kind}", *documents) == [value, None, None, None, None]


@pytest.mark.parametrize(
    ("kind", "written", "reason"),
    [
        (
            "BIGINT",
            "9223372036854775808",
            "a is no BIGINT: it has a fraction or an exponent, or is too large",
        ),
        ("INT", "2147483648", "a is no INT: it has a fraction or an exponent, or is too large"),
        ("BIGINT", "1.0", "a is no BIGINT: it has a fraction or an exponent"),
        ("BIGINT", "1e3", "a is no BIGINT: it has a fraction or an exponent"),
        ("BIGINT", '"1"', "a is BIGINT, and the document has a string"),
        ("BIGINT", "true", "a is BIGINT, and the document has a boolean"),
        ("DOUBLE", "1e999", "a is no DOUBLE: it is too large"),
        ("FLOAT", "1e39", "a is no FLOAT: it is too large"),
        ("DOUBLE", "NaN", "a is DOUBLE, and the document has NaN or Infinity"),
        ("STRING", "-Infinity", "a is STRING, and the document has NaN or Infinity"),
        ("DOUBLE", "01", "it is not JSON, or one document and more"),
        ("BOOLEAN", "1", "a is BOOLEAN, and the document has a number"),
        ("STRING", "1", "a is STRING, and the document has a number"),
        ("STRING", '"\\ud800"', "a has half of a surrogate pair"),
        ("STRING", '"line\nbreak"', "it is not JSON, or one document and more"),
        ("STRING", "1}\n{", "it is not JSON, or one document and more"),
        ("DATE", '"2026-02-30"', "a is no DATE such as 2026-01-31"),
        ("DATE", "5", "a is DATE, and the document has a number"),
        ("TIMESTAMP", '"2026-01-31T12:00:00"', "a is no TIMESTAMP such as 2026-01-31T12:00:00Z"),
        ("TIMESTAMP", '"2026-01-31"', "a is no TIMESTAMP such as 2026-01-31T12:00:00Z"),
        ("TIMESTAMP", '"2026-01-31T12:00:00.1234567Z"', "a is no TIMESTAMP such as"),
        ("TIMESTAMP_NTZ", '"2026-01-31T12:00:00Z"', "a is no TIMESTAMP_NTZ such as"),
        ("DECIMAL(5, 2)", "1.255", "a is no DECIMAL(5, 2): it has more digits"),
        ("DECIMAL(5, 2)", "12345", "a is no DECIMAL(5, 2): it has more digits"),
        ("DECIMAL(5, 2)", '"1_0"', "a is no DECIMAL(5, 2): its text is no number"),
        ("DECIMAL(5, 2)", '"NaN"', "a is no DECIMAL(5, 2): its text is no number"),
        ("DECIMAL(5, 2)", "1e9999999999", "a is no DECIMAL(5, 2): it has more digits"),
        ("DECIMAL(5, 2)", '""', "a is no DECIMAL(5, 2): its text is no number"),
        ("ARRAY<INT>", "{}", "a is ARRAY, and the document has an object"),
        ("ARRAY<INT>", '["x"]', "a[] is INT, and the document has a string"),
        ("STRUCT<x: INT>", "[]", "a is STRUCT, and the document has an array"),
        ("STRUCT<x: INT>", '{"x": 1, "x": 1}', "a has a field twice"),
        ("STRUCT<x: INT NOT NULL>", "{}", "a.x is NOT NULL, and is missing or null"),
        ("INT NOT NULL", "null", "a is NOT NULL, and is missing or null"),
        ("MAP<STRING, INT>", '{"x": 1.5}', "a[] is no INT: it has a fraction or an exponent"),
        ("MAP<STRING, INT>", '{"x": 1, "x": 1}', "a has a field twice"),
        ("MAP<STRING, INT>", "[]", "a is MAP, and the document has an array"),
    ],
)
@pytest.mark.parametrize("beside", ["", ", m MAP<STRING, INT>"], ids=["fast", "slow"])
def test_another_value_is_bad_and_the_reason_has_no_data(
    kind: str, written: str, reason: str, beside: str
) -> None:
    bad = f'{{"a": {written}}}'
    good = '{"a": null}' if "NOT NULL" not in kind or "STRUCT" in kind else '{"a": 1}'
    found = read(f"a {kind}{beside}", good, bad, good)
    assert found[1].startswith(reason)
    assert found[0] == found[2] == json.loads(good)["a"]


@pytest.mark.parametrize(
    "document",
    [
        "",
        " ",
        "1",
        "[1]",
        '"x"',
        '{"a": 1',
        '{"a": 1}{"a": 2}',
        '{"a": 1}\n{"a": 2}',
        '{"a": 1}}\n{"document":{"a":2}',
        '{"a": 1},"x":7',
        '{"a": 1}//',
        '{"a": "' + "x" * 100,
        b"\xff",
        b"\xef\xbb\xbf{}",
        '\x0b{"a": "x"}',
        '{"a": "x"}\x0c',
        b'{"a": "\xed\xa0\x80"}',
        "[" * DEEP,
        '{"a":' * DEEP,
    ],
)
def test_what_is_not_one_document_moves_no_other(document: str | bytes) -> None:
    good = '{"a": "good"}'
    found = read("a STRING", good, document, good, good)
    assert (found[0], *found[2:]) == ("good", "good", "good")
    assert found[1] not in {None, "x"}


def test_what_is_ignored_may_be_deep_and_come_twice() -> None:
    deep = f'{{"b": {"[" * DEEP}{"]" * DEEP}, "c": 1, "c": 2, "a": 1}}'
    assert read("a INT", deep, "{}") == [1, None]
    assert read("a INT", deep, '{"a": ""}')[0] == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1}{"a": 2}', ""),
        ('{"a": 1}\n{"a": 2}', " "),
        ('{"a": 1}\n{"a": 2}', '{"b": "}'),
        ('{"b": {"c": 1}', '{"a": 2}}'),
        ('{"b": {"c": 1}', ', "a": 2}'),
        ('{"b": [{"c": 1}', ', {"a": 2}]}'),
        ('{"b": "}', '{", "a": 1}{"a": 2}'),
        ('{"b": "\\}', '{\\", "a": 1}{"a": 2}'),
        ('{"b": "\\\\}', '{", "a": 1}{"a": 2}'),
        ('{"b": [1, 2}', '{"a": 2}]}'),
    ],
)
def test_two_documents_that_are_two_objects_together_are_bad(one: str, other: str) -> None:
    found = read("a INT", '{"a": 0}', one, other, '{"a": 3}')
    assert (found[0], found[3]) == (0, 3)
    assert isinstance(found[1], str)
    assert isinstance(found[2], str) or other == '{"a": 2}}'


def test_bad_rows_are_found_without_many_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 0
    whole = JsonColumns._read_all

    def counted(self: JsonColumns, payloads: pa.BinaryArray) -> pa.StructArray:
        nonlocal rows
        rows += len(payloads)
        return whole(self, payloads)

    monkeypatch.setattr(JsonColumns, "_read_all", counted)
    documents = ['{"a": 1}'] * 10_000
    documents[7_001] = '{"a": "x"}'
    assert read("a INT", *documents)[7_001] == "a is INT, and the document has a string"
    assert rows < 4.1 * len(documents)


def test_the_reason_is_that_of_the_row_and_the_rest_is_decoded() -> None:
    rows = [{"value": v, "topic": "t", "partition": 0, "offset": n} for n, v in enumerate(PAYLOADS)]
    records = pa.RecordBatch.from_pylist(rows, schema=KAFKA)
    with pytest.raises(BadRowsError) as caught:
        Json("id BIGINT")(records)
    assert str(caught.value) == (
        "2 of the rows cannot be converted; row 1: value: id is BIGINT, and the document has a "
        "string"
    )
    assert CANARY not in repr(caught.value.errors)
    assert caught.value.errors.keys() == {1, 3}
    assert caught.value.decoded.to_pylist() == [
        {"topic": "t", "partition": 0, "offset": 0, "id": 1},
        {"topic": "t", "partition": 0, "offset": 2, "id": 2},
    ]


PAYLOADS = [b'{"id": 1}', f'{{"id": "{CANARY}"}}'.encode(), b'{"id": 2}', CANARY.encode()]
KAFKA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)


def one(**values: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([values], schema=KAFKA)


def test_columns_stay_beside_and_the_key_is_decoded_too() -> None:
    decode = Json(
        "id BIGINT", into="order", columns=["timestamp"], key=Json("customer STRING", into="key")
    )
    records = one(key=b'{"customer": "c"}', value=b'{"id": 1}', topic="t", partition=1, offset=2)
    assert decode(records).to_pylist() == [
        {
            "topic": "t",
            "partition": 1,
            "offset": 2,
            "timestamp": None,
            "order": {"id": 1},
            "key": {"customer": "c"},
        }
    ]
    records = one(key=b"{}", topic="t", partition=1, offset=2)
    assert decode(records).column("order").to_pylist() == [None]
    with pytest.raises(BadRowsError, match="key: customer is STRING, and the document has a num"):
        decode(one(key=b'{"customer": 1}'))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schema": "offset BIGINT"}, "two columns have the name 'offset': put the fields into"),
        ({"columns": ["offsets"]}, "columns has 'offsets', and the source has key, value"),
    ],
)
def test_options_that_do_not_fit_the_source_are_named(options: Any, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        Json(**{"schema": "id BIGINT"} | options)(one())
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schema": 5}, "schema=5 must be a pyarrow.Schema with fields"),
        ({"schema": pa.schema([])}, "must be a pyarrow.Schema with fields"),
        ({"schema": "a BINARY"}, "schema has a of the type binary, for which JSON has no form"),
        ({"schema": "a ARRAY<BINARY>"}, "schema has a[] of the type binary"),
        ({"schema": pa.schema([("a", pa.int8())] * 2)}, "schema names a field twice"),
        ({"schema": pa.schema([("a", pa.map_(pa.int8(), pa.int8()))])}, "JSON has no form"),
        ({"columns": "key"}, "columns='key' must be a sequence of names"),
        ({"into": ""}, "into='' must be the name of a column"),
        ({"key": "id INT"}, "key='id INT' must be a decoder, such as Json"),
        ({"key": Json("a INT", columns=["key"])}, "key has a decoder with columns or a key"),
    ],
)
def test_a_malformed_option_is_named(options: Any, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        Json(**{"schema": "id BIGINT"} | options)
    assert words in str(caught.value)


def test_it_is_a_value_that_other_processes_get() -> None:
    decode = Json("id BIGINT, m MAP<STRING, INT>", columns=["key"], key=Json("a INT", into="k"))
    assert pickle.loads(pickle.dumps(decode)) == decode  # noqa: S301
    assert len({decode, pickle.loads(pickle.dumps(decode))}) == 1  # noqa: S301
    assert decode != Json("id BIGINT")


def test_there_is_no_key_in_kinesis() -> None:
    kinesis = pa.RecordBatch.from_pylist([], schema=pa.schema([("data", pa.binary())]))
    with pytest.raises(OptionError, match="key is for Kafka"):
        Json("id BIGINT", key=Json("id BIGINT"))(kinesis)
    with pytest.raises(OptionError, match="no column 'value' or 'data' of bytes"):
        Json("id BIGINT")(kinesis.drop_columns(["data"]))


ATOMS = ["BIGINT", "TINYINT", "DOUBLE", "BOOLEAN", "STRING", "DATE", "TIMESTAMP", "DECIMAL(6, 2)"]


def fields_of(kinds: list[str]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in zip("abc", kinds, strict=False))


KINDS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: (
        inner.map(lambda kind: f"ARRAY<{kind}>")
        | st.lists(inner, min_size=1, max_size=3).map(lambda kinds: f"STRUCT<{fields_of(kinds)}>")
    ),
    max_leaves=5,
)
WRITTEN = [
    *("1", "1.0", "-1e2", "300", "9223372036854775808", "1e999", "0.125", "123456", "-0.0", "NaN"),
    *("true", "null", '""', '"x"', '"2026-01-31"', '"2026-01-31T12:00:00Z"', '"1.5"', '"\\ud800"'),
    *('"2026-01-31T12:00:00.123456789Z"', '"0000-01-01T00:00:00Z"', '"\\n"', "", '"\x01"', "tr"),
]
DOCUMENTS = st.recursive(
    st.sampled_from(WRITTEN),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda each: f"[{','.join(each)}]")
        | st.lists(st.tuples(st.sampled_from("abcd"), inner), max_size=4).map(
            lambda pairs: "{" + ",".join(f'"{name}": {each}' for name, each in pairs) + "}"
        )
    ),
    max_leaves=8,
)


@pytest.mark.long
@settings(max_examples=3 * settings().max_examples)
@given(st.lists(KINDS, min_size=1, max_size=3), st.lists(DOCUMENTS, min_size=1, max_size=6))
@example(["ARRAY<DOUBLE>"], ['{"a": [1, null]}', '{"a": null}'])
def test_the_fast_way_reads_what_the_slow_one_reads(kinds: list[str], documents: list[str]) -> None:
    schema = Json(fields_of(kinds)).schema
    assert isinstance(schema, pa.Schema)
    columns = JsonColumns(schema)
    payloads = [each.encode() for each in documents]
    values, problems = columns.read(pa.array(payloads, pa.binary()))
    for row, payload in enumerate(payloads):
        try:
            expected = pa.array([parse(payload, pa.struct(list(schema)))], columns.kind)
        except MismatchError:
            assert row in problems
            continue
        # Arrow's reader minds these where they are ignored, too.
        if row in problems:
            assert b"1e999" in payload or b"ud800" in payload
            continue
        assert values.slice(row, 1).equals(expected)


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=2 * settings().max_examples)
@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1),
            st.text(),
            st.floats(allow_nan=False, allow_infinity=False),
            st.lists(st.booleans() | st.none()) | st.none(),
            JSONS,
        ),
        max_size=20,
    ),
    st.booleans(),
    st.sampled_from([None, 2]),
)
def test_what_python_writes_is_read_as_it_was(
    rows: list[Any],
    ascii_only: bool,  # noqa: FBT001
    indent: Any,
) -> None:
    names = ["a", "b", "c", "d", "e"]
    documents = [
        json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=ascii_only, indent=indent)
        for row in rows
    ]
    payloads = pa.array([each.encode() for each in documents], pa.binary())
    values, problems = Json("a BIGINT, b STRING, c DOUBLE, d ARRAY<BOOLEAN>").read(payloads)
    assert problems == {}
    assert [tuple(row.values()) for row in values.to_pylist()] == [row[:4] for row in rows]


@pytest.mark.parametrize(
    ("kind", "number", "value"),
    [
        ("DECIMAL(38, 18)", "400000000000000000007", None),
        ("DECIMAL(38, 10)", "247069427001937979153296277580", None),
        ("DECIMAL(38, 18)", "40000000000000000000.7", "40000000000000000000.700000000000000000"),
        ("DECIMAL(38, 0)", f"{10**38 - 1}", f"{10**38 - 1}"),
        ("DECIMAL(38, 0)", f"{2**127}", None),
        ("DECIMAL(5, 2)", "340282366920938463463374607431768211461", None),
        ("DECIMAL(5, 2)", "9" * 60, None),
        ("DECIMAL(5, 2)", "999.990", "999.99"),
        ("DECIMAL(5, 2)", "99999e-2", "999.99"),
        ("DECIMAL(5, 2)", "1e3", None),
        ("DECIMAL(5, 2)", "1.001", None),
    ],
)
def test_a_decimal_never_becomes_another_one(kind: str, number: str, value: str | None) -> None:
    wanted = None if value is None else Decimal(value)
    for schema, document in {
        f"a {kind}": f'{{"a": {number}}}',
        f"a MAP<STRING, {kind}>": f'{{"a": {{"k": {number}}}}}',
    }.items():
        found, _, good = read(schema, document, "no", '{"a": null}')
        assert good is None
        got = found[0][1] if isinstance(found, list) else found
        assert (got if isinstance(got, Decimal) else None) == wanted


def test_many_bad_documents_take_no_more_passes_than_few(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[int] = []
    read_all = JsonColumns._read_all

    def counted(self: JsonColumns, payloads: pa.BinaryArray) -> pa.StructArray:
        passed.append(len(payloads))
        return read_all(self, payloads)

    monkeypatch.setattr(JsonColumns, "_read_all", counted)
    documents = [b"{}" if number % 3 else b"no" for number in range(6000)]
    found, problems = JsonColumns(pa.schema([("a", pa.int32())])).read(
        pa.array(documents, pa.binary())
    )
    assert len(found) == 6000
    assert problems.keys() == set(range(0, 6000, 3))
    assert sum(passed) < 6 * 6000


def test_what_only_one_of_two_readers_takes_is_good_beside_bad_ones() -> None:
    ignored = ['{"b": 1e999, "a": 1}', '{"b": "\\ud800", "a": 1}', '{"\\ud800": 1, "a": 1}']
    deep = f'{{"b": {"[" * DEEP}{"]" * DEEP}, "a": 1}}'
    assert read("a INT", *ignored, deep) == [1, 1, 1, 1]
    assert read("a INT", "no", *ignored, deep)[1:] == [1, 1, 1, 1]


@pytest.mark.parametrize("beside", [[], [("m", pa.map_(pa.string(), pa.int64()))]])
def test_an_item_that_is_not_null_is_bad_where_it_is_null(beside: list[Any]) -> None:
    whole = pa.field("item", pa.int64(), nullable=False)
    schema = pa.schema([("a", pa.list_(whole)), *beside])
    documents = ['{"a": [1]}', '{"a": [1, null]}', '{"a": null}', None, '{"a": []}', "{}"]
    assert read(schema, *documents) == [
        [1],
        "a[] is NOT NULL, and is null",
        *[None, None, [], None],
    ]
    values = pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))
    found = read(pa.schema([("a", values), *beside]), '{"a": {"x": 1}}', '{"a": {"x": null}}')
    assert found == [[("x", 1)], "a[] is NOT NULL, and is null"]


@pytest.mark.parametrize("more", ["", ", m MAP<STRING, INT>"])
@pytest.mark.parametrize("framing", ["none", "confluent"])
def test_fields_that_the_schema_lacks_are_kept_as_they_were_written(
    more: str, framing: Any
) -> None:
    decode = Json(f"a BIGINT{more}", rescued="rest", framing=framing)
    documents = {
        '{"a": 1}': None,
        "{}": None,
        ' { "x" : [1, {"y": "}"}] , "a" : 2 , "é\\u0061\\"": 1.50e3 } ': (
            '{"x" : [1, {"y": "}"}],"é\\u0061\\"": 1.50e3}'
        ),
        '{"A":123456789012345678901234567890,"a":3}': '{"A":123456789012345678901234567890}',
        f'{{"n":{"1" * 5000},"b":null,"b":true}}': f'{{"n":{"1" * 5000},"b":null,"b":true}}',
        '{"\\u0061": 5, "t": "\\ud800"}': '{"t": "\\ud800"}',
        "null": None,
    }
    head = b"" if framing == "none" else b"\0\0\0\0\1"
    bad = ['{"a": "x", "b": 1}', '{"a": 1, "b": NaN}', "{", '\f{"a": 1, "b": 2}']
    payloads = [head + each.encode() for each in [*documents, *bad]]
    found, problems = decode.read(pa.array([*payloads, None], pa.binary()))
    assert found.type.field(found.type.num_fields - 1) == pa.field("rest", pa.string())
    assert sorted(problems) == [7, 8, 9, 10]
    assert problems[8] == "it has NaN, which JSON has not"
    rows = [None if row is None else row["rest"] for row in found.to_pylist()]
    assert rows[:7] == list(documents.values())
    assert found.is_null().to_pylist()[6:] == [True, True, False, True, True, True]
    empty = decode.read(pa.array([], pa.binary()))[0]
    assert empty.type == found.type


def test_what_is_rescued_goes_where_the_columns_go() -> None:
    decode = Json("a INT", rescued="rest")
    places = {"topic": ["t"], "partition": pa.array([0], pa.int32()), "offset": [0]}
    batch = pa.RecordBatch.from_pydict({"value": [b'{"a":1,"b":2}'], **places})
    (row,) = decode(batch).to_pylist()
    assert (row["a"], row["rest"]) == (1, '{"b":2}')
    encoded = decode.encode(decode(batch))
    assert encoded["value"].to_pylist() == [b'{"a":1}']
    assert decode.reading(Json("a INT, b INT").reader) == Json("a INT, b INT", rescued="rest")
    with pytest.raises(OptionError, match="rescued='a' is a field of the schema, too"):
        Json("a INT", rescued="a")
    deep = pa.array([b'{"x":' + b"[" * DEEP + b"]" * DEEP + b"}"], pa.binary())
    assert decode.read(deep)[1].keys() == {0}
