"""Messages of Protobuf as columns, by two parsers.

They get a descriptor in which all fields are optional, numbers have 64 bits, and maps are lists of
entries. So they alter none: what is too large for a column is seen here, and bad.

ptars makes columns at once. It skips and replaces without a word what Google's runtime refuses or
clears, and a deep nest of groups ends the process. So what it has of a record counts where it is as
many bytes as the record, and where that leaves a doubt, where it writes the same bytes again.
Google's runtime parses the others.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor_pb2 import FileDescriptorProto, OneofDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from fanout.core.user_functions import is_interrupt
from fanout.decoding.decoder import MOST_OF_ITEMS, last_entries, width

ptars: Any = None
with suppress(ImportError):  # it has no builds for some machines
    ptars = import_module("ptars")

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.protobuf.descriptor import Descriptor

    from fanout.decoding.avro_cursors import Ints, Mask

    Values: TypeAlias = "Numbers | ByteStrings | Messages"

_MICROS: Final = 1_000_000
_NANOS: Final = 1_000_000_000
_MOST_SECONDS: Final = (1 << 63) // _MICROS - 1
_VARINTS: Final = np.array([1 << 7 * count for count in range(1, 10)], np.uint64)
# No record has so many bytes; above are the doubts that a size leaves.
_NEVER: Final = 1 << 32
_DOUBT: Final = 1 << 33
# A number that may have more than 64 bits, which all parsers cut.
_CUT: Final = re.compile(rb"[\x80-\xff]{9}([\x02-\x7f])")
_MORE: Final = 0x80
_ASCII: Final = bytes(range(_MORE))
# Types of a descriptor, and those on the wire.
_IN_VARINTS: Final = (3, 4, 18)
_BYTES: Final = 2
_GROUPS: Final = (3, 4)
_SIZES: Final = {1: 8, 5: 4}
# Records that are left when parsing them one by one takes less time.
_FEW: Final = 64
_LITTLE: Final = 1 << 16
# So many groups in one another fit on a stack.
_MOST_GROUPS: Final = 4096
_GROUP: Final = 10
# What a parser reads a type of a descriptor as, with 64 bits, where the bytes are the same.
_RAW: Final = {5: 3, 8: 3, 13: 4, 14: 3, 17: 18}


class BadMessageError(ValueError):
    """A message has what a parser skips, or does not look at."""


@dataclass(slots=True)
class MessageRows:
    """The record of each value, -1 for that of a message which is not there, and the bad ones."""

    rows: Ints
    failures: dict[int, str]

    def fail(self, bad: Mask, problem: str) -> None:
        """Make the records of some values bad."""
        for row in self.rows[bad].tolist():
            if row >= 0:
                self.failures.setdefault(row, problem)


@dataclass(slots=True)
class _ProtoKind:
    """Values of a kind: `raw` is the type that a parser gives, and `type` that of the column.

    `sizes` are the fewest bytes of each value without a tag, or of all, and any where it is null.
    `read` makes the column, and notes bad records. `parsed` is what Google's runtime has, as `raw`.
    """

    path: str
    raw: pa.DataType
    type: pa.DataType

    def parsed(self, value: Any) -> Any:
        return value


@dataclass(slots=True)
class Numbers(_ProtoKind):
    """Numbers within limits, in as many bytes as `size`, or in the fewest; an enum has names.

    A number without a name is its own.
    """

    limits: tuple[int, int] | None
    size: int | None
    is_zigzag: bool
    names: Mapping[int, str] | None

    def sizes(self, values: pa.Array) -> Any:
        if self.size is not None:
            return self.size
        numbers = _numbers(values)
        sizes = _varint_sizes((numbers << 1) ^ (numbers >> 63) if self.is_zigzag else numbers)
        # What has ten bytes may have more than 64 bits.
        return sizes if type(sizes) is int else sizes + _DOUBT * (sizes > len(_VARINTS))

    def read(self, values: pa.Array, records: MessageRows) -> pa.Array:
        if self.limits is not None and len(values):
            numbers, (least, most) = _numbers(values), self.limits
            if numbers.min() < least or numbers.max() > most:
                bad = (numbers < least) | (numbers > most)
                records.fail(bad, f"{self.path} is too large for {self.type}")
                values = pa.array(np.where(bad, 0, numbers), mask=_nulls(values))
        if self.names is None:
            return values if self.raw == self.type else values.cast(self.type, safe=False)
        known, numbers = np.array(sorted(self.names), np.int64), _numbers(values)
        near = known.take(np.searchsorted(known, numbers), mode="clip")
        known = np.union1d(known, numbers[near != numbers])
        names = [self.names.get(number, str(number)) for number in known.tolist()]
        places = pa.array(np.searchsorted(known, numbers), mask=_nulls(values))
        return pa.array(names, pa.string()).take(places)


@dataclass(slots=True)
class ByteStrings(_ProtoKind):
    """Bytes, or text."""

    def sizes(self, values: pa.Array) -> Any:
        lengths = np.diff(_offsets(values)).astype(np.int64)
        return lengths + _varint_sizes(lengths)

    def read(self, values: pa.Array, records: MessageRows) -> pa.Array:  # noqa: ARG002 - all are good
        return values

    def parsed(self, value: Any) -> Any:
        if isinstance(value, bytes) and self.raw == pa.string():
            raise BadMessageError(f"{self.path} is not UTF-8")
        return value


@dataclass(slots=True)
class Field:
    """A field of a message with one value, or none: that is null, or `default`."""

    name: str  # for the parsers; it has the number, and is none of their words
    values: Values
    raw: pa.Field
    type: pa.DataType
    tag_size: int
    default: pa.Scalar | None = None
    is_required: bool = False
    is_implicit: bool = False  # nobody writes its default

    def sizes(self, values: pa.Array) -> Any:
        """Return the fewest bytes of the field in each message, or in all."""
        sizes = self.values.sizes(values) + self.tag_size
        return np.where(_nulls(values), 0, sizes) if values.null_count else sizes

    def read(self, values: pa.Array, records: MessageRows) -> pa.Array:
        """Return the column, and note which records are bad."""
        array = self.values.read(values, records)
        if not values.null_count:
            return array
        if self.is_required:
            records.fail(_nulls(values), f"{self.values.path} is required, and not there")
        return array if self.default is None else array.fill_null(self.default)

    def parsed(self, value: Any) -> Any:
        """Return what Google's runtime has parsed; None is for nothing."""
        return None if value is None else self.values.parsed(value)


