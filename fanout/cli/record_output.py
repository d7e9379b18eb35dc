"""Write records as lines to the standard output: text for people, or JSON for programs."""

from __future__ import annotations

import asyncio
import fcntl
import json
import math
import os
import re
import stat
import sys
from base64 import b64encode
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from select import PIPE_BUF
from typing import TYPE_CHECKING, Any, Final, final

from fanout.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa

    from fanout.core.events import Batch

# A batch may have millions of rows; so many become Python objects at once.
_ROWS: Final = 256
# Control characters, those that end a line or change the direction of writing included.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_DIM: Final = "\x1b[2m"
_PLAIN: Final = "\x1b[0m"
# Lines are joined to pieces of some such size, in bytes.
_PIECE: Final = 64 * 1024


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of a service's records."""

    time: str  # when a record arrived
    key: str
    value: str
    place: Mapping[str, str]  # the columns that say where it is, by their names in JSON
    headers: str | None = None

    @property
    def beside_value(self) -> list[str]:
        """The columns that a decoder keeps, which has the value itself."""
        headers = [] if self.headers is None else [self.headers]
        return [self.time, self.key, *self.place.values(), *headers]


KINESIS: Final = Columns(
    time="approximateArrivalTimestamp",
    key="partitionKey",
    value="data",
    place={
        "stream": "stream",
        "shard": "shardId",
        "sequence_number": "sequenceNumber",
        "sub_sequence_number": "subSequenceNumber",
    },
)
KAFKA: Final = Columns(
    time="timestamp",
    key="key",
    value="value",
    place={"topic": "topic", "partition": "partition", "offset": "offset"},
    headers="headers",
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLines:
    """Make one line of each record whose value matches; one that is decoded is shown as JSON."""

    columns: Columns
    # Searched for in a value, whose bytes are escaped where they are not UTF-8.
    pattern: re.Pattern[str] | None = None
    as_json: bool = False  # a line is an object of JSON
    colored: bool = False

    def of(self, batch: Batch) -> Iterator[str]:
        """Yield the lines of a batch, each with its end."""
        import pyarrow as pa  # noqa: PLC0415 - for help

        write = self._json if self.as_json else self._text
        names = (self.columns.key, self.columns.value)
        kinds = {name: batch.records.schema.field(name).type for name in names}
        typed = [name for name, kind in kinds.items() if pa.types.is_struct(kind)]
        apart = [self.columns.time, *typed]
        for start in range(0, batch.num_records, _ROWS):
            some = batch.records.slice(start, _ROWS)
            for number, row in enumerate(some.drop_columns(apart).to_pylist()):
                row[self.columns.time] = _of_python(some.column(self.columns.time)[number])
                for name in typed:
                    row[name] = _Document(_plain(some.column(name)[number]))
                if self._matches(row[self.columns.value]):
                    yield write(batch.split.id, row) + "\n"

    def _matches(self, value: bytes | _Document | None) -> bool:
        if self.pattern is None:
            return True
        return value is not None and self.pattern.search(_decoded(value)) is not None

    def _text(self, split: str, row: Mapping[str, Any]) -> str:
        columns = self.columns
        where = f"{_time(row[columns.time]) or '-'}\t{split}"
        if self.colored:
            where = f"{_DIM}{where}{_PLAIN}"
        return f"{where}\t{_printable(row[columns.key])}\t{_printable(row[columns.value])}"

    def _json(self, _: str, row: Mapping[str, Any]) -> str:
        columns = self.columns
        record = {
            "time": _time(row[columns.time]),
            **{name: row[column] for name, column in columns.place.items()},
            **_field("key", row[columns.key]),
            **_field("value", row[columns.value]),
        }
        if columns.headers is not None:
            record["headers"] = [
                {"key": header["key"], **_field("value", header["value"])}
                for header in row[columns.headers]
            ]
        return json.dumps(record, separators=(",", ":"), default=_decoded)


def _time(moment: datetime | str | None) -> str | None:
    if not isinstance(moment, datetime):
        return moment
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@final
@dataclass(frozen=True, slots=True)
class _Document:
    """A value that was decoded, as JSON has it."""

    content: Any


def _plain(scalar: pa.Scalar) -> Any:
    """Return a value of Arrow as JSON has it; what JSON lacks becomes text."""
    import pyarrow as pa  # noqa: PLC0415 - for help

    kind = scalar.type
    if scalar.is_valid and pa.types.is_struct(kind):
        return _fields((field.name, scalar[number]) for number, field in enumerate(kind))
    if scalar.is_valid and pa.types.is_map(kind):
        return _fields((str(_plain(each[0])), each[1]) for each in scalar.values)
    if scalar.is_valid and pa.types.is_nested(kind):
        return [_item(_plain(each)) for each in scalar.values]
    value: Any = _of_python(scalar)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date | time | timedelta | Decimal) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        return str(value)
    return value


