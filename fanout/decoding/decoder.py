"""What `Json` and its like have in common: which bytes they read, and which columns stay beside."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fanout.core.sentence import Option
from fanout.core.user_decode import RecordDecoder, TooManyRowsError
from fanout.errors import BadRowsError, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fanout.decoding.avro_cursors import Ints
    from fanout.decoding.registry import Id

# What locates a record, for each kind of source; streams need these columns.
_PLACES: Final = (
    ("shardId", "sequenceNumber", "subSequenceNumber"),
    ("stream", "queue", "recordId"),
    ("topic", "partition", "offset"),
)
# The columns of bytes, in Kafka and in Kinesis.
_PAYLOADS: Final = ("value", "data")

FRAMES: Final = {
    "none": (b"", 0, ""),
    "confluent": (b"\0", 5, "it does not begin with 0 and the id of a schema"),
    "glue": (b"\3", 18, "it does not begin with 3 and the id of a version of a schema"),
    "single-object": (b"\xc3\x01", 10, "it does not begin with C3 01 and a fingerprint"),
}
"""What each frame begins with, how long it is, and what is said of records without it."""
_IDS: Final = {"confluent": ">u4", "glue": "S16", "single-object": "<u8"}
_COMPRESSIONS: Final = (0, 5)
# Behind the 3 of AWS Glue stands 0, or 5 where zlib has compressed what is behind the frame.
_COMPRESSED: Final = b"\3\5"
# The largest record that Kinesis takes; and what all records of a batch may have together.
_LARGEST: Final = 10 * 1024 * 1024
_MOST_OF_BATCH: Final = 512 * 1024 * 1024
# What items of arrays may take in columns, as few bytes may be many of them.
MOST_OF_ITEMS: Final = 128 * 1024 * 1024


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

    @property
    def readers(self) -> str:
        """The schema that it reads with, and that of keys on a line of its own."""
        return self.reader if self.key is None else f"{self.reader}\n{self.key.reader}"

    def reading_all(self, readers: str) -> RecordDecoder:
        """Return a decoder that reads with stored schemas; where none of keys is, with its own."""
        reader, _, of_keys = readers.partition("\n")
        found: Any = self.reading(reader)
        if self.key is not None and of_keys:
            found = replace(found, key=self.key.reading(of_keys))
        whole: RecordDecoder = found
        return whole

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
        return _without_bad(columns, errors)

    def encode(self, records: pa.RecordBatch, column: str = "value") -> pa.RecordBatch:
        """Return records to write, each with its fields as bytes.

        Args:
            records: The columns that decoding makes, of which `columns` stay as they are.
            column: The name of the column of bytes: `"value"` for Kafka, `"data"` for Kinesis.

        Raises:
            BadRowsError: If rows cannot be encoded; it has the others, encoded.
            OptionError: If the records lack a column, one has a type that does not fit, or one that
                stays has the place of the bytes.
        """
        if not isinstance(records, pa.RecordBatch):
            raise OptionError("encode takes a pyarrow.RecordBatch")
        columns: dict[str, pa.Array] = {}
        errors: dict[int, Exception] = {}
        parts = [(self, column)] if self.key is None else [(self, column), (self.key, "key")]
        for _, name in parts:
            if name in self.columns:
                raise OptionError(Option("columns"), f" has {name!r}, which encode makes")
        for encoder, name in parts:
            whole = records.to_struct_array()
            fields = whole if encoder.into is None else _column(records, encoder.into)
            columns[name], problems = encoder.write(fields)
            for row, problem in problems.items():
                errors.setdefault(row, ValueError(f"{name}: {problem}"))
        columns = {name: _column(records, name) for name in self.columns} | columns
        return _without_bad(columns, errors)

    def write(self, fields: pa.StructArray) -> tuple[pa.BinaryArray, Mapping[int, str]]:
        """Return the payload of each struct, null for null, and why rows cannot be encoded."""
        del fields
        raise OptionError(f"{type(self).__name__} decodes only")

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


def _without_bad(columns: dict[str, pa.Array], errors: dict[int, Exception]) -> pa.RecordBatch:
    """Return columns as a batch; raise BadRowsError with the others where rows are bad."""
    whole = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    if errors:
        good = [row for row in range(whole.num_rows) if row not in errors]
        raise BadRowsError(
            whole.take(pa.array(good, pa.int64())), {row: errors[row] for row in sorted(errors)}
        ) from errors[min(errors)]
    return whole


def _column(records: pa.RecordBatch, name: str) -> pa.Array:
    if records.schema.names.count(name) != 1:
        names = ", ".join(records.schema.names)
        raise OptionError(f"the records need one column {name!r}, and have {names}")
    return records.column(name)


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


def width(kind: pa.DataType) -> int:
    """Return how many bytes each value of a type takes in a column, at the least."""
    if pa.types.is_struct(kind):
        return sum(width(field.type) for field in kind)
    if pa.types.is_nested(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 4  # an offset
    return 0 if pa.types.is_null(kind) else (kind.bit_width + 7) // 8


def check_items(size: int) -> None:
    """Check how many bytes the items of arrays take in columns."""
    if size > MOST_OF_ITEMS:
        raise TooManyRowsError(
            f"the items of arrays would take more than {MOST_OF_ITEMS} bytes: decode fewer at once"
        )


def decompressed(payloads: pa.BinaryArray) -> tuple[pa.BinaryArray, dict[int, str]]:
    """Return payloads of AWS Glue as they were before zlib, and why others are null."""
    compressed = pc.fill_null(pc.starts_with(payloads, _COMPRESSED), False)  # noqa: FBT003 - Arrow's
    rows = pc.indices_nonzero(compressed).to_pylist()
    if not rows:
        return payloads, {}
    found, problems, left = payloads.to_pylist(), {}, _MOST_OF_BATCH
    size = FRAMES["glue"][1]
    for row in rows:
        inflater = zlib.decompressobj()
        head, body = found[row][:size], found[row][size:]
        try:
            whole = inflater.decompress(body, _LARGEST + 1)
        except zlib.error:
            whole = b""
        if len(whole) > _LARGEST:
            problems[row] = f"it has more than {_LARGEST} bytes behind its compression"
        elif not inflater.eof or inflater.unused_data:
            problems[row] = "it is not what zlib has compressed"
        elif (left := left - len(whole)) < 0:
            raise TooManyRowsError(
                f"the records have more than {_MOST_OF_BATCH} bytes behind their compression: "
                "decode fewer at once"
            )
        found[row] = None if row in problems else b"\3\0" + head[2:] + whole
    return pa.array(found, pa.binary()), problems


def frame_of(framing: str, schema_id: object) -> bytes:
    """Return what stands before a payload with the id of a schema; nothing for None."""
    try:
        if framing == "glue" and isinstance(schema_id, str):
            return b"\3\0" + UUID(schema_id).bytes
        if framing == "confluent" and type(schema_id) is int:  # True is no number here
            return b"\0" + schema_id.to_bytes(4, "big")
    except (ValueError, OverflowError):
        pass
    if schema_id is None:
        return b""
    kinds = "a number for framing='confluent', and a UUID for framing='glue'"
    raise OptionError(Option("schema_id", schema_id), f" must be {kinds}")


def frames_of(
    framing: str, data: np.ndarray, begins: Ints, ends: Ints
) -> Iterator[tuple[Id | None, Ints]]:
    """Yield each id of a schema with the rows that have it; None for rows without a frame."""
    if framing == "none":
        yield 0, np.arange(len(begins))
        return
    magic, size, _ = FRAMES[framing]
    whole = np.flatnonzero(ends - begins >= size)
    heads = data.take(begins[whole][:, None] + np.arange(size), mode="clip")
    framed = (heads[:, : len(magic)] == np.frombuffer(magic, np.uint8)).all(axis=1)
    if framing == "glue":
        framed &= np.isin(heads[:, 1], _COMPRESSIONS)
    kind = np.dtype(_IDS[framing])
    whole, heads = whole[framed], np.ascontiguousarray(heads[framed, -kind.itemsize :])
    if len(whole) < len(begins):
        yield None, np.setdiff1d(np.arange(len(begins)), whole)
    ids = heads.view(kind).reshape(-1)
    for found in np.unique(ids):
        if framing == "glue":  # numpy leaves zeros at the end out
            yield UUID(bytes=found.ljust(kind.itemsize, b"\0")), whole[ids == found]
        else:
            yield int(found), whole[ids == found]
