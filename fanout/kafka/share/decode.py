"""The user's own step over what a poll brought, and which records it fails for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fanout.errors import DecodeFailedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.user_decode import UserDecode
    from fanout.kafka.share.acquired import AcquiredRecords

__all__ = ("Decoded", "decode", "rows_of")


@final
@dataclass(slots=True)
class Decoded:
    """What became of some rows of a poll.

    Args:
        batches: What is delivered of them.
        rows: Which rows each of these has, in its order.
        bad: The rows that it fails for, with the reasons.
    """

    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: list[NDArray[np.int64]] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)


def rows_of(records: pa.RecordBatch, rows: NDArray[np.int64]) -> pa.RecordBatch:
    """Return some rows of a batch, in their order; the batch itself where that is all of them."""
    if len(rows) == records.num_rows:
        return records
    return records.take(pa.array(rows))


def decode(
    function: UserDecode, loan: AcquiredRecords, rows: NDArray[np.int64], *, sort_out: bool
) -> Decoded:
    """Apply the user's step to some rows of a poll, partition by partition.

    Args:
        function: The step.
        loan: The poll.
        rows: The rows, at least one.
        sort_out: Whether to find out which rows it fails for.

    Raises:
        DecodeFailedError: If it fails and nothing is sorted out.
    """
    decoded = Decoded()
    for partition, of_it in loan.of_partition(rows):
        _decode(function, loan.records, partition, of_it, decoded, sort_out=sort_out)
    return decoded


def _decode(
    function: UserDecode,
    records: pa.RecordBatch,
    partition: Partition,
    rows: NDArray[np.int64],
    decoded: Decoded,
    *,
    sort_out: bool,
) -> None:
    given = records.take(pa.array(rows))
    try:
        batch = function(given, partition)
    except DecodeFailedError as error:
        if not sort_out:
            raise
        if len(rows) == 1:
            decoded.bad[int(rows[0])] = (
                f"{error}: {error.__cause__}" if error.__cause__ else str(error)
            )
            return
        for half in np.array_split(rows, 2):
            _decode(function, records, partition, half, decoded, sort_out=True)
        return
    kept = pc.index_in(batch.column("offset"), value_set=given.column("offset"))
    decoded.batches.append(batch)
    decoded.rows.append(rows[kept.to_numpy()])
