"""A `decode` with a schema, which is stored: a stream goes on with the columns of its start."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from fanout.core.checkpoint import LONGEST_READER
from fanout.errors import FanOutError, PositionError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from fanout.core.source import Source

_LOG: Final = logging.getLogger(__name__)


class RecordDecoder:
    """A function for `decode` that may have to fetch something before it decodes a batch.

    It raises BadRowsError where it cannot decode some rows.
    """

    __slots__ = ()

    @property
    def reader(self) -> str:
        """The schema that it reads with, as text to be stored; empty where there is none."""
        return ""

    def reading(self, reader: str) -> RecordDecoder:
        """Return a decoder that reads with a stored schema; the same where it cannot."""
        del reader
        return self

    @property
    def parts(self) -> tuple[RecordDecoder, ...]:
        """What reads the values of records, and what reads their keys where something does."""
        return (self,)

    @property
    def readers(self) -> str:
        """The schemas that its parts read with, a line for each, as text to be stored."""
        return "\n".join(part.reader for part in self.parts)

    @property
    def resolves(self) -> bool:
        """Whether it reads records of other schemas into the columns of its own one."""
        return True

    @property
    def is_newest(self) -> bool:
        """Whether a registry has chosen the schema, in whose place a stored one can read."""
        return False

    def reading_all(
        self, readers: str, chosen: Callable[[RecordDecoder], bool] = lambda _: True
    ) -> RecordDecoder:
        """Return a decoder whose chosen parts read with stored schemas."""
        return self.reading(readers) if chosen(self) else self

    async def prepare(self, records: pa.RecordBatch) -> None:
        """Fetch what a batch needs, or raise RetryLaterError where that is unavailable for now."""


def reader_of(decode: object) -> str:
    """Return the schemas that a `decode` reads with, to be stored; empty for none, or long ones."""
    reader = decode.readers if isinstance(decode, RecordDecoder) else ""
    return reader if len(reader) <= LONGEST_READER else ""


def with_stored_reader(source: Source, reader: str, remedy: str) -> Source:
    """Return a source that reads with a stored schema, where a registry has chosen its own one.

    A schema that the user has written may add columns. `remedy` says how to forget the stored one.

    Raises:
        PositionError: A column is missing or has another type, or the stored schema is damaged.
    """
    decode = getattr(source, "decode", None)
    if not reader:
        return source
    if not isinstance(decode, RecordDecoder):
        raise PositionError(
            f"the records so far were read with a schema that is stored, and decode has none by "
            f"now; decode as before, or {remedy}"
        )
    if decode.readers == reader:
        return source
    from pyarrow import ArrowException  # noqa: PLC0415 - the library is imported without Arrow

    given: Any = source
    try:
        before: Source = replace(given, decode=decode.reading_all(reader))
        columns = before.schema
        now: Source = replace(given, decode=decode.reading_all(reader, lambda each: each.is_newest))
    except (FanOutError, ArrowException, OSError, TypeError, ValueError, RecursionError) as error:
        raise PositionError(
            f"the schema to read with that is stored there is damaged, or goes with other options "
            f"of decode; decode as before, or {remedy}"
        ) from error
    lines = reader.split("\n")
    if len(lines) > len(decode.parts):
        raise PositionError(
            f"the keys of the records so far were read with a schema that is stored, and decode "
            f"has none for keys by now; decode as before, or {remedy}"
        )
    if not all(map(_continues, decode.parts, lines)):
        raise PositionError(
            f"the records so far were read with a schema of another format or message; decode as "
            f"before, or {remedy}"
        )
    for field in columns:
        found = now.schema.field(field.name) if field.name in now.schema.names else None
        if found is None or found.type != field.type:
            has = "does not have it" if found is None else f"has {found.type}"
            raise PositionError(
                f"the records so far have the column {field.name} of type {field.type}, and this "
                f"source {has}; read with a schema that has the columns of before, or {remedy}"
            )
    if now.schema != source.schema:
        _LOG.info("records are read with the stored schema of the start, not with the newest one")
    return now


def _continues(decode: RecordDecoder, stored: str) -> bool:
    """Return whether a decoder reads with a stored schema, or the user's in its format."""
    is_same_kind = decode.reader.partition(" ")[0] == stored.partition(" ")[0]
    return decode.reading(stored).reader == stored or (is_same_kind and not decode.is_newest)
