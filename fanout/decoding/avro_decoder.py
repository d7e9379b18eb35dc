"""`decode=Avro(schema)` and `decode=Avro(schema, registry=SchemaRegistry(url))`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

import numpy as np
import pyarrow as pa

from fanout.core.option_checks import as_sequence, one_of
from fanout.core.sentence import Option
from fanout.decoding.avro_columns import Column, read_columns
from fanout.decoding.avro_encoding import avro_pieces
from fanout.decoding.avro_plan import UnresolvedError, arrow_type, check_defaults, plan
from fanout.decoding.avro_schema import PRIMITIVES, AvroField, AvroType, parse_avro
from fanout.decoding.decoder import (
    FRAMES,
    Decoder,
    before_payload,
    decompressed,
    frame_of,
    frames_of,
    size_of,
)
from fanout.decoding.pieces import written
from fanout.decoding.registry import AnyRegistry, Id, Newest, Schemas, schema_texts
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# How a schema begins that is stored.
_STORED: Final = "avro "
_EMPTY: Final = 0xC15D213AA4D7A795
_Framing: TypeAlias = Literal["confluent", "glue", "single-object", "none"]
_OF_REGISTRIES: Final = {"confluent": "SchemaRegistry", "glue": "GlueSchemaRegistry"}


@final
@dataclass(frozen=True, slots=True)
class Avro(Decoder):
    """Decodes Avro, as `decode=Avro(schema, registry=SchemaRegistry(url))`, and encodes it.

    The columns are those of `schema`. Records that were written with another one are resolved to it
    by Avro's rules; the types are those of Spark's `from_avro`.

    Args:
        schema: The schema to read with: the text of an .avsc file, what Python has of it, or what
            `SchemaRegistry.latest` returns.
        registry: Where schemas are that records name by their id, a `SchemaRegistry` or a
            `GlueSchemaRegistry`; None where all records are written with `schema`, or with one of
            `writers`.
        framing: What stands before each record: `"confluent"`, 0 and the id of a schema, or
            `"glue"`, 3 and the id of a version, the defaults with their registries;
            `"single-object"`, Avro's own, with a fingerprint; or `"none"`, the default without a
            registry.
        writers: More schemas that records are written with, for `"single-object"`.
        schema_id: The id of `schema` in the registry, which `encode` writes before each record, or
            its GUID, for a header: what `id_of` of the registry returns.

    Raises:
        OptionError: If an option is malformed, or a type has no column.
    """

    schema: str | Mapping[str, Any] | Sequence[Any]
    registry: AnyRegistry | None = field(default=None, kw_only=True)
    framing: _Framing | None = field(default=None, kw_only=True)
    writers: Sequence[str | Mapping[str, Any]] = field(default=(), kw_only=True)
    schema_id: int | str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        Decoder.__post_init__(self)
        if self.registry is not None and not isinstance(self.registry, AnyRegistry):
            names = " or a ".join(_OF_REGISTRIES.values())
            raise OptionError(Option("registry"), f" must be a {names}")
        own = "none" if self.registry is None else self.registry.framing
        if self.framing is None:
            object.__setattr__(self, "framing", own)
        one_of("framing", self.framing, *FRAMES)
        if self.framing != own and self.framing in _OF_REGISTRIES:
            name = _OF_REGISTRIES[self.framing]
            raise OptionError(Option("framing", self.framing), f" needs a registry, a {name}")
        if own not in {self.framing, "none"}:
            raise OptionError("a registry is for ", Option("framing", own))
        if self.writers and self.framing != "single-object":
            raise OptionError(Option("writers"), " are for ", Option("framing", "single-object"))
        frame_of(str(self.framing), self.schema_id)  # checks it
        object.__setattr__(self, "schema", schema_texts(self.schema))
        writers = as_sequence("writers", self.writers, "a list of schemas")
        object.__setattr__(self, "writers", tuple(schema_texts(each) for each in writers))
        record = _as_record(parse_avro(*self.schema))
        plan(record, record)  # checks that it has columns
        check_defaults(record)

    @property
    def reader(self) -> str:
        """The schema that it reads with."""
        return _STORED + json.dumps(self.schema)

    @property
    def resolves(self) -> bool:
        """Whether frames name the schemas of records."""
        return self.framing != "none"

    @property
    def is_newest(self) -> bool:
        """Whether the schema is what `latest` of a registry returned, and a stored one can read."""
        return self.resolves and isinstance(self.schema, Newest)

    def reading(self, reader: str) -> Avro:
        """Return a decoder that reads with a stored schema."""
        if not reader.startswith(_STORED):
            return self
        schema = tuple(json.loads(reader.removeprefix(_STORED)))
        if schema == self.schema:
            return self
        own: Any = (self.schema,) if self.framing == "single-object" else ()
        return replace(self, schema=schema, writers=(*own, *self.writers))

    async def fetch(self, payloads: pa.BinaryArray) -> None:
        """Ask the registry for the schemas of records that it was not asked for."""
        if self.registry is not None:
            _, _, groups = self._frames(payloads)
            await self.registry.load([each for each, _ in groups if each is not None])

    def read(self, payloads: pa.BinaryArray) -> tuple[pa.StructArray, dict[int, str]]:
        """Return a struct for each payload, null for null, and why rows cannot be read."""
        if not len(payloads):
            return pa.array([], _reader(self.schema)), {}
        problems: dict[int, str] = {}
        if self.framing == "glue":
            payloads, problems = decompressed(payloads)
        data, (begins, ends), groups = self._frames(payloads)
        order = np.full(len(payloads), -1)
        pieces = [pa.array([], _reader(self.schema))]
        there = np.flatnonzero(payloads.is_valid().to_numpy(zero_copy_only=False))
        size = 0
        for number, of_it in groups:
            rows = there[of_it]
            column = self._column(number)
            if isinstance(column, str):
                problems |= dict.fromkeys(rows.tolist(), column)
                continue
            bodies = begins[of_it] + size_of(str(self.framing), number)
            values, bad = read_columns(column, data, bodies, ends[of_it])
            problems |= {int(rows[row]): reason for row, reason in bad.items()}
            pieces.append(values)
            order[rows] = np.arange(size, size + len(rows))
            size += len(rows)
        if len(pieces[1:]) == 1 and size == len(payloads):
            return pieces[1], problems
        return pa.concat_arrays(pieces).take(pa.array(order, mask=order < 0)), problems

    @property
    def frame(self) -> bytes:
        """What names the schema of each record."""
        if self.framing == "single-object":
            return FRAMES["single-object"][0] + _fingerprint(self.schema).to_bytes(8, "little")
        return frame_of(str(self.framing), self.schema_id)

    def write(self, fields: pa.StructArray) -> tuple[pa.BinaryArray, dict[int, str]]:
        """Return the payload of each struct, null for null, and why rows cannot be encoded."""
        if self.registry is not None and self.schema_id is None:
            raise OptionError(
                "encode needs ", Option("schema_id"), ": id_of of the registry has it"
            )
        kind = _as_record(parse_avro(*self.schema))
        frame = before_payload(self.frame)
        return written(fields, frame, lambda values, rows: avro_pieces(kind, values, "", rows))

    def _frames(self, payloads: pa.BinaryArray) -> Any:
        """Return the bytes, where the records begin and end in them, and the rows of each id."""
        _, offsets, data = payloads.buffers()
        places = np.frombuffer(offsets, np.int32)[payloads.offset :][: len(payloads) + 1]
        there = payloads.is_valid().to_numpy(zero_copy_only=False)
        first, last = int(places[0]), int(places[-1])
        whole = np.frombuffer(data, np.uint8)[first:last] if last > first else np.zeros(1, np.uint8)
        begins = (places[:-1][there] - first).astype(np.int64)
        ends = (places[1:][there] - first).astype(np.int64)
        return whole, (begins, ends), list(frames_of(str(self.framing), whole, begins, ends))

    def _column(self, number: Id | None) -> Column | str:
        """Return what reads records that name a schema so, or why nothing does."""
        if number is None:
            return FRAMES[str(self.framing)][2]
        if self.registry is None:
            if self.framing == "none":
                return _column(self.schema, self.schema)
            for each in (self.schema, *self.writers):
                if _fingerprint(each) == number:
                    return _column(each, self.schema)
            return f"the schema with the fingerprint {number:016x} is not among the writers"
        answer = self.registry.answer(number)
        return answer.problem or _column(answer.schemas, self.schema)


@lru_cache(maxsize=256)
def _reader(schemas: Schemas) -> pa.StructType:
    """Return the struct that records become."""
    return arrow_type(_as_record(parse_avro(*schemas)))


@lru_cache(maxsize=256)
def _column(writer: Schemas, reader: Schemas) -> Column | str:
    """Return what reads what a writer has written, or why that does not fit the reader."""
    try:
        return plan(_as_record(parse_avro(*writer)), _as_record(parse_avro(*reader)))
    except UnresolvedError as error:
        return f"it was written with another schema: {error}"
    except OptionError as error:
        return f"the schema that it was written with is of no use: {error}"


def _as_record(found: AvroType) -> AvroType:
    """Return a record; of another type, one with a field `value`."""
    if found.kind == "record":
        return found
    return AvroType("record", fields=[AvroField("value", found)])


# https://avro.apache.org/docs/1.12.0/specification/#schema-fingerprints
@lru_cache(maxsize=256)
def _fingerprint(schemas: Schemas) -> int:
    canonical = _canonical(parse_avro(*schemas), set())
    text = json.dumps(canonical, separators=(",", ":"), ensure_ascii=False)
    value = _EMPTY
    for byte in text.encode():
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (_EMPTY & -(value & 1))
    return value


def _canonical(kind: AvroType, seen: set[str]) -> Any:
    """Return the parsing canonical form of a schema; a type that was named before is its name."""
    if kind.kind == "union":
        return [_canonical(each, seen) for each in kind.branches]
    if kind.kind in PRIMITIVES or kind.name in seen:
        return kind.name or kind.kind
    made: dict[str, Any] = {"name": kind.name} if kind.name else {}
    seen |= {kind.name} - {""}
    made["type"] = kind.kind
    if kind.kind == "record":
        fields = ({"name": f.name, "type": _canonical(f.type, seen)} for f in kind.fields)
        made["fields"] = list(fields)
    elif kind.kind == "enum":
        made["symbols"] = kind.symbols
    elif kind.kind == "fixed":
        made["size"] = kind.size
    elif kind.items is not None:
        made["items" if kind.kind == "array" else "values"] = _canonical(kind.items, seen)
    return made
