"""Decode the bytes of a shuffle's topic as a reader does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout.kafka.partitions import Partition
from fanout.kafka.reading.records import decode_fetched
from fanout.kafka.reading.transport import Fetched
from fanout.kafka.shuffle.frames import FRAMED
from tests.support.kafka.record_batches import BatchRow, batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

__all__ = ("read_answer", "read_values")


def read_answer(answer: bytes) -> pa.RecordBatch:
    """Decode the records of a Fetch response, with the columns of FRAMED."""
    (part,) = decode_fetched(
        Fetched(1 << 30, 1 << 30, 0, (), answer),
        Partition("t", 0),
        offset=0,
        read_committed=True,
        max_bytes=1 << 30,
        layout=FRAMED,
    )
    return part.records


def read_values(values: Sequence[bytes | None], codec: str = "none") -> pa.RecordBatch:
    """Encode records with these values as one batch, and decode them."""
    rows = [BatchRow(at, 0, None, value) for at, value in enumerate(values)]
    return read_answer(batch(rows, codec=codec) if rows else b"")
