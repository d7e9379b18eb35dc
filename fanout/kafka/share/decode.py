"""Apply the user's `decode` to the records of a poll, and find the records that it fails for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fanout.errors import DecodeFailedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fanout.core.user_decode import UserDecode
    from fanout.kafka.partitions import Partition
    from fanout.kafka.share.acquired import AcquiredRecords


@final
@dataclass(slots=True)
class DecodedRows:
    """The result of `decode` for some rows of a poll.

    Args:
        batches: The decoded batches.
        rows: The rows of each batch, in its order.
        bad: The rows that it fails for, with the reasons.
    """

    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: list[NDArray[np.int64]] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)


def take_rows(records: pa.RecordBatch, rows: NDArray[np.int64]) -> pa.RecordBatch:
    """Return some rows of a batch, in their order; the batch itself if that is all of them."""
    if len(rows) == records.num_rows:
        return records
    return records.take(pa.array(rows))


def decode(
    function: UserDecode, acquired: AcquiredRecords, rows: NDArray[np.int64], *, find_bad: bool
) -> DecodedRows:
    """Apply the user's function to some rows of a poll, partition by partition.

    Args:
        function: The function.
        acquired: The poll.
        rows: The rows, at least one.
        find_bad: Whether to halve a batch that fails until the bad rows are found.

    Raises:
        DecodeFailedError: If the function fails, and `find_bad` is false, or it tries to end the
            process.
        RetryLaterError: If the function raises it.
    """
    decoded = DecodedRows()
    for partition, of_it in acquired.by_partition(rows):
        _decode(function, acquired.records, partition, of_it, decoded, find_bad=find_bad)
    return decoded


def _decode(
    function: UserDecode,
    records: pa.RecordBatch,
    partition: Partition,
    rows: NDArray[np.int64],
    decoded: DecodedRows,
    *,
    find_bad: bool,
) -> None:
    given = records.take(pa.array(rows))
    try:
        batch = function(given, partition)
    except DecodeFailedError as error:
        # SystemExit and its like are about the process, and not about a record.
        if not find_bad or not isinstance(error.__cause__, Exception | None):
            raise
        if len(rows) == 1:
            decoded.bad[int(rows[0])] = (
                f"{error}: {error.__cause__}" if error.__cause__ else str(error)
            )
            return
        for half in np.array_split(rows, 2):
            _decode(function, records, partition, half, decoded, find_bad=True)
        return
    kept = pc.index_in(batch.column("offset"), value_set=given.column("offset"))
    decoded.batches.append(batch)
    decoded.rows.append(rows[kept.to_numpy()])
