"""Messages of Protobuf: from descriptors to columns, and what a registry has of them.

The types of the columns are those of Spark's `from_protobuf` where it unwraps wrappers and gives
unsigned numbers a type that has all of them.
"""

from __future__ import annotations

import base64
import os
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from fanout.core.sentence import Option
from fanout.decoding import protobuf_columns as columns
from fanout.decoding.protobuf_fields import FIXED32, FIXED64, GROUP, LENGTH, VARINT
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

_UNSIGNED: Final = pa.decimal128(20, 0)
# By the type in a descriptor: the column, the type of numpy, the form in the bytes.
_NUMBERS: Final = {
    1: (pa.float64(), "f8", FIXED64),
    2: (pa.float32(), "f4", FIXED32),
    3: (pa.int64(), "i8", VARINT),
    4: (_UNSIGNED, "u8", VARINT),
    5: (pa.int32(), "i4", VARINT),
    6: (_UNSIGNED, "u8", FIXED64),
    7: (pa.int64(), "u4", FIXED32),
    8: (pa.bool_(), "bool", VARINT),
    13: (pa.int64(), "u4", VARINT),
    15: (pa.int32(), "i4", FIXED32),
    16: (pa.int64(), "i8", FIXED64),
    17: (pa.int32(), "i4", VARINT),
    18: (pa.int64(), "i8", VARINT),
}
_ZIGZAG: Final = {17, 18}
_BYTES: Final = {9: pa.string(), 12: pa.binary()}
_GROUP: Final = 10
_GOOGLE: Final = "google.protobuf."
_TIMES: Final = {
    f"{_GOOGLE}Timestamp": ("timestamp", pa.timestamp("us", "UTC")),
    f"{_GOOGLE}Duration": ("duration", pa.duration("us")),
}
_WRAPPED: Final = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
_WRAPPERS: Final = {f"{_GOOGLE}{kind}Value" for kind in _WRAPPED}
_WORDS: Final = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[\w.]+|[^\s\w.]", re.DOTALL
)


def descriptor_set(given: object) -> bytes:
    """Return a descriptor set: bytes, those in a file, of a class, or what a registry has."""
    if isinstance(given, bytes):
        return given
    if isinstance(given, str | os.PathLike):
        try:
            return Path(given).read_bytes()
        except OSError as error:
            raise OptionError(Option("descriptor", given), " cannot be read: ", error) from error
    files = FileDescriptorSet()
    if isinstance(given, tuple):
        for text in given:
            file = _from_base64(text)
            if file is None:
                raise OptionError(
                    "the registry has the schema as text alone: pass a descriptor set, which "
                    "protoc writes with --include_imports --descriptor_set_out=FILE"
                )
            files.file.append(file)
        return files.SerializeToString()
    try:
        _add_file(files, given.DESCRIPTOR.file)  # type: ignore[attr-defined]
    except AttributeError:
        raise OptionError(
            Option("descriptor", given),
            " must be a descriptor set as bytes, the path of its file, or the class of a message",
        ) from None
    return files.SerializeToString()


def find_message(files: bytes, name: str | None) -> Descriptor:
    """Return a message of a descriptor set; without a name, the only one of its last file."""
    try:
        found = {each.name: each for each in FileDescriptorSet.FromString(files).file}
    except DecodeError as error:
        raise OptionError(Option("descriptor"), " is no descriptor set") from error
    pool = DescriptorPool()
    added: set[str] = set()
    names: list[str] = []
    for each in found.values():
        _add_to_pool(pool, each, found, added)
        names = [".".join(filter(None, (each.package, m.name))) for m in each.message_type]
    try:
        return pool.FindMessageTypeByName(names[0] if name is None and len(names) == 1 else name)
    except (KeyError, TypeError) as error:
        raise OptionError(
            Option("message", name),
            f" must be one of the descriptor's, such as {', '.join(names) or 'none'}",
        ) from error


def _add_file(files: FileDescriptorSet, file: FileDescriptor) -> None:
    """Add a file behind those that it imports."""
    for each in file.dependencies:
        _add_file(files, each)
    if file.name not in {each.name for each in files.file}:
        file.CopyToProto(files.file.add())


def _add_to_pool(
    pool: DescriptorPool,
    file: FileDescriptorProto,
    files: dict[str, FileDescriptorProto],
    added: set[str],
) -> None:
    """Add a file behind those that it imports; Google's own ones need not be there."""
    if file.name in added:
        return
    added.add(file.name)
    for name in file.dependency:
        _add_to_pool(pool, files.get(name) or _installed(name), files, added)
    try:
        pool.Add(file)
    except TypeError as error:
        raise OptionError(Option("descriptor"), f" has the malformed file {file.name}") from error


def _installed(name: str) -> FileDescriptorProto:
    try:
        module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    except (ImportError, AttributeError) as error:
        raise OptionError(
            Option("descriptor"), f" lacks {name}, which is imported: pass --include_imports"
        ) from error


