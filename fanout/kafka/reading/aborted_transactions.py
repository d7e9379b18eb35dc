"""Leave out the records of aborted transactions, as `read_committed` demands.

A transaction of a partition is open from its first offset to its marker, and a producer has one at
a time. The broker lists the aborted transactions of an answer (KIP-98).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from fanout.errors import MalformedEventError
from fanout.kafka.reading.compression import decompress
from fanout.kafka.reading.record_batches import BREAKS_FORMAT, RECORDS_AT, damaged_batch
from fanout.kafka.reading.record_fields import find_records, read_varint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.record_batches import RawBatch
    from fanout.kafka.reading.transport import AbortedTransaction

_ABORT: Final = 0  # the type of the marker that ends an aborted transaction
_MARKER_BYTES: Final = 64 * 1024
_KEY_BYTES: Final = 4


@final
class AbortFilter:
    """Find the record batches of an answer that belong to the aborted transactions it lists."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._ahead = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._producers: set[int] = set()

    def drops(self, batch: RawBatch, partition: Partition) -> bool:
        """Return whether a batch is left out; call it for each batch of the answer in order."""
        while self._ahead and self._ahead[-1].first_offset <= batch.base_offset:
            self._producers.add(self._ahead.pop().producer_id)
        if batch.control:
            if _marker_type(batch, partition) == _ABORT:
                self._producers.discard(batch.producer_id)
            return True
        return batch.transactional and batch.producer_id in self._producers


def _marker_type(batch: RawBatch, partition: Partition) -> int | None:
    """Return the type of a control batch; None where compaction has removed its record.

    The record's key is a version and a type, of 16 bits each:
    https://kafka.apache.org/documentation/#controlbatch
    """
    data = decompress(batch, partition, _MARKER_BYTES)
    broken = damaged_batch(partition, batch.base_offset, batch.next_offset - 1, BREAKS_FORMAT)
    begins: list[int] = []
    if not find_records(data, RECORDS_AT, batch.rows, begins):
        raise broken
    if not begins:
        return None
    try:
        _, at = read_varint(data, begins[0])  # its length
        _, at = read_varint(data, at + 1)  # its timestamp, after its attributes
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
