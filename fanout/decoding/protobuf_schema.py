"""Messages of Protobuf: from descriptors to columns, and what a registry has of them.

The types are those of Spark's `from_protobuf` where it unwraps wrappers, and gives unsigned numbers
a type that has all of them.
"""

from __future__ import annotations

import base64
import os
import re
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from fanout.core.sentence import Option
from fanout.decoding import protobuf_columns as columns
from fanout.errors import OptionError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

    from fanout.decoding.registry import Schemas

_INT32: Final = (-(1 << 31), (1 << 31) - 1)
_DECIMAL: Final = pa.decimal128(20, 0)
# By the type in a descriptor: what a parser gives, the column, its limits, the bytes of a number.
_NUMBERS: Final = {
    1: (pa.float64(), pa.float64(), None, 8),
    2: (pa.float32(), pa.float32(), None, 4),
    **dict.fromkeys((3, 18), (pa.int64(), pa.int64(), None, None)),
    4: (pa.uint64(), _DECIMAL, None, None),
    **dict.fromkeys((5, 17), (pa.int64(), pa.int32(), _INT32, None)),
    6: (pa.uint64(), _DECIMAL, None, 8),
    7: (pa.uint32(), pa.int64(), None, 4),
    8: (pa.int64(), pa.bool_(), (0, 1), None),
    13: (pa.uint64(), pa.int64(), (0, (1 << 32) - 1), None),
    14: (pa.int64(), pa.string(), _INT32, None),
    15: (pa.int32(), pa.int32(), None, 4),
    16: (pa.int64(), pa.int64(), None, 8),
}
_ZIGZAG: Final = {17, 18}
_BYTES: Final = {9: pa.string(), 12: pa.binary()}
_WRAPPERS: Final = "google/protobuf/wrappers.proto"
_TIMES: Final = {
    "google.protobuf.Timestamp": ("timestamp", pa.timestamp("us", "UTC")),
    "google.protobuf.Duration": ("duration", pa.duration("us")),
}
# Types whose bytes are equal values: numbers below zero, or above 63 bits, are others elsewhere.
_ALIKE: Final = {
    **dict.fromkeys((3, 5, 14), "signed"),
    **dict.fromkeys((8, 13), "small"),
    **dict.fromkeys(_ZIGZAG, "zigzag"),
    4: "unsigned",
    9: "text",
    12: "bytes",
    **{kind: str(kind) for kind in (1, 2, 6, 7, 10, 11, 15, 16)},
}
_COMPATIBLE: Final = (
    {"signed", "small"},
    {"unsigned", "small"},
    {"bytes", "text"},
    {"bytes", "11"},
)
_TYPE_NAME: Final = FieldDescriptorProto.Type.Name
# What descriptors of a registry import without having it.
_NAMES: Final = ("any", "descriptor", "duration", "empty", "field_mask", "timestamp", "wrappers")
_KNOWN: Final = [import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR for name in _NAMES]
# Comments and texts of a .proto file.
_TOKENS: Final = re.compile(
    r"\bmessage\s+(?P<message>\w+)\s*\{|\bgroup\s+(?P<group>\w+)\s*=[^{;]*\{|\bmap\s*<[^>]*>\s*(?P<map>\w+)|[{}]"
)
_NOISE: Final = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'", re.DOTALL)


def descriptor_set(given: object) -> bytes:
    """Return a descriptor set: bytes, those in a file, of a class, or what a registry has."""
    if isinstance(given, bytes):
        return given
    files = FileDescriptorSet()
    try:
        if isinstance(given, str | os.PathLike):
            return Path(given).read_bytes()
        if isinstance(given, tuple):
            files.file.extend(map(_from_base64, given))
        else:
            _add_file(files, given.DESCRIPTOR.file)  # type: ignore[attr-defined]
    except (ValueError, DecodeError) as error:
        raise OptionError(
            "the registry has the schema as text alone: pass a descriptor set, which protoc "
            "writes with --include_imports --descriptor_set_out=FILE"
        ) from error
    except (AttributeError, OSError, TypeError) as error:
        raise OptionError(
            Option("descriptor", given),
            " must be a descriptor set as bytes, the path of its file, or the class of a message",
        ) from error
    return bytes(files.SerializeToString())


