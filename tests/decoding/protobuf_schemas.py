"""Random descriptors of Protobuf, messages of them, and what columns have of a message."""

from __future__ import annotations

import copy
import datetime as dt
from typing import Any, Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.text_format import Parse
from hypothesis import strategies as st

__all__ = (
    "evolved",
    "files",
    "in_columns",
    "message_class",
    "messages",
    "parse",
    "pythonic",
    "serialized",
)

_FIELD = FieldDescriptorProto
_TIMES: Final = ("Timestamp", "Duration")
_KNOWN: Final = (*_TIMES, "Int32Value", "UInt64Value", "StringValue", "BoolValue", "Any", "Empty")
_FILES: Final = ("timestamp", "duration", "wrappers", "any", "empty")
_ATOMS: Final[dict[int, st.SearchStrategy[Any]]] = {
    _FIELD.TYPE_DOUBLE: st.floats(allow_nan=False),
    _FIELD.TYPE_FLOAT: st.floats(width=32, allow_nan=False),
    **dict.fromkeys((3, 16, 18), st.integers(-(2**63), 2**63 - 1) | st.integers(-99, 99)),
    **dict.fromkeys((4, 6), st.integers(0, 2**64 - 1) | st.integers(0, 200)),
    **dict.fromkeys((5, 15, 17), st.integers(-(2**31), 2**31 - 1) | st.integers(-99, 99)),
    **dict.fromkeys((7, 13), st.integers(0, 2**32 - 1)),
    _FIELD.TYPE_BOOL: st.booleans(),
    _FIELD.TYPE_STRING: st.text(max_size=150),
    _FIELD.TYPE_BYTES: st.binary(max_size=30),
}
_DEFAULTS: Final = {3: "-7", 4: "18446744073709551615", 8: "true", 9: "dé", 12: "\\001x", 1: "1.5"}
_KEYS: Final = (3, 4, 5, 6, 7, 8, 9, 13, 15, 16, 17, 18)


def parse(*texts: str) -> bytes:
    """Return a descriptor set of files as text."""
    found = FileDescriptorSet()
    for text in texts:
        Parse(text, found.file.add())
    return bytes(found.SerializeToString())


def serialized(*found: FileDescriptorProto) -> bytes:
    return bytes(FileDescriptorSet(file=found).SerializeToString())


def message_class(file: FileDescriptorProto, name: str = "M0") -> Any:
    pool = DescriptorPool()
    for each in file.dependency:
        module = each.removesuffix(".proto").replace("/", ".") + "_pb2"
        known = __import__(module, fromlist=["DESCRIPTOR"])
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(f"t.{name}"))


@st.composite
def files(draw: Any) -> FileDescriptorProto:
    """A file with the message `t.M0`, and those in it."""
    syntax = draw(st.sampled_from(["proto3", "proto2"]))
    file = FileDescriptorProto(name="t.proto", package="t", syntax=syntax)
    file.dependency.extend(f"google/protobuf/{each}.proto" for each in _FILES)
    enum = file.enum_type.add(name="E")
    for number, name in ((0, "A"), (1, "B"), (-5, "C"), (70_000, "D")):
        enum.value.add(name=name, number=number)
    _message(draw, file, 3)
    return file


def _message(draw: Any, file: FileDescriptorProto, depth: int) -> str:
    name = f"M{len(file.message_type)}"
    message = file.message_type.add(name=name)
    place = len(file.message_type) - 1
    numbers = draw(
        st.lists(
            st.integers(1, 40) | st.sampled_from([2047, 2048, 2**29 - 1]),
            min_size=1 if depth == 3 else 0,
            max_size=6,
            unique=True,
        )
    )
    oneof = draw(st.booleans()) and len(numbers) > 2
    for index, number in enumerate(numbers):
        made = FieldDescriptorProto(name=f"f{index}", number=number)
        field = _field(draw, file, place, depth, made)
        if oneof and field.label == _FIELD.LABEL_OPTIONAL and not field.default_value:
            field.oneof_index = 0
        message = file.message_type[place]
        message.field.append(field)
    oneofs = [each for each in message.field if each.HasField("oneof_index")]
    if oneofs:
        message.oneof_decl.add(name="one")
    plain = file.syntax == "proto3" and not oneofs
    for each in message.field:
        if plain and each.label == 1 and each.type != 11 and draw(st.booleans()):
            each.proto3_optional = True
            each.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{each.name}")
    return f".t.{name}"


def _field(
    draw: Any, file: FileDescriptorProto, place: int, depth: int, field: FieldDescriptorProto
) -> FieldDescriptorProto:
    labels = [_FIELD.LABEL_OPTIONAL, _FIELD.LABEL_OPTIONAL, _FIELD.LABEL_REPEATED]
    if file.syntax == "proto2":
        labels.append(_FIELD.LABEL_REQUIRED)
    field.label = draw(st.sampled_from(labels))
    kinds = ["atom"] * 4 + ["enum", "known"]
    if depth > 0:
        kinds += ["message", "map"] + ["group"] * (file.syntax == "proto2")
    match draw(st.sampled_from(kinds)):
        case "map":
            return _map(draw, file, place, depth, field)
        case "group":
            field.type = _FIELD.TYPE_GROUP
            field.type_name = _message(draw, file, depth - 1)
        case kind:
            _set_type(draw, file, depth, kind, field)
    if field.type in _ATOMS:
        if field.label == _FIELD.LABEL_REPEATED and field.type not in {9, 12}:
            field.options.packed = draw(st.booleans())
        if file.syntax == "proto2" and field.label == 1 and field.type in _DEFAULTS:
            field.default_value = draw(st.sampled_from(["", _DEFAULTS[field.type]]))
            if not field.default_value:
                field.ClearField("default_value")
    return field


