from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from fanout.decoding import Json
from fanout.errors import OptionError

ORDER: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["id", "note"],
    "properties": {
        "id": {"type": "integer"},
        "amount": {"type": ["integer", "number"]},
        "note": {"type": ["string", "null"]},
        "paid": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "state": {"enum": ["new", "done"]},
        "items": {"type": "array", "items": {"$ref": "#/$defs/an~1item"}},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "$defs": {"an/item": {"type": "object", "properties": {"sku": {"type": "string"}}}},
}


@pytest.mark.parametrize("given", [ORDER, json.dumps(ORDER)], ids=["mapping", "text"])
def test_a_json_schema_says_the_types_of_the_columns(given: Any) -> None:
    assert Json(given).schema == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("amount", pa.float64()),
            ("note", pa.string()),
            ("paid", pa.bool_()),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("state", pa.string()),
            ("items", pa.list_(pa.struct([("sku", pa.string())]))),
            ("tags", pa.map_(pa.string(), pa.string())),
        ]
    )


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": ["string", "integer"]}, "#/properties/a must have one type, besides null"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "#/properties/a/oneOf must be"),
        ({}, "#/properties/a names no type"),
        ({"type": "strnig"}, "#/properties/a has an unknown type"),
        ({"type": "array"}, "#/properties/a/items must be an object"),
        ({"type": "object"}, "#/properties/a is an object without properties"),
        ({"$ref": "other.json"}, "#/properties/a refers to another document"),
        ({"$ref": "#/$defs/b"}, "#/properties/a refers to #/$defs/b, which is not there"),
        ({"$ref": "#"}, "contains itself"),
    ],
)
def test_what_has_no_type_of_a_column_is_named(part: Any, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        Json({"type": "object", "properties": {"a": part}})
    assert words in str(caught.value)


def test_the_whole_is_an_object() -> None:
    with pytest.raises(OptionError, match="# must describe an object"):
        Json({"type": "array", "items": {"type": "string"}})
    with pytest.raises(OptionError, match=r"begins with '\{', and is no JSON"):
        Json("{'type': 1}")