@dataclass(slots=True)
class Repeated(Field):
    """A field with any number of values; numbers may be packed, which saves their tags."""

    is_packed: bool = False

    def sizes(self, values: pa.Array) -> Any:
        items, offsets = values.flatten(), _offsets(values)
        sizes = np.zeros(len(items) + 1, np.int64)
        sizes[1:] = self.values.sizes(items)
        sizes[1:] += 0 if self.is_packed else self.tag_size
        sizes = np.diff(np.cumsum(sizes)[offsets - offsets[0]])
        if not self.is_packed:
            return sizes
        lengths = _varint_sizes(sizes & (_DOUBT - 1))
        packed = np.where(sizes > 0, sizes + lengths + self.tag_size, 0)
        return packed + _DOUBT * (np.diff(offsets) == 1)

    def read(self, values: pa.Array, records: MessageRows) -> pa.Array:
        offsets = _offsets(values) - _offsets(values)[0]
        owners = np.repeat(np.arange(len(values)), np.diff(offsets))
        of_items = MessageRows(records.rows[owners], records.failures)
        items = self.values.read(values.flatten(), of_items)
        if not pa.types.is_map(self.type):
            return pa.ListArray.from_arrays(pa.array(offsets), items, type=self.type)
        last = last_entries(items.field(0), owners)
        if len(last) < len(owners):
            items = items.take(pa.array(last))
            np.cumsum(np.bincount(owners[last], minlength=len(values)), out=offsets[1:])
        return pa.MapArray.from_arrays(pa.array(offsets), *items.flatten(), type=self.type)

    def parsed(self, value: Any) -> Any:
        return [self.values.parsed(each) for each in value or ()]


