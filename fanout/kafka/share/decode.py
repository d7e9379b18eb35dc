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
    function: UserDecode, acquired: AcquiredRecords, rows: NDArray[np.int64], *, find_bad: bool
) -> DecodedRows:
    """Apply the user's function to some rows of a poll, at least one, partition by partition.

    With `find_bad`, a batch that fails is halved until the bad rows are found.

    Raises:
        DecodeFailedError: If the function fails without `find_bad`, or tries to end the process.
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
