"""Apply a user's `decode` function to batches of records, and check its results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import pyarrow as pa
import pyarrow.compute as pc

from fanout.core.user_functions import check_function, drop_unawaited, is_interrupt
from fanout.errors import DecodeFailedError, RetryLaterError

if TYPE_CHECKING:
    from collections.abc import Callable


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceColumns:
    """The columns that locate a record."""

    names: tuple[str, ...]
    numbers: tuple[str, ...]  # those that number the rows of a split
    word: str  # what the service calls the first number


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

    def __call__(self, records: pa.RecordBatch, split: object) -> pa.RecordBatch:
        """Decode a batch with rows; its split is for messages.

        Raises:
            DecodeFailedError: If the function fails, which is the cause then, or its result cannot
                be delivered.
            RetryLaterError: If the function raises it.
        """
        numbers = records.column(self._places.numbers[0])
        where = f"{split} from {self._places.word} {numbers[0]} to {numbers[-1]}"
        try:
            decoded = self._function(records)
        except RetryLaterError:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise DecodeFailedError(f"decode failed for {where}") from error
        problem = self._problem(records, decoded)
        if not problem and not decoded.schema.equals(self.schema):
            problem = (
                f"returned the schema {_on_one_line(decoded.schema)} instead of "
                f"{_on_one_line(self.schema)}, which it returns for a batch without rows"
            )
        if problem:
            raise DecodeFailedError(f"decode was given {where}, and {problem}")
        return decoded

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


def check_decode(decode: object) -> None:
    """Check the option `decode`: None, or a function that returns its result."""
    if decode is not None:
        check_function("decode", decode, "a function of a record batch")


def _rising(numbers: pa.Array) -> bool:
    return bool(pc.all(pc.less(numbers[:-1], numbers[1:]), min_count=0).as_py())


def _on_one_line(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
