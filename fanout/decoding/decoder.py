"""What `Json` and its like have in common: which bytes they read, and which columns stay beside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from fanout.core.sentence import Option
from fanout.core.user_decode import RecordDecoder
from fanout.errors import BadRowsError, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

# What locates a record, for each kind of source; streams need these columns.
_PLACES: Final = (
    ("shardId", "sequenceNumber", "subSequenceNumber"),
    ("stream", "queue", "recordId"),
    ("topic", "partition", "offset"),
)
# The columns of bytes, in Kafka and in Kinesis.
_PAYLOADS: Final = ("value", "data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder(RecordDecoder, ABC):
    """Options of every decoder.

    Args:
        columns: Columns of the source to keep, besides those that locate a record: such as `key`,
            `timestamp` and `headers` of Kafka, `partitionKey` and `approximateArrivalTimestamp` of
            Kinesis.
        into: The name of one column for all fields, a struct; None for a column for each field. A
            record without a payload, a tombstone of Kafka, is null there.
        key: What decodes the keys of Kafka's records; None leaves them out.
    """

    columns: Sequence[str] = ()
    into: str | None = None
    key: Decoder | None = None

    def __post_init__(self) -> None:
        columns = self.columns
        if isinstance(columns, str) or not isinstance(columns, Sequence):
            raise OptionError(Option("columns", columns), " must be a sequence of names")
        object.__setattr__(self, "columns", tuple(columns))
        if self.into is not None and not (isinstance(self.into, str) and self.into):
            raise OptionError(Option("into", self.into), " must be the name of a column")
        if self.key is None:
            return
        if not isinstance(self.key, Decoder):
            raise OptionError(
                Option("key", self.key), " must be a decoder, such as Json('id BIGINT')"
            )
        if self.key.columns or self.key.key is not None:
            raise OptionError(
                Option("key"), " has a decoder with columns or a key of its own: name them outside"
            )

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that stay, and those of the payload."""
        given = records.schema
        columns = {name: records.column(name) for name in self._kept(given)}
        errors: dict[int, Exception] = {}
        for decoder, name in self._parts(given):
            decoded, problems = decoder.read(records.column(name))
            for row, problem in problems.items():
                errors.setdefault(row, ValueError(f"{name}: {problem}"))
            _add(columns, decoder, decoded)
        whole = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
        if errors:
            good = [row for row in range(whole.num_rows) if row not in errors]
            first = min(errors)
            raise BadRowsError(
                whole.take(pa.array(good, pa.int64())),
                {row: errors[row] for row in sorted(errors)},
            ) from errors[first]
        return whole

    async def prepare(self, records: pa.RecordBatch) -> None:
        """Fetch the schemas that a batch needs, without blocking the event loop."""
        for decoder, name in self._parts(records.schema):
            await decoder.fetch(records.column(name))

    async def fetch(self, payloads: pa.BinaryArray) -> None:
        """Fetch the schemas that payloads need."""

    @abstractmethod
    def read(self, payloads: pa.BinaryArray) -> tuple[pa.StructArray, Mapping[int, str]]:
        """Return a struct for each payload, null for null, and why rows cannot be read."""

    def _parts(self, given: pa.Schema) -> list[tuple[Decoder, str]]:
        """Return each decoder with the name of the column that it reads."""
        parts: list[tuple[Decoder, str]] = [(self, _payload(given))]
        if self.key is not None:
            if "key" not in given.names:
                raise OptionError(Option("key"), " is for Kafka: the records have no column 'key'")
            parts.append((self.key, "key"))
        return parts

    def _kept(self, given: pa.Schema) -> list[str]:
        for name in self.columns:
            if name not in given.names:
                raise OptionError(
                    Option("columns"),
                    f" has {name!r}, and the source has {', '.join(given.names)}",
                )
        places = next((each for each in _PLACES if set(each) <= set(given.names)), ())
        return [name for name in given.names if name in places or name in self.columns]


def _payload(given: pa.Schema) -> str:
    for name in _PAYLOADS:
        if name in given.names and pa.types.is_binary(given.field(name).type):
            return name
    raise OptionError(
        f"the records have no column {' or '.join(map(repr, _PAYLOADS))} of bytes to decode, but "
        f"{', '.join(given.names)}"
    )


def _add(columns: dict[str, pa.Array], decoder: Decoder, decoded: pa.StructArray) -> None:
    """Add the column of a decoder, or those of its fields."""
    if decoder.into is not None:
        added = {decoder.into: decoded}
    else:
        added = dict(zip((f.name for f in decoded.type), decoded.flatten(), strict=True))
    for name, column in added.items():
        if name in columns:
            raise OptionError(
                f"two columns have the name {name!r}: put the fields into a column of their own, "
                "such as ",
                Option("into", "record"),
            )
        columns[name] = column
