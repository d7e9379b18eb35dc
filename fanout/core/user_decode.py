"""The user's `decode`, and what becomes of records that it fails for."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

import pyarrow as pa
import pyarrow.compute as pc

from fanout.core.error_text import text_of
from fanout.core.events import UNCOUNTED, BadRecords, Gap
from fanout.core.record_decoder import RecordDecoder
from fanout.core.sentence import Sentence
from fanout.core.user_functions import check_function, drop_unawaited, is_interrupt
from fanout.errors import BadRowsError, DecodeFailedError, OptionError, RetryLaterError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from fanout.core.events import Batch
    from fanout.core.positions import Cursor

    OnBadRecord: TypeAlias = Literal["fail", "gap"] | Callable[[BadRecords], Awaitable[None]]


class _Keeping(Enum):
    """An enum, which stays what it is in another process."""

    KEPT = "kept"


KEPT: Final[Any] = _Keeping.KEPT
"""For `on_bad_record`: bad records stay among the others, in the column `BAD_RECORD`."""

BAD_RECORD: Final = "_fanout_bad_record"
"""A struct: the record as `decode` got it, and the reason. It is null for others."""

_MAX_REASON: Final = 1_000


# Where pandas is installed, Arrow loads it for the first array of Python values. That takes half a
# second, which an event loop must not stand still for.
pa.array([])


def no_records(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


_ABOUT_DECODE: Final = Sentence.of(
    "{on_bad_record} is about {decode}: pass {decode}, or leave it out"
)


def check_on_bad_record(value: object, decode: object) -> None:
    """Check the option `on_bad_record`; `"gap"` needs the option `decode`."""
    if isinstance(value, str) and value in {"fail", "gap"}:
        if value == "gap" and decode is None:
            raise OptionError(_ABOUT_DECODE)
        return
    if value is KEPT:
        return
    call = type(value).__call__ if callable(value) else None
    if not inspect.iscoroutinefunction(value) and not inspect.iscoroutinefunction(call):
        raise OptionError(
            f"on_bad_record={value!r} must be 'fail', 'gap' or an async function of BadRecords"
        )
    if decode is None:
        raise OptionError(_ABOUT_DECODE)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceColumns:
    """The columns that locate a record."""

    names: tuple[str, ...]
    numbers: tuple[str, ...]  # those that number the rows of a split
    word: str  # what the service calls the first number


@final
class TooManyRowsError(ValueError):
    """A decoder cannot decode so many rows at once, and each of them may be a good one."""


@final
class UserDecode:
    """Apply a user's function to each batch of records, and check its result.

    The function may add, drop and change columns, and leave rows out. It must keep the columns that
    locate a record, by which batches are cut and resumed, and the order of the rows; one record
    cannot become two. It returns the same schema each time.

    It is called once with `given`, a batch without rows, to learn its schema: a failure then is a
    DecodeFailedError. `schema` is the schema of its results; `no_records` is such a batch without
    rows.
    """

    def __init__(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        given: pa.RecordBatch,
        places: PlaceColumns,
    ) -> None:
        self._function = function
        self._places = places
        try:
            self.no_records = function(given)
        except OptionError:
            raise  # ours, of a decoder whose options do not fit the source
        except BaseException as error:
            if is_interrupt(error):
                raise
            remedy = ""
            if isinstance(error, RetryLaterError):
                remedy = ": let it return them there without asking a service"
            raise DecodeFailedError(
                f"decode failed for a batch without rows, which it gets when the source is made, "
                f"so that its columns are known{remedy}"
            ) from error
        if problem := self._problem(given, self.no_records):
            raise DecodeFailedError(f"decode was given a batch without rows, and {problem}")
        self.schema: pa.Schema = self.no_records.schema

    async def prepare(self, records: pa.RecordBatch) -> None:
        """Let the function fetch what a batch needs, if it does so."""
        if isinstance(self._function, RecordDecoder):
            await self._function.prepare(records)

    def __call__(self, records: pa.RecordBatch, split: object) -> pa.RecordBatch:
        """Decode a batch with rows; its split is for messages.

        Raises:
            DecodeFailedError: If the function fails, which is the cause then, or its result cannot
                be delivered. If the cause is a BadRowsError, what it has decoded can be.
            RetryLaterError: If the function raises it.
        """
        numbers = records.column(self._places.numbers[0])
        where = f"{split} from {self._places.word} {numbers[0]} to {numbers[-1]}"
        try:
            decoded = self._function(records)
        except RetryLaterError:
            raise
        except BadRowsError as error:
            self._check(records, error.decoded, where)
            if not error.errors.keys() <= set(range(records.num_rows)):
                rows = f"{records.num_rows} rows"
                raise DecodeFailedError(
                    f"decode failed for {where}: its BadRowsError names a row that the {rows} lack"
                ) from None
            bad = self._numbers(records).take(pa.array(list(error.errors), pa.int64()))
            if pc.any(pc.is_in(self._numbers(error.decoded), value_set=bad)).as_py():
                raise DecodeFailedError(
                    f"decode failed for {where}: its BadRowsError has a bad row among those that "
                    f"are decoded"
                ) from None
            raise DecodeFailedError(self.failure_at(records, min(error.errors), split)) from error
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise DecodeFailedError(f"decode failed for {where}") from error
        self._check(records, decoded, where)
        return decoded

    def with_bad(
        self, given: pa.RecordBatch, decoded: pa.RecordBatch, errors: Mapping[int, BaseException]
    ) -> pa.RecordBatch:
        """Return decoded records and bad ones in one order, the bad ones in a column more.

        What they have by the name and the type of another column is there, too.
        """
        bad = given.take(pa.array(list(errors), pa.int64()))
        reasons = [f"{type(one).__name__}: {text_of(one)}"[:_MAX_REASON] for one in errors.values()]
        parts = [*bad.columns, pa.array(reasons, pa.string())]
        fields = [*bad.schema, pa.field("reason", pa.string(), nullable=False)]
        column = pa.StructArray.from_arrays(parts, fields=fields)
        schema = pa.schema([(one.name, one.type) for one in decoded.schema])
        values = [
            bad.column(one.name)
            if one.name in bad.schema.names and bad.schema.field(one.name).type == one.type
            else pa.nulls(len(errors), one.type)
            for one in schema
        ]
        schema = schema.append(pa.field(BAD_RECORD, column.type))
        none = pa.nulls(decoded.num_rows, column.type)
        joined = pa.Table.from_batches(
            [
                pa.RecordBatch.from_arrays([*decoded.columns, none], schema=schema),
                pa.RecordBatch.from_arrays([*values, column], schema=schema),
            ]
        ).combine_chunks()
        records = joined.to_batches()[0]
        rows = pc.index_in(self._numbers(records), value_set=self._numbers(given))
        return records.take(pc.sort_indices(rows))

    def failure_at(self, records: pa.RecordBatch, row: int, split: object) -> str:
        """Say that a row of a batch cannot be decoded, and where it is."""
        number = records.column(self._places.numbers[0])[row]
        return f"decode failed for {split} at {self._places.word} {number}"

    def _check(self, records: pa.RecordBatch, decoded: pa.RecordBatch, where: str) -> None:
        problem = self._problem(records, decoded)
        if not problem and not decoded.schema.equals(self.schema):
            problem = (
                f"returned the schema {_on_one_line(decoded.schema)} instead of "
                f"{_on_one_line(self.schema)}, which it returns for a batch without rows"
            )
        if problem:
            raise DecodeFailedError(f"decode was given {where}, and {problem}")

    def _problem(self, given: pa.RecordBatch, decoded: object) -> str:
        """Return why a result of the function cannot be delivered; empty where it can."""
        if not isinstance(decoded, pa.RecordBatch):
            drop_unawaited(decoded)
            return f"returned a {type(decoded).__name__}; return a pyarrow.RecordBatch"
        *first, last = self._places.names
        for name in self._places.names:
            field = decoded.schema.field(name) if decoded.schema.names.count(name) == 1 else None
            if field is None or field.type != given.schema.field(name).type:
                return (
                    f"returned no single column {name!r} of the type "
                    f"{given.schema.field(name).type}; keep the columns {', '.join(first)} and "
                    f"{last}"
                )
        if not self._is_part_of(given, decoded):
            return (
                f"changed {', '.join(first)} or {last}, or the order of the rows, or returned a "
                f"row twice; keep them, and leave rows out at the most"
            )
        return ""

    def _is_part_of(self, given: pa.RecordBatch, decoded: pa.RecordBatch) -> bool:
        if decoded.num_rows != given.num_rows:
            rows = pc.index_in(self._numbers(decoded), value_set=self._numbers(given))
            if rows.null_count or not _rising(rows):
                return False
            given = given.select(self._places.names).take(rows)
        return all(decoded.column(name).equals(given.column(name)) for name in self._places.names)

    def _numbers(self, records: pa.RecordBatch) -> pa.Array:
        """Return a column that tells the rows apart."""
        columns = [records.column(name) for name in self._places.numbers]
        if len(columns) == 1:
            return columns[0]
        return pc.binary_join_element_wise(*(each.cast(pa.string()) for each in columns), "/")


def divided(records: pa.RecordBatch, schema: pa.Schema) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the records without the bad ones, in a schema, and these as they came."""
    column = records.column(BAD_RECORD)
    good = records.filter(pc.is_null(column)).select(schema.names)
    bad = pa.RecordBatch.from_struct_array(column.drop_null())
    return pa.RecordBatch.from_arrays(good.columns, schema=schema), bad


