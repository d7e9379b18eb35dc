"""Which record batches of an answer belong to transactions that were aborted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from fanout.errors import MalformedEventError
from fanout.kafka.decoding.framing import BREAKS_FORMAT, RECORDS_AT, damaged, uncompressed
from fanout.kafka.decoding.unpacking import walk
from fanout.kafka.decoding.varints import read_varint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.kafka.decoding.framing import RawBatch
    from fanout.kafka.partitions import Partition
    from fanout.kafka.transport import Aborted

__all__ = ("Aborts",)

_ABORT: Final = 0
_MARKER_BYTES: Final = 64 * 1024
_KEY_BYTES: Final = 4


@final
class Aborts:
    """Know which batches belong to aborted transactions.

    A transaction is open from its first offset to its marker, and a producer has one at a time.

    Args:
        aborted: The aborted transactions that touch the answer.
    """

    def __init__(self, aborted: Sequence[Aborted]) -> None:
        self._ahead = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._producers: set[int] = set()

    def leave_out(self, batch: RawBatch, partition: Partition) -> bool:
        """Tell whether a batch is part of an aborted transaction; each batch is asked in turn."""
        while self._ahead and self._ahead[-1].first_offset <= batch.base_offset:
            self._producers.add(self._ahead.pop().producer_id)
        if batch.control:
            if _marker(batch, partition) == _ABORT:
                self._producers.discard(batch.producer_id)
            return True
        return batch.transactional and batch.producer_id in self._producers


def _marker(batch: RawBatch, partition: Partition) -> int | None:
    """Return the type of a control batch; None where compaction has removed what it held.

    Its key is a version and a type, of 16 bits each:
    https://kafka.apache.org/documentation/#controlbatch
    """
    data = uncompressed(batch, partition, _MARKER_BYTES)
    broken = damaged(partition, batch.base_offset, batch.next_offset - 1, BREAKS_FORMAT)
    begins: list[int] = []
    if not walk(data, RECORDS_AT, batch.rows, begins):
        raise broken
    if not begins:
        return None
    try:
        _, at = read_varint(data, begins[0])  # its length
        _, at = read_varint(data, at + 1)  # its timestamp, behind its attributes
        delta, at = read_varint(data, at)
        size, at = read_varint(data, at)
    except (IndexError, ValueError):
        raise broken from None
    key = data[at : at + max(size, 0)]
    if len(key) < _KEY_BYTES:
        raise MalformedEventError(
            f"{partition}: the control record at offset {batch.base_offset + delta} has no type"
        )
    return int.from_bytes(key[2:_KEY_BYTES])