@dataclass(slots=True)
class Messages(_ProtoKind):
    """Messages as structs, or as what `form` says: times, values in wrappers, true where empty."""

    fields: Sequence[Field]
    oneofs: Sequence[Sequence[str]]  # the names of their fields
    form: str

    def sizes(self, values: pa.Array) -> Any:
        lengths = self.lengths(values)
        return lengths + _varint_sizes(lengths & (_DOUBT - 1))

    def lengths(self, values: pa.Array) -> Ints:
        """Return the fewest bytes of each message; too many where two fields of a oneof are there.

        A parser that has read as many bytes has skipped, replaced and cut none. But a packed field
        with one number may be a byte shorter than here, and a number of ten bytes may have been
        cut. Such doubts are counted in the upper bits.
        """
        total = np.zeros(len(values), np.int64)
        for each in self.fields:
            total += each.sizes(values.field(each.name))
        for names in self.oneofs:
            there = sum((~_nulls(values.field(name))).astype(int) for name in names)
            total[there > 1] = _NEVER
        return total

    def read(self, values: pa.Array, records: MessageRows) -> pa.Array:
        nulls = _nulls(values)
        inner = MessageRows(np.where(nulls, -1, records.rows), records.failures)
        columns = [each.read(values.field(each.name), inner) for each in self.fields]
        if pa.types.is_struct(self.type):
            mask = pa.array(nulls) if values.null_count else None
            return pa.StructArray.from_arrays(columns, fields=list(self.type), mask=mask)
        if self.form == "empty":
            return pa.array(np.ones(len(values), bool), mask=nulls)
        if self.form == "wrapper":
            return pc.if_else(pa.array(nulls), None, columns[0])
        whole, rest = map(_numbers, columns)
        # Both have one sign, and a timestamp counts on from its second.
        bad = np.sign(whole) * np.sign(rest) < 0 if self.form == "duration" else rest < 0
        bad |= (rest >= _NANOS) | (rest <= -_NANOS)
        bad |= (whole > _MOST_SECONDS) | (whole < -_MOST_SECONDS)
        inner.fail(bad, f"{self.path} is no {self.form}, or a too large one")
        inner.fail(rest % 1000 != 0, f"{self.path} has nanoseconds, which {self.type} has not")
        micros = np.where(bad, 0, whole) * _MICROS + rest // 1000
        return pa.array(micros, mask=nulls).cast(self.type)

    def parsed(self, value: Any) -> Any:
        unknown = {f"f{each.field_number}" for each in UnknownFieldSet(value)}
        for each in self.fields if unknown else ():
            if each.name in unknown:
                raise BadMessageError(f"{each.values.path} has another type than in the descriptor")
        if unknown and self.form == "entry":
            raise BadMessageError(f"{self.path} has more than a key and a value")
        found = {field.name: each for field, each in value.ListFields()}
        return {each.name: each.parsed(found.get(each.name)) for each in self.fields}