def names_at(schema: str, path: Sequence[int]) -> set[str]:
    """Return which message of a schema a path of indexes means; by each way to count them.

    Confluent's serializer in Python counts the entries of maps among the messages in a message,
    and the one in Java does not.
    """
    file = _from_base64(schema)
    package, messages = _named_in_text(schema) if file is None else (file.package, _named_in(file))
    names = set()
    for with_maps in (True, False):
        name, inner = package, messages
        for index in path:
            those = inner if with_maps else [each for each in inner if each is not None]
            found = those[index] if 0 <= index < len(those) else None
            if found is None:
                break
            name, inner = ".".join(filter(None, (name, found[0]))), found[1]
        else:
            names.add(name)
    return names


def _from_base64(text: str) -> FileDescriptorProto | None:
    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None


def _named_in(message: FileDescriptorProto | DescriptorProto) -> list[Any]:
    """Return the name of each message, and those in it; None for the entry of a map."""
    file = isinstance(message, FileDescriptorProto)
    inner = message.message_type if file else message.nested_type
    return [None if each.options.map_entry else (each.name, _named_in(each)) for each in inner]


def _named_in_text(text: str) -> tuple[str, list[Any]]:
    """Return the package of a .proto file, and the same of its messages."""
    package, within, words = "", [list[Any]()], list[str]()
    for word in _WORDS.findall(text):
        if word[:2] in {"//", "/*"}:
            continue
        if word == "{":
            inner = within[-1]
            if words[-2:-1] == ["message"] or "group" in words[:2]:
                name = words[words.index("group") + 1] if "group" in words[:2] else words[-1]
                inner = []
                within[-1].append((name, inner))
            within.append(inner)
        elif word == "}":
            within = within[:-1] or within
        elif word == ";":
            package = words[1] if words[:1] == ["package"] else package
            within[-1].extend([None] * (words[:2] == ["map", "<"]))
        else:
            words.append(word)
            continue
        words = []
    return package, within[0]


class Planner:
    """Makes what reads messages; `times` says whether times are columns of their own."""

    def __init__(self, *, times: bool) -> None:
        self._times = times

    def plan(self, message: Descriptor) -> columns.Messages:
        """Return what reads the columns of records.

        Raises:
            OptionError: If they have none, or contain themselves.
        """
        if not message.fields:
            raise OptionError(f"the message {message.full_name} has no fields")
        return self._messages(message, "", LENGTH, ())

    def _messages(
        self, message: Descriptor, path: str, wire: int, within: tuple[str, ...]
    ) -> columns.Messages:
        name = message.full_name
        if name in within:
            raise OptionError(
                f"the message {name} contains itself at {path}, and columns have an end: leave "
                "the field out of the descriptor"
            )
        fields = [self._field(each, path, (*within, name)) for each in message.fields]
        form = "struct"
        kind = pa.struct([(f.name, c.type) for f, c in zip(message.fields, fields, strict=True)])
        if not within:
            pass  # a record has its own columns, whatever it is
        elif name in _WRAPPERS:
            form, kind = "wrapper", fields[0].type
        elif name in _TIMES and self._times:
            form, kind = _TIMES[name]
        elif not fields:
            form, kind = "empty", pa.bool_()
        oneofs = [[each.number for each in oneof.fields] for oneof in message.oneofs]
        return columns.Messages(
            path=path, type=kind, wire=wire, fields=fields, oneofs=oneofs, form=form
        )

    def _field(self, field: FieldDescriptor, above: str, within: tuple[str, ...]) -> columns.Field:
        path = f"{above}.{field.name}" if above else field.name
        message = field.message_type
        if field.is_repeated:
            values = self._values(field, f"{path}[]", within)
            is_map = message is not None and message.GetOptions().map_entry
            kind = columns.Maps if is_map else columns.Repeated
            return kind(number=field.number, values=values)
        values = self._values(field, path, within)
        in_map = field.containing_type.GetOptions().map_entry
        default = None
        if message is None and (in_map or field.has_default_value or not field.has_presence):
            value = field.default_value
            if field.enum_type is not None:
                value = field.enum_type.values_by_number[value].name
            default = pa.scalar(value, values.type)
        return columns.Field(
            number=field.number,
            values=values,
            default=default,
            is_required=field.is_required,
            is_always=in_map and message is not None,
        )

    def _values(
        self, field: FieldDescriptor, path: str, within: tuple[str, ...]
    ) -> columns.Values:
        if field.type in _NUMBERS:
            kind, dtype, wire = _NUMBERS[field.type]
            is_zigzag = field.type in _ZIGZAG
            return columns.Numbers(
                path=path, type=kind, wire=wire, dtype=dtype, is_zigzag=is_zigzag
            )
        if field.type in _BYTES:
            return columns.Bytes(path=path, type=_BYTES[field.type], wire=LENGTH)
        if field.enum_type is not None:
            names = {each.number: each.name for each in reversed(field.enum_type.values)}
            return columns.Enums(path=path, type=pa.string(), wire=VARINT, dtype="i4", names=names)
        wire = GROUP if field.type == _GROUP else LENGTH
        return self._messages(field.message_type, path, wire, within)