def _fields(scalars: Iterable[tuple[str, pa.Scalar]]) -> dict[str, Any]:
    fields = (_field(name, _plain(scalar)) for name, scalar in scalars)
    return {name: value for field in fields for name, value in field.items()}


def _item(value: Any) -> Any:
    """Return an item of an array of JSON: an object with base64 for bytes that are not UTF-8."""
    ((name, plain),) = _field("", value).items()
    return {name.lstrip("_"): plain} if name else plain


def _of_python(scalar: pa.Scalar) -> Any:
    """Return a value as Python's; a time that Python lacks as the text that Arrow has for it."""
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return scalar.cast("string").as_py()


def _decoded(value: bytes | _Document) -> str:
    if isinstance(value, _Document):
        return json.dumps(value.content, ensure_ascii=False, default=_decoded)
    return value.decode(errors="backslashreplace")


def _printable(value: bytes | _Document | str | None) -> str:
    """Return a value as text that neither ends the line nor controls a terminal."""
    if value is None:
        return "null"
    text = value if isinstance(value, str) else _decoded(value)
    return text if text.isprintable() else _CONTROL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def _field(name: str, value: Any) -> dict[str, Any]:
    """Return a value as a field of JSON: in base64 under another name if it is not UTF-8."""
    if isinstance(value, _Document):
        return {name: value.content}
    if not isinstance(value, bytes):
        return {name: value}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(value).decode()}


@final
class StandardOutput:
    """The standard output of the process.

    A write never blocks the event loop, so that Ctrl-C and timers work while a pager shows a page.
    The file stays in blocking mode, because other processes share it.
    """

    def __init__(self) -> None:
        # Python sets it to None where it was closed before the start.
        if sys.stdout is None:
            raise SetupError("there is no standard output to write to: it is closed")
        self._file: Final = 1
        self._encoding = sys.stdout.encoding
        mode = os.fstat(self._file).st_mode
        self._is_pipe = stat.S_ISFIFO(mode)
        # Whether it can be waited for, by poll; a file on a disk cannot.
        self._can_wait = self._is_pipe or stat.S_ISSOCK(mode) or os.isatty(self._file)

    @property
    def colored(self) -> bool:
        """Whether it is a terminal whose user wants colors."""
        # https://no-color.org
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        return not plain and os.isatty(self._file)

    async def write(self, lines: Iterable[str]) -> int:
        """Write lines in large pieces, and return how many they were.

        A BrokenPipeError says that the reader of the pipe has gone, and a SetupError why else
        nothing can be written, such as a full disk. Cancellation: a part of a line may have been
        written.
        """
        piece: list[bytes] = []
        size = count = 0
        for line in lines:
            count += 1
            piece.append(line.encode(self._encoding, "backslashreplace"))
            size += len(piece[-1])
            if size >= _PIECE:
                await self._write(b"".join(piece))
                piece, size = [], 0
        await self._write(b"".join(piece))
        return count

    @contextmanager
    def watched(self, on_closed: Callable[[], None]) -> Iterator[None]:
        """Notice while the block runs that the reader of a pipe has gone, also without a write."""
        # The function may be called more than once.
        only_written = fcntl.fcntl(self._file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
        if not (self._is_pipe and only_written):
            yield
            return
        loop = asyncio.get_running_loop()
        # Nothing can be read there, but for the error that the other end is closed.
        loop.add_reader(self._file, on_closed)
        try:
            yield
        finally:
            loop.remove_reader(self._file)

    async def _write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                if self._can_wait:
                    await self._writable()
                    # So much is taken at once by what is writable.
                    left = left[os.write(self._file, left[:PIPE_BUF]) :]
                else:
                    left = left[await asyncio.to_thread(os.write, self._file, left) :]
        except (BrokenPipeError, ConnectionResetError) as error:
            raise BrokenPipeError from error
        except OSError as error:
            raise SetupError(f"the records cannot be written: {error.strerror}") from error

    async def _writable(self) -> None:
        loop = asyncio.get_running_loop()
        writable = asyncio.Event()
        loop.add_writer(self._file, writable.set)
        try:
            await writable.wait()
        finally:
            loop.remove_writer(self._file)
