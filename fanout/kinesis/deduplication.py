"""Ids of records inside their data, by which readers find records that were put twice.

A record of Kinesis has no headers. So the id stands before the data: four bytes that say that there
is one, and its 16 bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

ID_BYTES: Final = 16
"""The bytes of an id: those of a UUID."""
MAGIC: Final = b"\xfbid\x01"
"""The bytes before an id; no text in UTF-8 begins with them."""
_PREFIX: Final = len(MAGIC) + ID_BYTES


def prefixed(ids: pa.BinaryArray, data: pa.BinaryArray) -> pa.BinaryArray:
    """Return data with its ids, of 16 bytes each, before it."""
    magic = pa.scalar(MAGIC, pa.binary())
    return pc.binary_join_element_wise(magic, ids, data, pa.scalar(b"", pa.binary()))


def read_deduplication_ids(records: pa.RecordBatch) -> pa.RecordBatch:
    """Take the ids of records out of their data: a `decode` of `KinesisSource`.

    Records that were put twice have the same id. Records without an id keep their data.

    Args:
        records: Records of a `KinesisSource`.

    Returns:
        The records with the last column `deduplicationId`: 16 bytes, or null where there is none.
    """
    data = records["data"]
    has_id = pc.and_(pc.starts_with(data, MAGIC), pc.greater_equal(pc.binary_length(data), _PREFIX))
    with_id = data.filter(has_id)
    place = pc.if_else(has_id, pc.cumulative_sum(has_id.cast(pa.int64())), None)
    place = pc.subtract(place, 1)
    ids = pc.binary_slice(with_id, len(MAGIC), _PREFIX).take(place)
    # Arrow 26 fails in a binary_slice without an end.
    rest = pc.binary_replace_slice(with_id, 0, _PREFIX, b"").take(place)
    names = records.schema.names
    cut = pc.coalesce(rest, data)
    columns: Sequence[pa.Array] = [cut if name == "data" else records[name] for name in names]
    return pa.RecordBatch.from_arrays([*columns, ids], names=[*names, "deduplicationId"])