def find_message(files: bytes, name: str | None) -> Descriptor:
    """Return a message of a descriptor set; without a name, the only one of its last file."""
    pool = DescriptorPool()
    try:
        given = FileDescriptorSet.FromString(files).file
        for each in given:
            each.name = each.name or "schema.proto"
        there = {each.name for each in given}
        known = [each for each in _KNOWN if each.name not in there]
        for each in known:
            pool.AddSerializedFile(each.serialized_pb)
        for each in given:
            pool.Add(each)
    except (DecodeError, TypeError) as error:
        problem = " is no descriptor set, or lacks a file that it imports: "
        raise OptionError(Option("descriptor"), problem, error) from error
    names = [f"{f.package}.{m.name}".lstrip(".") for f in given[-1:] for m in f.message_type]
    try:
        return pool.FindMessageTypeByName(names[0] if name is None and len(names) == 1 else name)
    except (KeyError, TypeError) as error:
        if name is None:
            several = f" is missing: the descriptor has {', '.join(names) or 'no message'}"
            raise OptionError(Option("message"), several) from error
        choice = f" must be one of the descriptor's, such as {', '.join(names) or 'none'}"
        raise OptionError(Option("message", name), choice) from error


@lru_cache(maxsize=256)
def changed_type(schemas: Schemas, name: str, files: bytes) -> str:
    """Return which field a writer's message has of a type whose bytes are another value here.

    It is empty for none, and where the schema is text.
    """
    try:
        writer = find_message(descriptor_set(schemas), name)
    except OptionError:
        return ""
    return _changed(writer, find_message(files, name), "")


def _changed(writer: Descriptor, reader: Descriptor, above: str) -> str:
    for field in reader.fields:
        written, path = writer.fields_by_number.get(field.number), f"{above}{field.name}"
        if written is None:
            continue
        kinds = {_ALIKE[each.type] for each in (written, field)}
        if len(kinds) > 1 and kinds not in _COMPATIBLE:
            one, other = (_TYPE_NAME(each.type)[5:].lower() for each in (field, written))
            return f"{path} is {one}, and was written as {other}"
        if written.is_repeated and not field.is_repeated:  # parsers read the last value
            return f"{path} is one value, and was written as repeated"
        if written.message_type is not None and field.message_type is not None:
            inner = _changed(written.message_type, field.message_type, f"{path}.")
            if inner:
                return inner
    return ""


class _Message(NamedTuple):
    """A message of a schema, with those inside it in their order."""

    name: str
    is_entry: bool  # of a map, which the texts of schemas do not show
    inside: list[_Message]


@lru_cache(maxsize=256)
def messages_at(schema: str, path: tuple[int, ...]) -> frozenset[str]:
    """Return the full names of the message at a path of indexes in a schema, a text or descriptor.

    There may be two: Confluent's serializers in Java count no entries of maps, and others do.
    """
    package, top = _messages(schema)
    found = {package: top}
    for index in path:
        found = {
            f"{name}.{message.name}".lstrip("."): message.inside
            for name, inside in found.items()
            for counted in (inside, [each for each in inside if not each.is_entry])
            if 0 <= index < len(counted)
            for message in counted[index : index + 1]
        }
    return frozenset(found)


@lru_cache(maxsize=256)
def messages_sorted(schema: str) -> list[str]:
    """Return the full names of all messages of a schema in order, as AWS Glue counts them."""
    package, left = _messages(schema)
    named = [(f"{package}.{each.name}".lstrip("."), each) for each in left]
    for name, message in named:  # it grows meanwhile
        named += [(f"{name}.{each.name}", each) for each in message.inside]
    return sorted(name for name, _ in named)


@lru_cache(maxsize=256)
def _messages(schema: str) -> tuple[str, list[_Message]]:
    """Return the package of a schema, and its messages."""
    try:
        file = _from_base64(schema)
    except (ValueError, DecodeError):
        text = _NOISE.sub(" ", schema)
        return "".join(re.findall(r"\bpackage\s+([\w.]+)", text)[:1]), _of_text(text)
    return file.package, [_of_descriptor(each) for each in file.message_type]


