"""Continue a landing with the columns that it has, although its source has more by now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import pyarrow as pa

from fanout.core.record_decoder import RecordDecoder, reader_of
from fanout.errors import BadRowsError, CheckpointError, FanOutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.core.source import Source
    from fanout.landing.log.columns import LandedColumns


def without_new_columns(source: Source, landed: LandedColumns | None, location: str) -> Source:
    """Return a source that reads with the schema, and into the columns, of a landing.

    It may still lack some of them.

    Raises:
        CheckpointError: A column has another type, or the stored schema is damaged.
    """
    decode = getattr(source, "decode", None)
    if landed is None or decode is None:
        return source
    given: Any = source
    if isinstance(decode, RecordDecoder) and landed.reader:
        for field in source.schema:
            if field.name in landed.schema.names:
                was = landed.schema.field(field.name).type
                _check_type(was, field.type, field.name, location)
        try:
            reading = decode.reading_all(landed.reader, lambda each: each.resolves)
            given = replace(given, decode=reading)
        except (
            FanOutError,
            pa.ArrowException,
            OSError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise CheckpointError(
                f"{location} cannot be continued: the schema that it stores, to read with, is "
                f"damaged; continue it with new_columns='add', or land to another location"
            ) from error
    if not {*given.schema.names} <= {*landed.schema.names}:
        given = replace(given, decode=_Kept(given.decode, tuple(landed.schema.names)))
    known: Source = given
    return known


def _check_type(was: pa.DataType, now: pa.DataType, path: str, location: str) -> None:
    """Check that what both types have is of one type; either may have more fields of structs."""
    if pa.types.is_struct(was) and pa.types.is_struct(now):
        names = {field.name for field in now}
        for field in was:
            if field.name in names:
                inner = now.field(field.name).type
                _check_type(field.type, inner, f"{path}.{field.name}", location)
    elif pa.types.is_list(was) and pa.types.is_list(now):
        _check_type(was.value_type, now.value_type, f"{path}[]", location)
    elif pa.types.is_map(was) and pa.types.is_map(now):
        _check_type(was.key_type, now.key_type, f"{path}[key]", location)
        _check_type(was.item_type, now.item_type, f"{path}[]", location)
    elif was != now:
        raise CheckpointError(
            f"{location} cannot be continued: its records have {path} of type {was}, and the "
            f"schema of this source has {now}; read with a schema that has the type of before, or "
            f"land to another location"
        )


@final
@dataclass(frozen=True, slots=True)
class _Kept(RecordDecoder):
    """Leave out columns that a `decode` returns and a landing lacks."""

    decode: Callable[[pa.RecordBatch], pa.RecordBatch]
    names: tuple[str, ...]

    @property
    def readers(self) -> str:
        return reader_of(self.decode)

    async def prepare(self, records: pa.RecordBatch) -> None:
        if isinstance(self.decode, RecordDecoder):
            await self.decode.prepare(records)

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        try:
            decoded = self.decode(records)
        except BadRowsError as error:
            raise BadRowsError(self._kept(error.decoded), error.errors) from error
        return self._kept(decoded)

    def _kept(self, decoded: pa.RecordBatch) -> pa.RecordBatch:
        if not isinstance(decoded, pa.RecordBatch):
            return decoded  # its caller says what is wrong
        return decoded.select([name for name in self.names if name in decoded.schema.names])
