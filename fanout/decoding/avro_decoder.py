"""`decode=Avro(schema)` and `decode=Avro(schema, registry=Registry(url))`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, final

import numpy as np
import pyarrow as pa

from fanout.core.option_checks import one_of
from fanout.core.sentence import Option
from fanout.decoding.avro_columns import Column, read_columns
from fanout.decoding.avro_cursors import PADDING
from fanout.decoding.avro_framing import FRAMINGS, body_begins, fingerprint, frames
from fanout.decoding.avro_plan import UnresolvedError, arrow_type, plan
from fanout.decoding.avro_schema import AvroField, AvroType, parse_avro
from fanout.decoding.decoder import Decoder
from fanout.decoding.registry import Registry, Schemas
from fanout.errors import OptionError

_NO_FRAME: Final = {
    "confluent": "it does not begin with 0 and the id of a schema",
    "single-object": "it does not begin with C3 01 and the fingerprint of a schema",
}


@final
@dataclass(frozen=True, slots=True)
class Avro(Decoder):
    """Decodes Avro, as `decode=Avro(schema, registry=Registry("https://registry:8081"))`.

    The columns are those of `schema`. Records that were written with another one are resolved to it
    by Avro's rules; the types are those of Spark's `from_avro`.

    Args:
        schema: The schema to read with: the text of an .avsc file, what Python has of it, or what
            `Registry.latest` returns.
        registry: Where schemas are that records name by their id; None where all records are
            written with `schema`, or with one of `writers`.
        framing: What stands before each record: `"confluent"`, 0 and the id of a schema, the
            default with a registry; `"single-object"`, Avro's own, with a fingerprint; or `"none"`,
            the default without one.
        writers: More schemas that records are written with, for `"single-object"`.
        columns: Columns of the source to keep, besides those that locate a record; see `Decoder`.
        into: The name of one column for all fields, a struct; None for a column for each field.
        key: What decodes the keys of Kafka's records; None leaves them out.

    Raises:
        OptionError: If an option is malformed, or a type has no column.
    """

    schema: str | Mapping[str, Any] | Sequence[Any]
    registry: Registry | None = field(default=None, kw_only=True)
    framing: Literal["confluent", "single-object", "none"] | None = field(
        default=None, kw_only=True
    )
    writers: Sequence[str | Mapping[str, Any]] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        Decoder.__post_init__(self)
        if self.registry is not None and not isinstance(self.registry, Registry):
            raise OptionError(Option("registry", self.registry), " must be a Registry")
        if self.framing is None:
            object.__setattr__(self, "framing", "none" if self.registry is None else "confluent")
        one_of("framing", self.framing, *FRAMINGS)
        if (self.framing == "confluent") != (self.registry is not None):
            raise OptionError(
                Option("framing", self.framing),
                " and ",
                Option("registry"),
                ": a registry is for 'confluent', which needs one",
            )
        if self.writers and self.framing != "single-object":
            raise OptionError(Option("writers"), " are for ", Option("framing", "single-object"))
        object.__setattr__(self, "schema", _texts(self.schema))
        object.__setattr__(self, "writers", tuple(_texts(each) for each in self.writers))
        _reader(self.schema)
        for each in self.writers:
            _column(each, self.schema)

    async def fetch(self, payloads: pa.BinaryArray) -> None:
        """Ask the registry for the schemas of records that it was not asked for."""
        if self.registry is not None:
            _, _, groups = self._frames(payloads)
            await self.registry.load_soon([each for each, _ in groups if each is not None])

    def read(self, payloads: pa.BinaryArray) -> tuple[pa.StructArray, dict[int, str]]:
        """Return a struct for each payload, null for null, and why rows cannot be read."""
        kind = _reader(self.schema)
        data, begins_ends, groups = self._frames(payloads)
        begins, ends = begins_ends
        problems: dict[int, str] = {}
        order = np.full(len(payloads), -1)
        pieces: list[pa.Array] = []
        there = np.flatnonzero(payloads.is_valid().to_numpy(zero_copy_only=False))
        size = 0
        for number, of_it in groups:
            rows = there[of_it]
            column = self._column(number)
            if isinstance(column, str):
                problems |= dict.fromkeys(rows.tolist(), column)
                continue
            values, bad = read_columns(
                column, data, body_begins(str(self.framing), begins[of_it]), ends[of_it]
            )
            problems |= {int(rows[row]): reason for row, reason in bad.items()}
            pieces.append(values)
            order[rows] = np.arange(size, size + len(rows))
            size += len(rows)
        if len(pieces) == 1 and size == len(payloads):
            return pieces[0], problems
        whole = pa.concat_arrays(pieces) if pieces else pa.array([], kind)
        return whole.take(pa.array(order, mask=order < 0)), problems

    def _frames(self, payloads: pa.BinaryArray) -> Any:
        """Return the bytes, where the records begin and end in them, and the rows of each id."""
        _, offsets, data = payloads.buffers()
        places = np.frombuffer(offsets, np.int32)[payloads.offset :][: len(payloads) + 1]
        there = payloads.is_valid().to_numpy(zero_copy_only=False)
        first, last = (int(places[0]), int(places[-1])) if len(payloads) else (0, 0)
        padded = np.zeros(last - first + PADDING, np.uint8)
        if last > first:
            padded[: last - first] = np.frombuffer(data, np.uint8)[first:last]
        begins = (places[:-1][there] - first).astype(np.int64)
        ends = (places[1:][there] - first).astype(np.int64)
        return padded, (begins, ends), list(frames(str(self.framing), padded, begins, ends))

    def _column(self, number: int | None) -> Column | str:
        """Return what reads records that name a schema so, or why nothing does."""
        if number is None:
            return _NO_FRAME[str(self.framing)]
        if self.registry is None:
            if self.framing == "none":
                return _column(self.schema, self.schema)
            for each in (self.schema, *self.writers):
                if _fingerprint(each) == number:
                    return _column(each, self.schema)
            return f"the schema with the fingerprint {number:016x} is not among the writers"
        answer = self.registry.known(number)
        if answer is None:
            self.registry.load([number])
            answer = self.registry.known(number)
        assert answer is not None, "it was asked, or did not answer"
        return answer.problem or _column(answer.schemas, self.schema)


def _texts(given: object) -> Schemas:
    if isinstance(given, tuple) and given and all(isinstance(each, str) for each in given):
        return given
    if not isinstance(given, str | Mapping | list):
        raise OptionError(Option("schema", given), " must be the text of a schema of Avro, or JSON")
    return (given if isinstance(given, str) else json.dumps(given),)


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


@lru_cache(maxsize=256)
def _fingerprint(schemas: Schemas) -> int:
    return fingerprint(json.loads(schemas[-1]))


def _as_record(found: AvroType) -> AvroType:
    """Return a record; of another type, one with a field `value`."""
    if found.kind == "record":
        return found
    return AvroType("record", fields=[AvroField("value", found)])