def _of_descriptor(message: DescriptorProto) -> _Message:
    inside = [_of_descriptor(each) for each in message.nested_type]
    return _Message(message.name, message.options.map_entry, inside)


def _of_text(text: str) -> list[_Message]:
    top: list[_Message] = []
    around = [top]
    for token in _TOKENS.finditer(text):
        if token["map"]:
            around[-1].append(_Message(_entry(token["map"]), is_entry=True, inside=[]))
        elif name := token["message"] or token["group"]:
            message = _Message(name, is_entry=False, inside=[])
            around[-1].append(message)
            around.append(message.inside)
        elif token[0] == "{":
            around.append(around[-1])
        elif len(around) > 1:
            around.pop()
    return top


def _entry(field: str) -> str:
    """Return the name that protoc gives the entries of a map."""
    words = re.sub("(?:^|_+)([a-z]?)", lambda found: found[1].upper(), field)
    return f"{words}Entry"


def _from_base64(text: str) -> FileDescriptorProto:
    return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))


def _add_file(files: FileDescriptorSet, file: FileDescriptor) -> None:
    """Add a file behind those that it imports."""
    for each in file.dependencies:
        _add_file(files, each)
    if file.name not in {each.name for each in files.file}:
        file.CopyToProto(files.file.add())


def plan(
    message: Descriptor, path: str, within: tuple[str, ...] = (), *, times: bool
) -> columns.Messages:
    """Return what reads the columns of a message; `times` says whether times are of their own.

    Raises:
        OptionError: If there are none, or it contains itself.
    """
    name = message.full_name
    if name in within:
        raise OptionError(
            f"the message {name} contains itself at {path}, and columns have an end: leave the "
            "field out of the descriptor"
        )
    if not message.fields and not within:
        raise OptionError(f"the message {name} has no fields")
    fields = [_field(each, path, (*within, name), times=times) for each in message.fields]
    kind = pa.struct([(f.name, c.type) for f, c in zip(message.fields, fields, strict=True)])
    form = "struct"
    if within and message.file.name == _WRAPPERS:
        form, kind = "wrapper", fields[0].type
    elif within and times and name in _TIMES:
        form, kind = _TIMES[name]
    elif message.GetOptions().map_entry:
        form = "entry"
    elif not fields:
        form, kind = "empty", pa.bool_()
    oneofs = [[f"f{each.number}" for each in oneof.fields] for oneof in message.oneofs]
    # ptars has them in the order of their numbers.
    raw = pa.struct([each.raw for each in sorted(fields, key=lambda each: int(each.name[1:]))])
    return columns.Messages(path, raw, kind, fields, oneofs, form)


def _field(
    field: FieldDescriptor, above: str, within: tuple[str, ...], *, times: bool
) -> columns.Field:
    path = f"{above}.{field.name}" if above else field.name
    path += "[]" if field.is_repeated else ""
    inner, names = field.message_type, None
    if inner is not None:
        values: columns.Values = plan(inner, path, within, times=times)
    elif field.type in _BYTES:
        values = columns.ByteStrings(path, _BYTES[field.type], _BYTES[field.type])
    else:
        if field.enum_type is not None:
            names = {each.number: each.name for each in reversed(field.enum_type.values)}
        is_zigzag = field.type in _ZIGZAG
        values = columns.Numbers(path, *_NUMBERS[field.type], is_zigzag, names)
    name, tag_size = f"f{field.number}", (field.number.bit_length() + 3 + 6) // 7
    if field.is_repeated:
        raw = pa.list_(pa.field("item", values.raw, nullable=False))
        is_map = inner is not None and inner.GetOptions().map_entry
        kind = pa.map_(*(each.type for each in values.type)) if is_map else pa.list_(values.type)
        raw = pa.field(name, raw, nullable=False)
        return columns.Repeated(name, values, raw, kind, tag_size, is_packed=field.is_packed)
    in_map, default = field.containing_type.GetOptions().map_entry, None
    if in_map or field.has_default_value or not field.has_presence:
        default = columns.default_of(values, field.default_value)
    raw, is_implicit = pa.field(name, values.raw), not (in_map or field.has_presence)
    return columns.Field(
        name, values, raw, values.type, tag_size, default, field.is_required, is_implicit
    )
