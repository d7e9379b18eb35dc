"""Apply the user's `decode` to the records of a poll, and find the records that it fails for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fanout.core.user_decode import TooManyRowsError
from fanout.errors import BadRowsError, DecodeFailedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fanout.core.lending.acquired import AcquiredRecords
    from fanout.core.user_decode import UserDecode


@final
@dataclass(slots=True)
class DecodedRows:
    """Decoded batches, the rows of each, and the reasons for the rows that `decode` fails for."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: list[NDArray[np.int64]] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)


def take_rows(records: pa.RecordBatch, rows: NDArray[np.int64]) -> pa.RecordBatch:
    """Return some rows of a batch, in their order; the batch itself if that is all of them."""
    if len(rows) == records.num_rows:
        return records
    return records.take(pa.array(rows))


def decode(
    function: UserDecode,
    acquired: AcquiredRecords[Any],
    rows: NDArray[np.int64],
    *,
    row_column: str,
    find_bad: bool,
) -> DecodedRows:
    """Apply the user's function to some rows of a poll, at least one, group by group.

    With `find_bad`, a batch that fails is halved until the bad rows are found; one that is too
    large to decode always is.

    Raises:
        DecodeFailedError: If the function fails without `find_bad`, or tries to end the process.
        RetryLaterError: If the function raises it.
    """
    decoded = DecodedRows()
    decoding = _Decoding(function, acquired.records, row_column, find_bad)
    for group, of_it in acquired.groups(rows):
        decoding.decode(group, of_it, decoded)
    return decoded


@final
@dataclass(frozen=True, slots=True)
class _Decoding:
    function: UserDecode
    records: pa.RecordBatch
    row_column: str
    find_bad: bool

    def decode(self, group: object, rows: NDArray[np.int64], decoded: DecodedRows) -> None:
        given = self.records.take(pa.array(rows))
        try:
            batch = self.function(given, group)
        except DecodeFailedError as error:
            cause = error.__cause__
            # So many are no record's fault.
            halves = self.find_bad or (isinstance(cause, TooManyRowsError) and len(rows) > 1)
            # SystemExit and its like are about the process, and not about a record.
            if not halves or not isinstance(cause, Exception | None):
                raise
            if isinstance(cause, BadRowsError):
                decoded.bad |= {
                    int(rows[row]): f"{self.function.failure_at(given, row, group)}: {reason}"
                    for row, reason in cause.errors.items()
                }
                batch = cause.decoded
            elif len(rows) == 1:
                decoded.bad[int(rows[0])] = f"{error}: {cause}" if cause else str(error)
                return
            else:
                for half in np.array_split(rows, 2):
                    self.decode(group, half, decoded)
                return
        name = self.row_column
        kept = pc.index_in(batch.column(name), value_set=given.column(name))
        decoded.batches.append(batch)
        decoded.rows.append(rows[kept.to_numpy()])
