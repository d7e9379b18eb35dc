from __future__ import annotations

import pyarrow as pa
import pytest

from fanout.decoding.ddl import parse_ddl, sql_name
from fanout.errors import OptionError


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("id BIGINT, name STRING", [("id", pa.int64()), ("name", pa.string())]),
        (" a int,b: double ", [("a", pa.int32()), ("b", pa.float64())]),
        ("`a b``c` date", [("a b`c", pa.date32())]),
        ("p decimal", [("p", pa.decimal128(10, 0))]),
        (
            "p numeric( 5 ), q dec(38,38)",
            [("p", pa.decimal128(5, 0)), ("q", pa.decimal128(38, 38))],
        ),
        ("at timestamp COMMENT 'it''", None),
        ("at timestamp COMMENT 'a, \\' b' , x boolean", None),
        ("t timestamp_ntz", [("t", pa.timestamp("us"))]),
        ("m map<string,array<int>>", [("m", pa.map_(pa.string(), pa.list_(pa.int32())))]),
    ],
)
def test_a_text_like_sparks_becomes_a_schema(
    text: str, fields: list[tuple[str, pa.DataType]] | None
) -> None:
    if fields is None and "\\'" not in text:
        with pytest.raises(OptionError):
            parse_ddl(text)
    elif fields is None:
        assert parse_ddl(text).names == ["at", "x"]
    else:
        assert parse_ddl(text) == pa.schema(fields)


def test_structs_nest_and_fields_may_be_not_null() -> None:
    schema = parse_ddl("a struct<b: array<struct<c bigint not null>>, d string> NOT NULL")
    item = pa.struct([pa.field("c", pa.int64(), nullable=False)])
    kind = pa.struct([("b", pa.list_(item)), ("d", pa.string())])
    assert schema == pa.schema([pa.field("a", kind, nullable=False)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "its end where the name of a field"),
        ("id", "its end where a type"),
        ("id BIGNIT", "unknown type BIGNIT: take one of BOOLEAN"),
        ("id BIGINT name STRING", "'name STRING' where ',' or the end"),
        ("id BIGINT,", "its end where the name of a field"),
        ("id BIGINT, id STRING", "names the field 'id' twice"),
        ("a array<int", "its end where '>'"),
        ("a array int", "'int' where '<'"),
        ("p decimal(39, 2)", "it has 1 to 38 digits"),
        ("p decimal(2, 3)", "no more than these behind the point"),
        ("p decimal(x)", "'x)' where a number of digits"),
        ("a int COMMENT b", "'b' where the text of the comment"),
        ("a int NOT", "its end where 'NULL'"),
        ("a int; b int", "'; b int' where ',' or the end"),
        ("a " + "array<" * 100, "nests more than 64 types"),
    ],
)
def test_an_error_says_what_is_expected_where(text: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_ddl(text)
    assert words in str(caught.value)
    assert str(caught.value).startswith("schema=")


def test_each_type_has_the_name_that_sql_gives_it() -> None:
    for text in ("TINYINT", "INT", "BIGINT", "TIMESTAMP", "DECIMAL(5, 2)"):
        assert sql_name(parse_ddl(f"a {text}").field("a").type) == text
    assert [sql_name(each.type) for each in parse_ddl("a array<int>, b map<string, int>")] == [
        "ARRAY",
        "MAP",
    ]
    assert sql_name(pa.uint8()) == "uint8"
