"""`decode=Json("id BIGINT, name STRING")`."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, Literal, final

import pyarrow as pa
import pyarrow.compute as pc

from fanout.core.option_checks import check_text, one_of
from fanout.core.sentence import Option
from fanout.decoding.ddl import parse_ddl
from fanout.decoding.decoder import (
    FRAMES,
    GUID,
    GUID_SIZE,
    Decoder,
    before_payload,
    decompressed,
    frame_of,
)
from fanout.decoding.json_columns import JsonColumns
from fanout.decoding.json_encoding import json_pieces
from fanout.decoding.json_schema import parse_json_schema
from fanout.decoding.json_values import MismatchError, rest_of
from fanout.decoding.pieces import written
from fanout.errors import OptionError

# Without a stop, Arrow sizes a buffer by one that overflows.
_MOST_BYTES: Final = (1 << 31) - 1
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
    """Decodes JSON objects, as `decode=Json("id BIGINT, name STRING")`, and encodes them.

    A field is found by its name. Fields that the schema does not have are ignored, and one that is
    missing is null. A value is equal to that of the document, or the record is bad: a number with a
    fraction is no BIGINT, and a time without a zone is no TIMESTAMP.

    Args:
        schema: The fields, as text like Spark's, a `pyarrow.Schema`, or a JSON Schema as text or
            mapping.
        framing: What stands before each document: `"none"`; `"confluent"`, 0 and the id of a
            schema; or `"glue"`, 3 and the id of a version. It is read over: the registry is not
            asked.
        schema_id: The id that `encode` writes before each document, a number or a UUID; a UUID of
            Confluent's framing is written into a header.
        rescued: The name of a column for fields that the schema does not have: the text of an
            object with them, as they were written, or null. Those inside of a field are ignored.
            None ignores all. `encode` leaves the column out.

    Raises:
        OptionError: If an option is malformed, or JSON has no form for a type.
    """

    schema: pa.Schema | str | Mapping[str, Any]
    framing: Literal["none", "confluent", "glue"] = field(default="none", kw_only=True)
    schema_id: int | str | None = field(default=None, kw_only=True)
    rescued: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        Decoder.__post_init__(self)
        object.__setattr__(self, "schema", _parse(self.schema))
        one_of("framing", self.framing, "none", "confluent", "glue")
        frame_of(self.framing, self.schema_id)  # checks it
        check_text("rescued", self.rescued)
        if self.rescued in self._names:
            raise OptionError(Option("rescued", self.rescued), " is a field of the schema, too")

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
        problems: dict[int, str] = {}
        if self.framing == "glue":
            payloads, problems = decompressed(payloads)
        if self.framing != "none":
            begin, size, missing = FRAMES[self.framing]
            if self.framing == "glue":
                begin += b"\0"  # what was compressed is no longer
            framed = _begins(payloads, begin, size)
            is_guid = _begins(payloads, GUID, GUID_SIZE)
            if self.framing == "confluent":
                framed = pc.or_(framed, is_guid)
            bad = pc.indices_nonzero(pc.invert(framed)).to_pylist()
            problems |= dict.fromkeys(bad, missing)
            bodies = pc.binary_slice(payloads, size, _MOST_BYTES)
            if self.framing == "confluent" and pc.any(is_guid).as_py():
                bodies = pc.if_else(
                    is_guid, pc.binary_slice(payloads, GUID_SIZE, _MOST_BYTES), bodies
                )
            payloads = pc.if_else(framed, bodies, None)
        found, others = _columns(self.schema).read(payloads)
        problems = {**others, **problems}
        return found if self.rescued is None else self._with_rest(
            payloads, found, problems
        ), problems

    @property
    def _names(self) -> list[str]:
        assert isinstance(self.schema, pa.Schema), "it is parsed"
        names: list[str] = self.schema.names
        return names

    def _with_rest(
        self, payloads: pa.BinaryArray, found: pa.StructArray, problems: dict[int, str]
    ) -> pa.StructArray:
        """Add the fields that the schema lacks, and note which records are bad."""
        names, rest = frozenset(self._names), list[str | None]()
        for row, there in enumerate(found.is_valid().to_pylist()):
            text = None
            if there and row not in problems:
                try:
                    text = rest_of(payloads[row].as_py().decode(), names)
                except MismatchError as error:
                    problems[row] = str(error)
            rest.append(text)
        columns = [*found.flatten(), pa.array(rest, pa.string())]
        fields = [*found.type, pa.field(self.rescued, pa.string())]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=found.is_null())

    @property
    def frame(self) -> bytes:
        """What names the schema of each document."""
        return frame_of(self.framing, self.schema_id)

    def write(self, fields: pa.StructArray) -> tuple[pa.BinaryArray, dict[int, str]]:
        """Return the document of each struct, null for null, and why rows cannot be encoded."""
        if self.framing != "none" and self.schema_id is None:
            raise OptionError("encode needs ", Option("schema_id"), f" with {self.framing!r}")
        frame = before_payload(self.frame)
        whole = pa.field("", pa.struct(list(self.schema)))
        return written(fields, frame, lambda values, rows: json_pieces(whole, values, "", rows))


def _begins(payloads: pa.BinaryArray, begin: bytes, size: int) -> pa.BooleanArray:
    lengths = pc.binary_length(payloads)
    return pc.and_(pc.starts_with(payloads, begin), pc.greater_equal(lengths, size))


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
    for column in schema:
        _check(column.type, column.name)
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
