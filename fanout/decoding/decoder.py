"""What `Json` and its like have in common: which bytes they read, and which columns stay beside."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fanout.core.option_checks import check_text, wrong_type
from fanout.core.record_decoder import RecordDecoder
from fanout.core.sentence import Option
from fanout.core.user_decode import TooManyRowsError
from fanout.errors import BadRowsError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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
GUID: Final = b"\1"
"""What stands before a GUID, in Confluent's headers and before records."""
GUID_SIZE: Final = 17
_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
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

    _has_indexes: ClassVar[bool] = False
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
    def parts(self) -> tuple[RecordDecoder, ...]:
        """What reads the values of records, and what reads their keys where something does."""
        return (self,) if self.key is None else (self, self.key)

    def reading_all(
        self, readers: str, chosen: Callable[[RecordDecoder], bool] = lambda _: True
    ) -> RecordDecoder:
        """Return a decoder that reads with stored schemas; where none of keys is, with its own."""
        reader, _, of_keys = readers.partition("\n")
        found: Any = RecordDecoder.reading_all(self, reader, chosen)
        if self.key is not None and of_keys:
            found = replace(found, key=self.key.reading_all(of_keys, chosen))
        whole: RecordDecoder = found
        return whole

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that stay, and those of the payload."""
        if not isinstance(records, pa.RecordBatch):
            raise wrong_type("records", records, "a pyarrow.RecordBatch")
        given = records.schema
        columns = {name: records.column(name) for name in self._kept(given)}
        errors: dict[int, Exception] = {}
        for decoder, name in self._parts(given):
            payloads, wrong = decoder._payloads(records, name)  # noqa: SLF001 - of this class
            decoded, problems = decoder.read(payloads)
            for row, problem in {**problems, **wrong}.items():
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
        check_text("column", column, or_none=False)
        columns: dict[str, pa.Array] = {}
        errors: dict[int, Exception] = {}
        heads: dict[str, tuple[bytes, pa.Array]] = {}
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
            if encoder.frame.startswith(GUID):
                if name not in {"value", "key"}:
                    clause = " is a GUID, which stands in a header of Kafka: pass a number"
                    raise OptionError(Option("schema_id"), clause)
                heads[f"__{name}_schema_id"] = encoder.frame, columns[name].is_valid()
        columns = {name: _column(records, name) for name in self.columns} | columns
        if heads:
            columns["headers"] = _with_heads(columns.get("headers"), heads, records.num_rows)
        return _without_bad(columns, errors)

    @property
    def frame(self) -> bytes:
        """What names the schema of each record, before it or in a header; empty for nothing."""
        return b""

    def write(self, fields: pa.StructArray) -> tuple[pa.BinaryArray, Mapping[int, str]]:
        """Return the payload of each struct, null for null, and why rows cannot be encoded."""
        del fields
        raise OptionError(f"{type(self).__name__} decodes only")

    async def prepare(self, records: pa.RecordBatch) -> None:
        """Fetch the schemas that a batch needs, without blocking the event loop."""
        for decoder, name in self._parts(records.schema):
            payloads, _ = decoder._payloads(records, name)  # noqa: SLF001 - of this class
            await decoder.fetch(payloads)

    async def fetch(self, payloads: pa.BinaryArray) -> None:
        """Fetch the schemas that payloads need."""

    @abstractmethod
    def read(self, payloads: pa.BinaryArray) -> tuple[pa.StructArray, Mapping[int, str]]:
        """Return a struct for each payload, null for null, and why rows cannot be read."""

    def _payloads(
        self, records: pa.RecordBatch, name: str
    ) -> tuple[pa.BinaryArray, dict[int, str]]:
        """Return the payloads, behind what headers have of schemas, and why others are null."""
        payloads = records.column(name)
        if getattr(self, "framing", None) != "confluent" or "headers" not in records.schema.names:
            return payloads, {}
        header = f"__{name}_schema_id"
        return with_headers(payloads, records["headers"], header, indexes=self._has_indexes)

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


def _with_heads(
    headers: pa.ListArray | None, heads: Mapping[str, tuple[bytes, pa.Array]], rows: int
) -> pa.ListArray:
    """Return headers with what names the schemas of those rows that are chosen."""
    parts = [pa.array([], _HEADER)]
    owners = [np.array([], np.int64)]
    if headers is not None:
        headers = _as_headers(headers)
        given = headers.flatten()
        others = pc.invert(pc.is_in(given.field("key"), pa.array(list(heads))))
        parts.append(given.filter(others))
        owners.append(pc.list_parent_indices(headers).filter(others).to_numpy())
    for name, (head, chosen) in heads.items():
        there = pc.indices_nonzero(chosen).to_numpy().astype(np.int64)
        pair = [pa.repeat(pa.scalar(each), len(there)) for each in (name, head)]
        parts.append(pa.StructArray.from_arrays(pair, fields=list(_HEADER)))
        owners.append(there)
    owner = np.concatenate(owners)
    whole = pa.concat_arrays(parts).take(pa.array(np.argsort(owner, kind="stable")))
    ends = np.cumsum(np.bincount(owner, minlength=rows))
    return pa.ListArray.from_arrays(pa.array([0, *ends], pa.int32()), whole)


def _as_headers(given: pa.Array) -> pa.ListArray:
    """Return headers in one type, and null ones without content."""
    inner = getattr(given.type, "value_type", given.type)
    # A cast makes null of fields that are missing, and leaves out others.
    if not (pa.types.is_struct(inner) and {each.name for each in inner} != {"key", "value"}):
        with suppress(pa.ArrowException):
            return given.cast(pa.list_(_HEADER)).take(pa.array(np.arange(len(given))))
    kind = "a list of structs of a string key and a binary value"
    raise OptionError(f"the column headers must be {kind}, not {given.type}")


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


def last_entries(keys: pa.Array, owners: Ints) -> Ints:
    """Return the numbers of the entries of maps that count: the last of each key in its map."""
    names = keys.dictionary_encode()
    pairs = owners * max(len(names.dictionary), 1) + names.indices.to_numpy()
    _, from_behind = np.unique(pairs[::-1], return_index=True)
    return np.sort(len(pairs) - 1 - from_behind)


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


def before_payload(frame: bytes) -> bytes:
    """Return what stands before a payload: nothing where a header names the schema."""
    return b"" if frame.startswith(GUID) else frame


def frame_of(framing: str, schema_id: object) -> bytes:
    """Return what names a schema by its id, before a payload or in a header; nothing for None."""
    try:
        if framing == "glue" and isinstance(schema_id, str):
            return b"\3\0" + UUID(schema_id).bytes
        if framing == "confluent" and type(schema_id) is int:  # True is no number here
            return b"\0" + schema_id.to_bytes(4, "big")
        if framing == "confluent" and isinstance(schema_id, str):
            return GUID + UUID(schema_id).bytes
    except (ValueError, OverflowError):
        pass
    if schema_id is None:
        return b""
    kinds = "a number for framing='confluent', and a UUID for framing='glue' or a header of Kafka"
    raise OptionError(Option("schema_id", schema_id), f" must be {kinds}")


def size_of(framing: str, number: Id) -> int:
    """Return how many bytes stand before a record with such an id."""
    is_guid = framing == "confluent" and isinstance(number, UUID)
    return GUID_SIZE if is_guid else FRAMES[framing][1]


def frames_of(
    framing: str, data: np.ndarray, begins: Ints, ends: Ints
) -> Iterator[tuple[Id | None, Ints]]:
    """Yield each id of a schema with the rows that have it; None for rows without a frame."""
    left = np.arange(len(begins))
    if framing == "none":
        yield 0, left
        return
    frames = [(*FRAMES[framing][:2], _IDS[framing])]
    if framing == "confluent":
        frames.append((GUID, GUID_SIZE, "S16"))
    for magic, size, kind in frames:
        whole = left[ends[left] - begins[left] >= size]
        heads = data.take(begins[whole][:, None] + np.arange(size), mode="clip")
        framed = (heads[:, : len(magic)] == np.frombuffer(magic, np.uint8)).all(axis=1)
        if framing == "glue":
            framed &= np.isin(heads[:, 1], _COMPRESSIONS)
        whole, heads = whole[framed], heads[framed, -np.dtype(kind).itemsize :]
        ids = np.ascontiguousarray(heads).view(kind).reshape(-1)
        for found in np.unique(ids):
            # numpy leaves zeros at the end out
            number = UUID(bytes=found.ljust(16, b"\0")) if kind == "S16" else int(found)
            yield number, whole[ids == found]
        if len(whole) == len(left):
            return
        left = np.setdiff1d(left, whole)
    yield None, left


def with_headers(
    payloads: pa.BinaryArray, headers: pa.ListArray, name: str, *, indexes: bool
) -> tuple[pa.BinaryArray, dict[int, str]]:
    """Return payloads behind what a header of Confluent has, and why others are null.

    `indexes` says whether the indexes of a message of Protobuf follow the id there.
    """
    pairs = headers.flatten()
    is_it = pc.and_(pc.equal(pairs.field("key"), name), pairs.field("value").is_valid())
    chosen = pc.indices_nonzero(is_it).to_numpy()
    if not len(chosen):
        return payloads, {}
    rows, first = np.unique(pc.list_parent_indices(headers).to_numpy()[chosen], return_index=True)
    last = np.append(first[1:], len(chosen)) - 1
    # Confluent's deserializers take the first one in Python, and the last one in Java.
    one, other = (pairs.field("value").take(pa.array(chosen[each])) for each in (first, last))
    found = pc.if_else(pc.equal(one, other), one, b"").dictionary_encode()
    whole = [_is_whole(head, indexes=indexes) for head in found.dictionary.to_pylist()]
    is_whole = np.array(whole)[found.indices.to_numpy()]
    there = payloads.is_valid().to_numpy(zero_copy_only=False)
    bad = rows[~is_whole & there[rows]].tolist()
    places = np.full(len(payloads), -1)
    places[rows] = np.arange(len(rows))
    heads = found.cast(pa.binary()).take(pa.array(places, mask=places < 0))
    payloads = pc.binary_join_element_wise(heads.fill_null(b""), payloads, b"")
    mask = np.isin(np.arange(len(payloads)), bad)
    problem = f"the header {name} is no GUID of a schema"
    return pc.if_else(pa.array(mask), None, payloads), dict.fromkeys(bad, problem)


def _is_whole(head: bytes, *, indexes: bool) -> bool:
    """Return whether bytes are an id, and behind it all indexes that they count."""
    size = {b"\0": FRAMES["confluent"][1], GUID: GUID_SIZE}.get(head[:1], len(head) + 1)
    tail = head[size:]
    if not indexes:
        return len(head) == size
    ends = sum(byte < 0x80 for byte in tail)  # noqa: PLR2004 - the last bytes of numbers
    return len(head) > size and tail[-1] < 0x80 and tail[0] == 2 * (ends - 1)  # noqa: PLR2004
