"""`decode=Protobuf(descriptor, "shop.Order")`, also with `registry=SchemaRegistry(url)`."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

import numpy as np
import pyarrow as pa

from fanout.core.sentence import Option
from fanout.decoding.avro_cursors import Cursors
from fanout.decoding.decoder import (
    Decoder,
    before_payload,
    decompressed,
    frame_of,
    frames_of,
    size_of,
)
from fanout.decoding.pieces import of_values, written
from fanout.decoding.protobuf_columns import MessageRows, Parsers
from fanout.decoding.protobuf_encoding import raw_messages
from fanout.decoding.protobuf_schema import (
    changed_type,
    descriptor_set,
    find_message,
    messages_at,
    messages_sorted,
    plan,
)
from fanout.decoding.registry import AnyRegistry, Newest
from fanout.errors import OptionError

if TYPE_CHECKING:
    import os

    from fanout.decoding.avro_cursors import Ints
    from fanout.decoding.pieces import Piece, Rows
    from fanout.decoding.protobuf_columns import Messages
    from fanout.decoding.registry import Id, Schemas

_MORE: Final = 0x80
_MOST_INDEXES: Final = 16
_NO_INDEX: Final = np.iinfo(np.int64).min
_INDEX: Final = "the index of the message"
# How a schema begins that is stored.
_STORED: Final = "protobuf "
_NO_FRAME: Final = {
    "confluent": "it does not begin with 0, the id of a schema and the index of a message",
    "glue": "it does not begin with 3, the id of a version of a schema and the index of a message",
}


@final
@dataclass(frozen=True, slots=True)
class Protobuf(Decoder):
    """Decodes messages of Protobuf, as `decode=Protobuf("orders.desc", "shop.Order")`.

    The columns are the fields of the message. Fields are found by their numbers, whatever the
    message looked like that the writer had; the types are those of Spark's `from_protobuf`.

    Args:
        descriptor: What `protoc --include_imports --descriptor_set_out=FILE` writes, as bytes or as
            the path of the file; a generated class; or what `SchemaRegistry.latest` returns.
        message: The full name of the message. None for that of the class, or for the only one of
            the last file.
        registry: Where the schemas are that records name. With a `SchemaRegistry` a record begins
            with 0, the id of a schema, and the indexes of a message; with a `GlueSchemaRegistry`
            with 3, the id of a version, and the index of a message. One of another message is bad.
            None where a record is the message alone.
        times: Whether `Timestamp` and `Duration` become times of microseconds, so that finer ones
            are bad. False leaves them structs of `seconds` and `nanos`.
        schema_id: The id of the schema in the registry, which `encode` writes before each message,
            or its GUID, for a header: what `id_of` of the registry returns.

    Raises:
        OptionError: If an option is malformed, or the message has no columns.
    """

    _has_indexes: ClassVar[bool] = True
    descriptor: bytes | str | os.PathLike[str] | Schemas | type[Any] = field(repr=False)
    message: str | None = None
    registry: AnyRegistry | None = field(default=None, kw_only=True)
    times: bool = field(default=True, kw_only=True)
    schema_id: int | str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        Decoder.__post_init__(self)
        if self.registry is not None and not isinstance(self.registry, AnyRegistry):
            raise OptionError(
                Option("registry"), " must be a SchemaRegistry or a GlueSchemaRegistry"
            )
        frame_of(self.framing, self.schema_id)  # checks it
        name = self.message
        if name is None and isinstance(self.descriptor, type):
            name = getattr(getattr(self.descriptor, "DESCRIPTOR", None), "full_name", None)
        files = descriptor_set(self.descriptor)
        if isinstance(self.descriptor, Newest):
            files = _NewestFiles(files)
        object.__setattr__(self, "descriptor", files)
        object.__setattr__(self, "message", find_message(files, name).full_name)
        _plan(files, self.message, self.times)

    @property
    def framing(self) -> str:
        """What stands before records, which is that of the registry."""
        return "none" if self.registry is None else self.registry.framing

    @property
    def reader(self) -> str:
        """The schema that it reads with."""
        assert isinstance(self.descriptor, bytes), "it is serialized"
        return f"{_STORED}{self.message} {base64.b64encode(self.descriptor).decode()}"

    @property
    def is_newest(self) -> bool:
        """Whether the descriptor is what `latest` of a registry returned."""
        return isinstance(self.descriptor, _NewestFiles)

    def reading(self, reader: str) -> Protobuf:
        """Return a decoder that reads with a stored schema."""
        if not reader.startswith(_STORED):
            return self
        message, files = reader.removeprefix(_STORED).split(" ")
        if self.is_newest and message != self.message:
            return self  # the user, or the registry, names another one
        return replace(self, descriptor=base64.b64decode(files), message=message)

    async def fetch(self, payloads: pa.BinaryArray) -> None:
        """Ask the registry for the schemas of records that it was not asked for."""
        if self.registry is not None:
            _, found = _frames(self.framing, payloads, {})
            await self.registry.load([number for number, _, _ in found])

    def read(self, payloads: pa.BinaryArray) -> tuple[pa.StructArray, dict[int, str]]:
        """Return a struct for each payload, null for null, and why rows cannot be read."""
        columns, parsers = _plan(self.descriptor, self.message, self.times)  # type: ignore[arg-type]
        failures: dict[int, str] = {}
        if self.framing == "glue":
            payloads, failures = decompressed(payloads)
        bodies, rows = payloads, np.arange(len(payloads))
        if self.registry is not None:
            cursors = self._without_frames(payloads, failures)
            bodies, rows = cursors.spans(cursors.positions, cursors.ends), cursors.rows
        elif payloads.null_count:
            bodies = payloads.drop_null()
            rows = np.flatnonzero(payloads.is_valid().to_numpy(zero_copy_only=False))
        parsed, problems = parsers.parse(bodies)
        failures |= {int(rows[row]): problem for row, problem in problems.items()}
        values = columns.read(parsed, MessageRows(rows, failures))
        if len(rows) == len(payloads):
            return values, failures
        places = np.full(len(payloads), -1)
        places[rows] = np.arange(len(rows))
        return values.take(pa.array(places, mask=places < 0)), failures

    @property
    def frame(self) -> bytes:
        """What names the schema and the message of each record."""
        frame = frame_of(self.framing, self.schema_id)
        if frame:
            frame += _indexes(self.framing, self.descriptor, self.message)  # type: ignore[arg-type]
        return frame

    def write(self, fields: pa.StructArray) -> tuple[pa.BinaryArray, dict[int, str]]:
        """Return the message of each struct, null for null, and why rows cannot be encoded."""
        if self.registry is not None and self.schema_id is None:
            raise OptionError(
                "encode needs ", Option("schema_id"), ": id_of of the registry has it"
            )
        columns, parsers = _plan(self.descriptor, self.message, self.times)  # type: ignore[arg-type]
        frame = before_payload(self.frame)

        def pieces(values: pa.StructArray, rows: Rows) -> list[Piece]:
            raw = raw_messages(columns, values, rows)
            return [parsers.write(raw).cast(pa.binary())]

        return written(fields, frame, lambda values, rows: of_values(values, rows, pieces))

    def _without_frames(self, payloads: pa.BinaryArray, failures: dict[int, str]) -> Cursors:
        """Return the records of our message, behind their frames."""
        assert self.registry is not None, "there are no frames without a registry"
        cursors, groups = _frames(self.framing, payloads, failures)
        is_ours = np.zeros(len(cursors), bool)
        for number, path, chosen in groups:
            found = self.registry.answer(number, "PROTOBUF")
            problem = found.problem or self._problem(number, found.schemas, path)
            is_ours[chosen] = not problem
            for row in cursors.rows[chosen].tolist() if problem else ():
                cursors.failures[row] = problem
        return cursors.take(np.flatnonzero(is_ours))

    def _problem(self, number: Id, schemas: Schemas, path: tuple[int, ...]) -> str:
        """Return why records are none of our message, or have other values than it."""
        if self.framing == "glue":
            every, (index,) = messages_sorted(schemas[-1]), path
            names = frozenset(every[index : index + 1] if index >= 0 else ())
        else:
            names = messages_at(schemas[-1], path)
        if not names:
            return f"the schema {number} has no message {'.'.join(map(str, path))}"
        if self.message in names:
            return changed_type(schemas, self.message, self.descriptor)  # type: ignore[arg-type]
        return f"it is of the message {min(names)}, and not of {self.message}"


class _NewestFiles(bytes):
    """A descriptor set that was the newest one of a subject when the registry was asked."""

    __slots__ = ()


@lru_cache(maxsize=64)
def _plan(files: bytes, name: str, times: bool) -> tuple[Messages, Parsers]:  # noqa: FBT001 - a key
    message = find_message(files, name)
    columns = plan(message, "", times=times)
    return columns, Parsers(message, columns)


@lru_cache(maxsize=64)
def _indexes(framing: str, files: bytes, name: str) -> bytes:
    """Return the place of a message in its file, as serializers of a framing write it."""
    message, path = find_message(files, name), list[int]()
    if framing == "glue":
        file = base64.b64encode(message.file.serialized_pb).decode()
        return _varint(messages_sorted(file).index(name))
    while message is not None:
        above = message.containing_type
        beside = message.file.message_types_by_name if above is None else above.nested_types_by_name
        path.insert(0, list(beside).index(message.name))
        message = above
    if path == [0]:
        return b"\0"
    numbers = [2 * number for number in (len(path), *path)]
    return b"".join(map(_varint, numbers))


def _varint(number: int) -> bytes:
    return (
        bytes([number]) if number < _MORE else bytes([number & 0x7F | _MORE]) + _varint(number >> 7)
    )


def _frames(
    framing: str, payloads: pa.BinaryArray, failures: dict[int, str]
) -> tuple[Cursors, list[tuple[Id, tuple[int, ...], Ints]]]:
    """Return cursors behind the frames; and each schema and path with those that have it."""
    _, offsets, data = payloads.buffers()
    rows = np.flatnonzero(payloads.is_valid().to_numpy(zero_copy_only=False))
    bounds = np.frombuffer(offsets or bytes(4), np.int32)[payloads.offset :].astype(np.int64)
    whole = np.frombuffer(data or b"\0", np.uint8)
    cursors = Cursors(whole, bounds[:-1][rows], bounds[1:][rows], rows, failures)
    ids: list[Id] = []
    schemas = np.full(len(cursors), -1)
    for number, chosen in list(frames_of(framing, whole, cursors.positions, cursors.ends)):
        if number is not None:
            schemas[chosen] = len(ids)
            ids.append(number)
            cursors.positions[chosen] += size_of(framing, number)
    cursors.fail((schemas < 0) | (cursors.positions >= cursors.ends), _NO_FRAME[framing])
    paths = _paths(cursors) if framing == "confluent" else cursors.varints(_INDEX)[:, None]
    if framing == "glue":  # its numbers have no sign
        paths = (paths << 1) ^ (paths >> 63)
    keys = np.column_stack((schemas, paths))
    fine = np.flatnonzero(~np.isin(cursors.rows, list(cursors.failures)))
    keys, groups = np.unique(keys[fine], axis=0, return_inverse=True)
    groups = groups.reshape(-1)
    found = [
        (ids[schema], tuple(index for index in path if index != _NO_INDEX), fine[groups == group])
        for group, (schema, *path) in enumerate(keys.tolist())
    ]
    return cursors, found


def _paths(cursors: Cursors) -> np.ndarray:
    """Read the indexes of messages, as Confluent's serializers write them."""
    counts = cursors.varints(_INDEX)
    cursors.fail((counts < 0) | (counts > _MOST_INDEXES), _NO_FRAME["confluent"])
    depth = min(counts.max(initial=0), _MOST_INDEXES)
    paths = np.full((len(cursors), depth + 1), _NO_INDEX)
    paths[:, 0] = 0  # without an index it is the first message
    for level in range(depth):
        chosen = np.flatnonzero(counts > level)
        some = cursors.take(chosen)
        paths[chosen, level] = some.varints(_INDEX)
        cursors.positions[chosen] = some.positions
    return paths