def check_decode(decode: object) -> None:
    """Check the option `decode`: None, or a function that returns its result."""
    if decode is not None:
        check_function("decode", decode, "a function of a record batch")


def _rising(numbers: pa.Array) -> bool:
    return bool(pc.all(pc.less(numbers[:-1], numbers[1:]), min_count=0).as_py())


def _on_one_line(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


@final
class BatchDecoder:
    """Decode batches, and do with the records that cannot be decoded as the user says.

    A batch that the function fails for is halved until the records are found. Where the function
    keeps to its contract, a record is decoded alike in each of them. Bad records raise with
    `"fail"` and are left out as gaps with `"gap"`; a function gets them before the batch is
    delivered without them. `cursor` returns the position after a row of a batch that is not
    decoded.
    """

    def __init__(
        self,
        function: UserDecode,
        on_bad: OnBadRecord,
        cursor: Callable[[Batch, int], Cursor],
    ) -> None:
        self._function = function
        self._on_bad = on_bad
        self._cursor = cursor

    async def __call__(self, batch: Batch) -> Batch:
        """Return a batch with decoded records.

        Raises:
            DecodeFailedError: If the function fails and bad records are to fail, its result cannot
                be delivered, or the function for bad records fails.
            RetryLaterError: If one of the two functions raises it.

        Cancellation: the batch is not delivered; its bad records come again with it.
        """
        if not batch.num_records:
            return replace(batch, records=self._function.no_records)
        await self._function.prepare(batch.records)
        records, errors = await self._decode(batch)
        gaps = batch.gaps
        if errors and self._on_bad == "gap":
            gaps += self._gaps(batch, errors)
        elif errors and self._on_bad is KEPT:
            records = self._function.with_bad(batch.records, records, errors)
        elif errors:
            bad = batch.records.take(pa.array(errors, pa.int64()))
            await self._hand_over(BadRecords(batch.split, bad, tuple(errors.values())))
        return replace(batch, records=records, gaps=gaps, nbytes=UNCOUNTED, bad_records=len(errors))

    async def _decode(self, batch: Batch) -> tuple[pa.RecordBatch, dict[int, BaseException]]:
        """Return what can be decoded, and for each other row what the function raised."""
        decoded: list[pa.RecordBatch] = []
        errors: dict[int, BaseException] = {}
        pieces = [(0, batch.num_records)]
        while pieces:
            begin, rows = pieces.pop()
            try:
                decoded.append(self._function(batch.records.slice(begin, rows), batch.split))
            except DecodeFailedError as error:
                # So many are no record's fault.
                too_many = isinstance(error.__cause__, TooManyRowsError) and rows > 1
                # Without a cause the function has returned what no record may become. SystemExit
                # and its like are about the process, and not about a record.
                fails = self._on_bad == "fail" and not too_many
                if fails or not isinstance(error.__cause__, Exception):
                    raise
                if isinstance(error.__cause__, BadRowsError):
                    decoded.append(error.__cause__.decoded)
                    bad = error.__cause__.errors
                    errors.update((begin + row, bad[row]) for row in sorted(bad))
                elif rows == 1:
                    errors[begin] = error.__cause__
                else:
                    half = rows // 2
                    pieces += [(begin + half, rows - half), (begin, half)]
                await asyncio.sleep(0)  # many bad records keep no other split waiting
        return self._joined(decoded), errors

    def _joined(self, decoded: list[pa.RecordBatch]) -> pa.RecordBatch:
        if len(decoded) == 1:
            return decoded[0]
        table = pa.Table.from_batches(decoded, self._function.schema).combine_chunks()
        return next(iter(table.to_batches()), self._function.no_records)

    def _gaps(self, batch: Batch, errors: Mapping[int, BaseException]) -> tuple[Gap, ...]:
        """Return a gap for each run of bad rows."""
        gaps = []
        for _, run in groupby(enumerate(errors), lambda each: each[1] - each[0]):
            rows = [row for _, row in run]
            before = self._cursor(batch, rows[0] - 1) if rows[0] else batch.range.after
            kinds = ", ".join(sorted({type(errors[row]).__name__ for row in rows}))
            reason = f"decode failed for {len(rows)} of them ({kinds})"
            gaps.append(Gap(before, self._cursor(batch, rows[-1]), reason))
        return tuple(gaps)

    async def _hand_over(self, bad: BadRecords) -> None:
        assert callable(self._on_bad), "only a callback is left"
        try:
            await self._on_bad(bad)
        except (RetryLaterError, asyncio.CancelledError):
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise DecodeFailedError(
                f"on_bad_record failed for {len(bad.errors)} records of {bad.split}"
            ) from error