class Parsers:
    """Both parsers of a message, whose columns are `columns`."""

    def __init__(self, message: Descriptor, columns: Messages) -> None:
        self._name = message.full_name
        self._columns = columns
        pool, file = DescriptorPool(), _raw_file(message)
        pool.Add(file)
        raw = pool.FindMessageTypeByName("M0")
        self._class = GetMessageClass(raw)
        self._handler: Any = None
        # Two bytes may be an item.
        self._most = 2 * MOST_OF_ITEMS // max(_widest_item(columns), 1)
        has_groups = any(each.type == _GROUP for one in file.message_type for each in one.field)
        if ptars is not None and not has_groups:
            self._handler = ptars.HandlerPool([raw.file]).get_for_message(raw)

    def parse(self, payloads: pa.BinaryArray) -> tuple[pa.StructArray, dict[int, str]]:
        """Return what is in each payload, none of them null, and why some cannot be parsed."""
        payloads, too_large = self._without_too_large(payloads)
        pieces: list[pa.StructArray] = []
        exact: list[Ints] = []
        left: list[Ints] = []
        waiting = [(payloads, np.arange(len(payloads)))]
        while waiting:
            part, rows = waiting.pop()
            is_large = len(part) > 1 and _size(part) > self._most
            found = None if is_large else self._at_once(part)
            if found is not None:
                is_exact = self._is_exact(found, part)
                pieces.append(found if is_exact.all() else found.filter(pa.array(is_exact)))
                exact.append(rows[is_exact])
                left.append(rows[~is_exact])
            elif is_large or (len(part) > _FEW and self._handler is not None):
                half = len(part) // 2
                waiting += [(part[:half], rows[:half]), (part[half:], rows[half:])]
            else:
                left.append(rows)
        others = np.concatenate([np.empty(0, np.int64), *left])
        if not len(others) and len(pieces) == 1:
            return pieces[0], too_large
        parsed, failures = self._one_by_one(payloads, others)
        order = np.argsort(np.concatenate([*exact, others]))
        return pa.concat_arrays([*pieces, parsed]).take(pa.array(order)), failures | too_large

    def _without_too_large(self, payloads: pa.BinaryArray) -> tuple[pa.BinaryArray, dict[int, str]]:
        """Empty the payloads that have too many items, and say so."""
        failures: dict[int, str] = {}
        lengths = pc.binary_length(payloads).to_numpy()
        for row in np.flatnonzero(lengths > self._most).tolist():
            try:
                if _size_of_items(payloads[row].as_py(), self._columns) > MOST_OF_ITEMS:
                    failures[row] = f"its items would take more than {MOST_OF_ITEMS} bytes"
            except DecodeError:
                failures[row] = f"it is no {self._name}"
        if failures:
            is_bad = np.isin(np.arange(len(payloads)), list(failures))
            payloads = pc.if_else(pa.array(is_bad), b"", payloads)
        return payloads, failures

    def _at_once(self, payloads: pa.BinaryArray) -> pa.StructArray | None:
        """Return what ptars has; None where there are few, or one that it cannot parse."""
        is_little = len(payloads) <= _FEW and _size(payloads) < _LITTLE
        if self._handler is None or is_little or _has_deep(payloads):
            return None
        try:
            batch = self._handler.array_to_record_batch(payloads)
            arrays = [batch.column(each.name) for each in self._columns.raw]
            return pa.StructArray.from_arrays(arrays, fields=list(self._columns.raw))
        except BaseException as error:
            if is_interrupt(error):
                raise
            return None  # it panics, too

    def _is_exact(self, found: pa.StructArray, payloads: pa.BinaryArray) -> Mask:
        """Return which messages have all that is in their payloads, and nothing else."""
        sizes = self._columns.lengths(found)
        is_exact: Mask = sizes & (_DOUBT - 1) == pc.binary_length(payloads).to_numpy()
        doubtful = np.flatnonzero(is_exact & (sizes >= _DOUBT))
        if len(doubtful):
            rows = pa.array(doubtful)
            written = self.write(found.take(rows))
            is_exact[doubtful] = pc.equal(written, payloads.take(rows)).to_numpy(
                zero_copy_only=False
            )
        return is_exact

    def write(self, found: pa.StructArray) -> pa.BinaryArray:
        """Return the bytes of messages, none of them null."""
        if self._handler is not None:
            return self._handler.record_batch_to_array(pa.RecordBatch.from_struct_array(found))
        made = (self._class(**row) for row in found.to_pylist())
        return pa.array([each.SerializePartialToString() for each in made], pa.binary())

    def _parsed(self, body: bytes) -> Any:
        """Return what Google's runtime parses."""
        found = self._columns.parsed(self._class.FromString(body))
        if len(body.translate(None, _ASCII)) >= len(_VARINTS) and _CUT.search(body) is not None:
            _check_numbers(body, self._class.DESCRIPTOR)
        return found

    def _one_by_one(
        self, payloads: pa.BinaryArray, rows: Ints
    ) -> tuple[pa.StructArray, dict[int, str]]:
        values, failures = [], {}
        bodies = payloads.take(pa.array(rows)).to_pylist()
        for row, body in zip(rows.tolist(), bodies, strict=True):
            try:
                values.append(self._parsed(body))
            except (DecodeError, BadMessageError) as error:
                known = isinstance(error, BadMessageError)
                failures[row] = str(error) if known else f"it is no {self._name}"
                values.append(self._columns.parsed(self._class()))
        return pa.array(values, self._columns.raw), failures


def _widest_item(columns: Messages) -> int:
    """Return how many bytes a message takes in columns, the widest of those inside of one."""
    inside = [each.values for each in columns.fields if isinstance(each.values, Messages)]
    return max((max(_width(each), _widest_item(each)) for each in inside), default=0)


def _width(columns: Messages) -> int:
    return width(columns.raw) + width(columns.type)


def _size_of_items(body: bytes, columns: Messages) -> int:
    """Return how many bytes the messages inside of one take in columns; they are not parsed."""
    inside = {f.name: f.values for f in columns.fields if isinstance(f.values, Messages)}
    if not inside:
        return 0
    found, size = _counter(tuple(inside)).FromString(body), 0
    for name, each in inside.items():
        items = getattr(found, name)
        size += len(items) * _width(each)
        if size <= MOST_OF_ITEMS and _widest_item(each):
            size += sum(_size_of_items(item, each) for item in items)
    return size


@lru_cache(maxsize=256)
def _counter(names: tuple[str, ...]) -> Any:
    """Return the class of a message that has some fields as bytes, and nothing else."""
    pool, file = DescriptorPool(), FileDescriptorProto(name="counted.proto", syntax="proto2")
    message = file.message_type.add(name="M")
    for name in names:
        message.field.add(name=name, number=int(name[1:]), type=12, label=3)
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("M"))