def _set_type(
    draw: Any, file: FileDescriptorProto, depth: int, kind: str, field: FieldDescriptorProto
) -> None:
    match kind:  # type: ignore[exhaustive-match]
        case "atom":
            field.type = draw(st.sampled_from(sorted(_ATOMS)))
        case "enum":
            field.type, field.type_name = _FIELD.TYPE_ENUM, ".t.E"
        case "known":
            name = draw(st.sampled_from(_KNOWN))
            field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".google.protobuf.{name}"
        case "message":
            field.type = _FIELD.TYPE_MESSAGE
            field.type_name = _message(draw, file, depth - 1)


def _map(
    draw: Any,
    file: FileDescriptorProto,
    place: int,
    depth: int,
    field: FieldDescriptorProto,
) -> FieldDescriptorProto:
    name = field.name.upper() + "Entry"
    entry = DescriptorProto(name=name)
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=draw(st.sampled_from(_KEYS)))
    value = entry.field.add(name="value", number=2, label=1)
    kind = draw(st.sampled_from(["atom", "enum", "known", "message"]))
    _set_type(draw, file, depth, kind, value)
    file.message_type[place].nested_type.append(entry)
    field.type, field.label = _FIELD.TYPE_MESSAGE, _FIELD.LABEL_REPEATED
    field.type_name = f".t.{file.message_type[place].name}.{name}"
    return field


@st.composite
def messages(draw: Any, kind: Any) -> Any:
    """A message of a class, with some of its fields."""
    message = kind()
    _fill(draw, message)
    return message


def _fill(draw: Any, message: Any) -> None:  # noqa: C901, PLR0912 - one case for each kind
    name = message.DESCRIPTOR.full_name
    if name.removeprefix("google.protobuf.") in _TIMES:
        _fill_time(draw, message, name)
        return
    for field in message.DESCRIPTOR.fields:
        if not field.is_required and draw(st.integers(0, 3)) == 0:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(draw(st.integers(0, 3))):
                key, value = field.message_type.fields
                key = draw(_scalars(key))
                if value.message_type is not None:
                    _fill(draw, getattr(message, field.name)[key])
                else:
                    getattr(message, field.name)[key] = draw(_scalars(value))
        elif field.is_repeated:
            for _ in range(draw(st.integers(0, 4))):
                if field.message_type is not None:
                    _fill(draw, getattr(message, field.name).add())
                else:
                    getattr(message, field.name).append(draw(_scalars(field)))
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            _fill(draw, getattr(message, field.name))
        else:
            setattr(message, field.name, draw(_scalars(field)))


def _fill_time(draw: Any, message: Any, name: str) -> None:
    if name.endswith("Timestamp"):
        times = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))  # noqa: DTZ001
        message.FromDatetime(draw(times))
    else:
        message.FromTimedelta(draw(st.timedeltas(dt.timedelta(-9999), dt.timedelta(9999))))


def _scalars(field: Any) -> st.SearchStrategy[Any]:
    if field.enum_type is None:
        return _ATOMS[field.type]
    known = [each.number for each in field.enum_type.values]
    return st.sampled_from(known if field.enum_type.is_closed else [*known, 77, -1])


def in_columns(message: Any) -> Any:
    """What Google's runtime has of a message, as columns have it."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            of_value = field.message_type.fields[1]
            found[field.name] = {key: _one(value[key], of_value) for key in value} or []
        elif field.is_repeated:
            found[field.name] = [_one(each, field) for each in value]
        elif (
            not field.has_presence
            or message.HasField(field.name)
            or (field.has_default_value and field.message_type is None)
        ):
            found[field.name] = _one(value, field)
        else:
            found[field.name] = None
    return found


def _one(value: Any, field: Any) -> Any:
    if field.enum_type is not None:
        name = field.enum_type.values_by_number.get(value)
        return str(value) if name is None else name.name
    if field.message_type is None:
        return value
    match field.message_type.full_name.removeprefix("google.protobuf."):  # type: ignore[exhaustive-match]
        case "Timestamp":
            return value.ToDatetime(dt.UTC)
        case "Duration":
            return value.ToTimedelta()
        case "Int32Value" | "UInt64Value" | "StringValue" | "BoolValue":
            return value.value
    return in_columns(value) if field.message_type.fields else True


def pythonic(value: Any) -> Any:
    """What a column has, with its maps as dictionaries."""
    if isinstance(value, dict):
        return {name: pythonic(each) for name, each in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            assert len(dict(value)) == len(value)
            return {key: pythonic(each) for key, each in value}
        return [pythonic(each) for each in value]
    return value


@st.composite
def evolved(draw: Any, file: FileDescriptorProto) -> FileDescriptorProto:
    """A later file: without fields, with renamed ones, and with new ones."""
    later = copy.deepcopy(file)
    for message in later.message_type:
        fields = list(message.field)
        for field in fields:
            change = draw(st.sampled_from(["keep", "keep", "keep", "drop", "rename"]))
            if change == "rename":
                field.name = f"new_{field.name}"
            elif change == "drop" and len(fields) > 1 and not field.HasField("oneof_index"):
                fields = [each for each in fields if each.number != field.number]
        fields.append(FieldDescriptorProto(name="added", number=555, label=1, type=5))
        fields = draw(st.permutations(fields))
        del message.field[:]
        message.field.extend(fields)
    return later
