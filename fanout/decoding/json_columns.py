"""Many JSON documents as columns, by Arrow's reader of JSON lines.

Each document is a line of its own that begins and ends with a brace. So no document goes on
in the next line: a brace after a brace would be wrong there, and no string holds the end of a line.
There are as many objects as documents only where each document is one object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from fanout.decoding.decoder import MOST_OF_ITEMS, check_items, width
from fanout.decoding.json_values import MismatchError, parse

if TYPE_CHECKING:
    from collections.abc import Callable

# Documents among which a bad one is looked for one by one, and how often Arrow reads all of them.
_FEW: Final = 32
_PASSES: Final = 4
_SOME_BYTES: Final = 1 << 20
_SPACE: Final = " \t\r\n"  # of JSON
_UNREADABLE: Final = "it is not one JSON document"


class JsonColumns:
    """Reads documents of one schema; `kind` is the struct that it makes of each."""

    def __init__(self, schema: pa.Schema) -> None:
        self._wanted = pa.struct(list(schema))
        self.kind: pa.StructType = _nullable(self._wanted)
        self._width = _widest_item(self.kind)
        self._options = None
        if "map<" not in str(self.kind):
            self._options = pyarrow.json.ParseOptions(
                explicit_schema=pa.schema(list(_as_written(self._wanted))),
                unexpected_field_behavior="ignore",
            )

    def read(self, payloads: pa.BinaryArray) -> tuple[pa.StructArray, dict[int, str]]:
        """Return a struct for each document, and why others are null."""
        if not len(payloads):
            return pa.array([], self.kind), {}
        self._check_items(payloads)
        if self._options is None:
            return self._read_each(payloads)
        read: list[pa.StructArray] = []
        problems: dict[int, str] = {}
        left = _PASSES * len(payloads)  # rows that Arrow may still read
        parts = [(0, payloads)]
        while parts:
            begin, part = parts.pop()
            if left > 0 and (len(part) > _FEW or part is payloads):
                left -= len(part)
                try:
                    read.append(self._read_all(part))
                except (pa.ArrowException, MismatchError):
                    half = len(part) // 2
                    parts += [(begin + half, part[half:]), (begin, part[:half])]
            elif len(part):
                found, why = self._read_few(part)
                read.append(found)
                problems |= {begin + row: reason for row, reason in why.items()}
        return pa.concat_arrays(read), problems

    def _check_items(self, payloads: pa.BinaryArray) -> None:
        """Check that the items of arrays fit: each has a comma, a structure, or a null."""
        _, offsets, data = payloads.buffers()
        bounds = np.frombuffer(offsets, np.int32)[payloads.offset :][: len(payloads) + 1]
        size = int(bounds[-1] - bounds[0])
        if data is not None and size * self._width > MOST_OF_ITEMS:
            found = data.slice(int(bounds[0]), size).to_pybytes()
            check_items((found.count(b"{") + found.count(b"null")) * self._width)

    def _read_each(self, payloads: pa.BinaryArray) -> tuple[pa.StructArray, dict[int, str]]:
        """Read documents in Python, where they take more room than as columns."""
        pieces, values, problems, size = [], [], {}, 0
        for row, payload in enumerate(payloads):
            try:
                body = payload.as_py()
                size += len(body or b"")
                values.append(None if body is None else parse(body, self._wanted))
            except MismatchError as error:
                values.append(None)
                problems[row] = str(error)
            if size > _SOME_BYTES:
                pieces.append(pa.array(values, self.kind))
                values, size = [], 0
        return pa.concat_arrays([*pieces, pa.array(values, self.kind)]), problems

    def _read_few(self, payloads: pa.BinaryArray) -> tuple[pa.StructArray, dict[int, str]]:
        """Read documents that Python's reader takes, or Arrow's: each has its limits."""
        found, problems = self._read_each(payloads)
        pieces, end = [], 0
        for row in list(problems):
            try:
                one = self._read_all(payloads[row : row + 1])
            except (pa.ArrowException, MismatchError):
                continue
            del problems[row]
            pieces += [found[end:row], one]
            end = row + 1
        return pa.concat_arrays([*pieces, found[end:]]), problems

    def _read_all(self, payloads: pa.BinaryArray) -> pa.StructArray:
        if not len(payloads):
            return pa.array([], self.kind)
        documents, is_null = payloads.cast(pa.string()), None  # checks that it is UTF-8
        if payloads.null_count or not _are_objects(documents):
            documents = pc.ascii_trim(pc.fill_null(documents, "null"), _SPACE)
            is_null = pc.equal(documents, "null")
            documents = pc.if_else(is_null, "{}", documents)
            if not _are_objects(documents):
                raise MismatchError(_UNREADABLE)
        lines = pc.binary_join_element_wise(documents, "", "\n")
        size = pc.sum(pc.binary_length(lines)).as_py()
        table = pyarrow.json.read_json(
            pa.BufferReader(lines.buffers()[2].slice(0, size)),
            pyarrow.json.ReadOptions(use_threads=False, block_size=size),
            self._options,
        )
        if table.num_rows != len(payloads):
            raise MismatchError(_UNREADABLE)
        found = table.combine_chunks().to_batches()[0].to_struct_array()
        return _finished(found, self._wanted, is_null)


def _finished(column: pa.Array, wanted: pa.DataType, is_null: pa.Array | None = None) -> pa.Array:
    """Return values with the types that the schema has, or fail for all of them."""
    is_null = column.is_null() if is_null is None else is_null
    if pa.types.is_struct(wanted):
        children = [
            _finished(column.field(number), field.type) for number, field in enumerate(wanted)
        ]
        for child, field in zip(children, wanted, strict=True):
            if not field.nullable and pc.any(pc.greater(child.is_null(), is_null)).as_py():
                raise MismatchError(f"{field.name} is NOT NULL")
        return pa.StructArray.from_arrays(children, fields=list(_nullable(wanted)), mask=is_null)
    if pa.types.is_list(wanted):
        items = _finished(column.values, wanted.value_type)
        if not wanted.value_field.nullable and column.flatten().null_count:
            raise MismatchError("an item is NOT NULL")
        return pa.ListArray.from_arrays(column.offsets, items, type=_nullable(wanted), mask=is_null)
    if pa.types.is_floating(wanted):
        if pc.all(pc.is_finite(column)).as_py() is False:
            raise MismatchError("NaN and Infinity are no JSON")
        return column
    if pa.types.is_decimal(wanted):
        column.validate(full=True)  # Arrow's reader takes numbers with more digits, up to 76
    return column if column.type == wanted else column.cast(wanted)


def _are_objects(documents: pa.StringArray) -> bool:
    braces = pc.and_(pc.starts_with(documents, "{"), pc.ends_with(documents, "}"))
    return bool(pc.all(braces).as_py())


def _widest_item(kind: pa.DataType) -> int:
    """Return how many bytes a structure takes that is an item of an array, or a value of a map."""
    if pa.types.is_struct(kind):
        return max((_widest_item(field.type) for field in kind), default=0)
    if not pa.types.is_nested(kind):
        return 0
    item = kind.item_type if pa.types.is_map(kind) else kind.value_type
    return max(width(item), _widest_item(item))


def _as_written(kind: pa.DataType) -> pa.DataType:
    """Return the type that Arrow reads; its own ways with times are too lenient.

    It moves the point of a number in the bits of its type, where too many digits wrap around.
    """
    if pa.types.is_decimal(kind):
        return pa.decimal256(kind.precision, kind.scale)
    is_time = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    return pa.string() if is_time else _rebuilt(kind, _as_written)


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Return a type whose fields may all be null, as a tombstone has none of them."""
    return _rebuilt(kind, _nullable)


def _rebuilt(kind: pa.DataType, each: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, each(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(each(kind.value_type))
    return pa.map_(kind.key_type, each(kind.item_type)) if pa.types.is_map(kind) else kind
