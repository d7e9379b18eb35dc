"""Parsers of Protobuf: ptars for records with nothing unusual, and Google's runtime for others.

ptars makes columns at once. It skips and replaces without a word what Google's runtime refuses or
clears, and a deep nest of groups ends the process. So what it has of a record counts where it is as
many bytes as the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor_pb2 import FileDescriptorProto, OneofDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from fanout.core.user_functions import is_interrupt
from fanout.decoding.protobuf_columns import BadMessageError

HandlerPool: Any
try:
    from ptars import HandlerPool
except ImportError:  # it has no builds for this machine
    HandlerPool = None

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

    from fanout.decoding.avro_cursors import Ints
    from fanout.decoding.protobuf_columns import Messages

# Records that are left when parsing them one by one takes less time.
_FEW: Final = 64
# So many groups in one another fit on a stack.
_MOST_GROUPS: Final = 4096
_START_GROUP: Final = 3
_GROUP: Final = 10
# What a parser reads a type of a descriptor as, with 64 bits, where the bytes are the same.
_RAW: Final = {5: 3, 8: 3, 13: 4, 14: 3, 17: 18}


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
        has_groups = any(each.type == _GROUP for one in file.message_type for each in one.field)
        if HandlerPool is not None and not has_groups:
            self._handler = HandlerPool([raw.file]).get_for_message(raw)

    def parse(self, payloads: pa.BinaryArray) -> tuple[pa.StructArray, dict[int, str]]:
        """Return what is in each payload, none of them null, and why some cannot be parsed."""
        pieces: list[pa.StructArray] = []
        exact: list[Ints] = []
        left: list[Ints] = []
        lengths = pc.binary_length(payloads).to_numpy()
        waiting = [(payloads, np.arange(len(payloads)))]
        while waiting:
            part, rows = waiting.pop()
            found = self._at_once(part)
            if found is not None:
                is_exact = self._columns.lengths(found) == lengths[rows]
                pieces.append(found if is_exact.all() else found.filter(pa.array(is_exact)))
                exact.append(rows[is_exact])
                left.append(rows[~is_exact])
            elif len(part) > _FEW and self._handler is not None:
                half = len(part) // 2
                waiting += [(part[:half], rows[:half]), (part[half:], rows[half:])]
            else:
                left.append(rows)
        others = np.concatenate([np.empty(0, np.int64), *left])
        if not len(others) and len(pieces) == 1:
            return pieces[0], {}
        parsed, failures = self._one_by_one(payloads, others)
        order = np.argsort(np.concatenate([*exact, others]))
        return pa.concat_arrays([*pieces, parsed]).take(pa.array(order)), failures

    def _at_once(self, payloads: pa.BinaryArray) -> pa.StructArray | None:
        """Return what ptars has; None where there are few, or one that it cannot parse."""
        if self._handler is None or len(payloads) <= _FEW or _has_deep(payloads):
            return None
        try:
            batch = self._handler.array_to_record_batch(payloads)
        except BaseException as error:
            if is_interrupt(error):
                raise
            return None  # it panics, too
        return pa.StructArray.from_arrays(batch.columns, fields=list(self._columns.raw))

    def _one_by_one(
        self, payloads: pa.BinaryArray, rows: Ints
    ) -> tuple[pa.StructArray, dict[int, str]]:
        values, failures = [], {}
        bodies = payloads.take(pa.array(rows)).to_pylist()
        for row, body in zip(rows.tolist(), bodies, strict=True):
            try:
                values.append(self._columns.parsed(self._class.FromString(body)))
            except (DecodeError, BadMessageError) as error:
                known = isinstance(error, BadMessageError)
                failures[row] = str(error) if known else f"it is no {self._name}"
                values.append(self._columns.parsed(self._class()))
        return pa.array(values, self._columns.raw), failures


def _has_deep(payloads: pa.BinaryArray) -> bool:
    """Return whether a record may have a deep nest of groups; each begins with such a byte."""
    lengths = pc.binary_length(payloads).to_numpy()
    for row in np.flatnonzero(lengths > _MOST_GROUPS).tolist():
        data = np.frombuffer(payloads[row].as_buffer(), np.uint8)
        if np.count_nonzero(data & 7 == _START_GROUP) > _MOST_GROUPS:
            return True
    return False


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
