"""`decode=Json("id BIGINT, name STRING")`."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, final

import pyarrow as pa

from fanout.core.sentence import Option
from fanout.decoding.ddl import parse_ddl
from fanout.decoding.decoder import Decoder
from fanout.decoding.json_columns import JsonColumns
from fanout.decoding.json_schema import parse_json_schema
from fanout.errors import OptionError

# How a schema begins that is stored.
_STORED: Final = "json "
_ATOMS: Final = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_timestamp,
    pa.types.is_date32,
    pa.types.is_decimal128,
)


@final
@dataclass(frozen=True, slots=True)
class Json(Decoder):
    """Decodes records that are JSON objects, as `decode=Json("id BIGINT, name STRING")`.

    A field is found by its name. Fields that the schema does not have are ignored, and one that is
    missing is null. A value is equal to that of the document, or the record is bad: a number with a
    fraction is no BIGINT, and a time without a zone is no TIMESTAMP.

    Args:
        schema: The fields, as text like Spark's, a `pyarrow.Schema`, or a JSON Schema as text or
            mapping.

    Raises:
        OptionError: If an option is malformed, or JSON has no form for a type.
    """

    schema: pa.Schema | str | Mapping[str, Any]

    def __post_init__(self) -> None:
        Decoder.__post_init__(self)
        object.__setattr__(self, "schema", _parse(self.schema))

    @property
    def reader(self) -> str:
        """The schema that it reads with."""
        assert isinstance(self.schema, pa.Schema), "it is parsed"
        return _STORED + base64.b64encode(self.schema.serialize()).decode()

    def reading(self, reader: str) -> Json:
        """Return a decoder that reads with a stored schema."""
        if not reader.startswith(_STORED):
            return self
        stored = base64.b64decode(reader.removeprefix(_STORED))
        return replace(self, schema=pa.ipc.read_schema(pa.py_buffer(stored)))

    def read(self, payloads: pa.BinaryArray) -> tuple[pa.StructArray, dict[int, str]]:
        """Return a struct for each payload, null for null, and why rows cannot be read."""
        return _columns(self.schema).read(payloads)


@lru_cache(maxsize=128)
def _columns(schema: pa.Schema) -> JsonColumns:
    return JsonColumns(schema)


def _parse(given: object) -> pa.Schema:
    schema = given
    if isinstance(given, str):
        try:
            schema = json.loads(given) if given.lstrip().startswith("{") else parse_ddl(given)
        except (ValueError, RecursionError) as error:
            if isinstance(error, OptionError):
                raise
            raise OptionError(Option("schema"), " begins with '{', and is no JSON") from error
    if isinstance(schema, Mapping):
        schema = parse_json_schema(schema)
    if not isinstance(schema, pa.Schema) or not schema.names:
        raise OptionError(
            Option("schema", given),
            " must be a pyarrow.Schema with fields, or a text such as 'id BIGINT, name STRING'",
        )
    schema = schema.remove_metadata()
    if len(set(schema.names)) < len(schema.names):
        raise OptionError(Option("schema"), " names a field twice")
    for field in schema:
        _check(field.type, field.name)
    return schema


def _check(kind: pa.DataType, path: str) -> None:
    """Check that JSON has a form for a type, and for those in it."""
    if pa.types.is_struct(kind) and kind.num_fields:
        for field in kind:
            _check(field.type, f"{path}.{field.name}")
    elif pa.types.is_list(kind) or (pa.types.is_map(kind) and kind.key_type == pa.string()):
        _check(kind.value_type if pa.types.is_list(kind) else kind.item_type, f"{path}[]")
    elif not (kind in {pa.float32(), pa.float64()} or any(is_kind(kind) for is_kind in _ATOMS)):
        raise OptionError(
            Option("schema"),
            f" has {path} of the type {kind}, for which JSON has no form: take STRING, or another",
        )