def _size(payloads: pa.BinaryArray) -> int:
    """Return how many bytes payloads have."""
    offsets = _offsets(payloads)
    return int(offsets[-1]) - int(offsets[0])


def _check_numbers(body: bytes, kind: Descriptor | None) -> None:
    """Check that no number of a message has more than 64 bits."""
    at, groups = 0, [kind]
    while at < len(body):
        tag, at = _varint(body, at)
        kind = groups[-1]
        field = None if kind is None else kind.fields_by_number.get(tag >> 3)
        inner = None if field is None else field.message_type
        wire = tag & 7
        if wire in _GROUPS:
            groups = [*groups, inner] if wire == _GROUPS[0] else groups[:-1]
        elif wire == _BYTES:
            size, at = _varint(body, at)
            if inner is not None:
                _check_numbers(body[at : at + size], inner)
            while field is not None and field.is_repeated and field.type in _IN_VARINTS and size:
                _, end = _varint(body, at)
                size, at = size - (end - at), end
            at += size
        else:
            at = _varint(body, at)[1] if wire == 0 else at + _SIZES[wire]


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Return a number, and where it ends."""
    number = shift = 0
    while True:
        number |= (body[at] & 0x7F) << shift
        at += 1
        if body[at - 1] < _MORE:
            break
        shift += 7
    if number >> 64:
        raise BadMessageError("it has a number of more than 64 bits")
    return number, at


def default_of(values: Values, value: Any) -> pa.Scalar:
    """Return the value of a field that is not there."""
    if isinstance(values, Messages):
        return values.read(pa.array([{}], values.raw), MessageRows(np.array([-1]), {}))[0]
    if isinstance(values, Numbers) and values.names is not None:
        value = values.names[value]
    return pa.scalar(value, values.type)


def _numbers(values: pa.Array, dtype: Any = None, more: int = 0) -> np.ndarray:
    """Return the whole numbers in a column, any where it is null; or offsets, one more."""
    data = values.buffers()[1] or bytes(4 * more)
    numbers = np.frombuffer(data, dtype or str(values.type))
    return numbers[values.offset :][: len(values) + more]


def _offsets(values: pa.Array) -> np.ndarray:
    return _numbers(values, np.int32, 1)


def _nulls(values: pa.Array) -> Mask:
    """Return which values are null; pyarrow takes several times as long."""
    mask = values.buffers()[0]
    if not values.null_count or mask is None:
        return np.zeros(len(values), bool)
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return np.equal(bits[values.offset :][: len(values)], 0)


def _varint_sizes(numbers: np.ndarray) -> Any:
    unsigned = numbers.view(np.uint64)
    if not len(numbers) or unsigned.max() < _VARINTS[0]:
        return 1
    return np.searchsorted(_VARINTS, unsigned, side="right") + 1


def _has_deep(payloads: pa.BinaryArray) -> bool:
    """Return whether a record may have a deep nest of groups; each begins with such bits."""
    rows = np.flatnonzero(pc.binary_length(payloads).to_numpy() > _MOST_GROUPS)
    data = (np.frombuffer(payloads[row].as_buffer(), np.uint8) for row in rows.tolist())
    return any(np.count_nonzero(each & 7 == 3) > _MOST_GROUPS for each in data)  # noqa: PLR2004


def _raw_file(message: Descriptor) -> FileDescriptorProto:
    """Return a file whose first message is as one, with what a parser reads each field as."""
    file = FileDescriptorProto(name="raw.proto", syntax="proto2")
    waiting, names = [message], {message.full_name: "M0"}
    for each in waiting:
        made = file.message_type.add(name=names[each.full_name])
        made.oneof_decl.extend(OneofDescriptorProto(name=f"o{n}") for n in range(len(each.oneofs)))
        for field in each.fields:
            of = made.field.add(name=f"f{field.number}", number=field.number)
            of.type = _RAW.get(field.type, field.type)
            of.label = 3 if field.is_repeated else 1
            if field.containing_oneof is not None:
                of.oneof_index = field.containing_oneof.index
            if field.message_type is not None:
                name = field.message_type.full_name
                if name not in names:
                    names[name] = f"M{len(names)}"
                    waiting.append(field.message_type)
                of.type_name = names[name]
    return file
