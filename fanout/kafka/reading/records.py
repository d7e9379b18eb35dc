"""Decode the answer of a Fetch into Arrow record batches, without aborted transactions.

The records of many batches are decoded at once: `record_batches` cuts the answer and decompresses,
`AbortFilter` leaves out, `record_fields` finds the fields, and `columns` makes Arrow columns of
them. Only the step from one record to the next is Python code per record. `few_records` decodes
the answers of an almost idle partition.

A transaction of a partition is open from its first offset to its marker, and a producer has one at
a time. The broker lists the aborted transactions of an answer (KIP-98).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np
import pyarrow as pa

from fanout.errors import FanOutError, MalformedEventError
from fanout.kafka.reading.columns import KAFKA_LAYOUT, LocatedRecords
from fanout.kafka.reading.few_records import FEW, FEW_BYTES, decode_few
from fanout.kafka.reading.record_batches import (
    BREAKS_FORMAT,
    RECORDS_AT,
    announced_rows,
    arrow_bytes,
    damaged_batch,
    decompress,
    read_raw_batches,
)
from fanout.kafka.reading.record_fields import find_fields, find_records, read_varint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fanout.errors import DamagedFrameError
    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.columns import Layout
    from fanout.kafka.reading.record_batches import RawBatch
    from fanout.kafka.reading.record_fields import Bytes, Numbers, RecordFields
    from fanout.kafka.reading.transport import AbortedTransaction, Fetched

_ABORT: Final = 0  # the type of the marker that ends an aborted transaction
_MARKER_BYTES: Final = 64 * 1024
_KEY_BYTES: Final = 4

# An answer that announces more records is not read twice; markers of transactions are some of them.
_ANNOUNCED: Final = 2 * FEW


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


@final
class DecodedPart(NamedTuple):
    """Decoded records in the order of their offsets, perhaps none, with the columns of the layout.

    `nbytes` are the records' bytes in memory. `next_offset` comes after everything that the part
    covers, delivered or left out, and `leader_epoch` is that of its last batch, or -1.
    """

    records: pa.RecordBatch
    nbytes: int
    next_offset: int
    leader_epoch: int = -1


def decode_fetched(
    fetched: Fetched,
    partition: Partition,
    *,
    offset: int,
    stop: int | None = None,
    read_committed: bool,
    max_bytes: int,
    layout: Layout = KAFKA_LAYOUT,
) -> Iterator[DecodedPart]:
    """Decode an answer of Fetch; yield at least one part, and usually exactly one.

    Records before an error are yielded first, so that the position moves up to the damage. `stop`
    is the first offset not to deliver. A part has about `max_bytes` at most: a compressed batch
    that holds more is refused, and a larger batch that is not compressed is a part of its own.

    Raises:
        DamagedFrameError: If a batch cannot be read; the message names its offsets.
        MalformedEventError: If the answer is no record batch, or holds no whole one.
        SetupError: If a codec is missing.
    """
    if layout is KAFKA_LAYOUT:
        few = _few(
            fetched, partition, offset, stop, read_committed=read_committed, max_bytes=max_bytes
        )
        if few is not None:
            yield few
            return
    for part in _parts(
        fetched, partition, offset, stop, read_committed=read_committed, max_bytes=max_bytes
    ):
        decoded, error = part.decoded(layout)
        if error is None or decoded.next_offset > part.first_offset:
            yield decoded
        del decoded
        if error is not None:
            raise error


def _few(
    fetched: Fetched,
    partition: Partition,
    offset: int,
    stop: int | None,
    *,
    read_committed: bool,
    max_bytes: int,
) -> DecodedPart | None:
    """Decode an answer of few records.

    None where it has none or more, reaches beyond `stop`, or breaks the format.
    """
    most = min(FEW_BYTES, max_bytes)
    if len(fetched.batches) > most or announced_rows(fetched.batches, _ANNOUNCED) > _ANNOUNCED:
        return None
    aborts = AbortFilter(fetched.aborted) if read_committed else None
    few: list[tuple[RawBatch, bytes]] = []
    rows, size, next_offset, epoch = 0, 0, offset, -1
    try:
        for batch in read_raw_batches(fetched.batches, partition):
            if stop is not None and batch.next_offset > stop:
                return None
            aborted = aborts is not None and aborts.drops(batch, partition)
            if not aborted and not batch.control and batch.next_offset > next_offset:
                rows += batch.rows
                if rows > FEW:
                    return None
                data = decompress(batch, partition, most)
                size += arrow_bytes(data, batch.rows)
                if size > most:
                    return None
                few.append((batch, data))
            next_offset, epoch = max(next_offset, batch.next_offset), batch.leader_epoch
    except FanOutError:
        return None
    decoded = decode_few(few, partition, offset) if few else None
    return None if decoded is None else DecodedPart(*decoded, next_offset, epoch)


def _parts(
    fetched: Fetched,
    partition: Partition,
    offset: int,
    stop: int | None,
    *,
    read_committed: bool,
    max_bytes: int,
) -> Iterator[_Part]:
    """Yield what is decoded at once; the last part holds the error that ends the answer."""
    aborts = AbortFilter(fetched.aborted) if read_committed else None
    part = _Part(fetched, partition, offset, stop)
    try:
        for batch in read_raw_batches(fetched.batches, partition):
            if stop is not None and batch.base_offset >= stop:
                part.cover(stop)
                break
            aborted = aborts is not None and aborts.drops(batch, partition)
            if batch.control or aborted or batch.next_offset <= part.next_offset:
                part.cover(batch.next_offset)
                part.leader_epoch = batch.leader_epoch
                continue
            data = decompress(batch, partition, max_bytes)
            size = arrow_bytes(data, batch.rows)
            if part.nbytes and part.nbytes + size > max_bytes:
                yield part
                part = _Part(fetched, partition, part.next_offset, stop)
            part.add(batch, data, size)
            part.leader_epoch = batch.leader_epoch
    except FanOutError as error:
        part.error = error
    else:
        if fetched.batches and part.next_offset == offset and (stop is None or offset < stop):
            raise MalformedEventError(
                f"{partition}: the broker sent no whole batch at offset {offset}"
            )
    yield part


@final
class _Part:
    """Collect record batches, and decode all of their records at once.

    `next_offset` comes after everything that the part covers, `nbytes` is about what the records
    take in Arrow, and `error` is what is wrong with the batch after the part.
    """

    def __init__(
        self, fetched: Fetched, partition: Partition, offset: int, stop: int | None
    ) -> None:
        # The batches are read in place, unless some of them were compressed.
        self._answer = fetched.batches
        self._partition = partition
        self._stop = stop
        self._begins: list[int] = []  # where each record begins in its batch
        # Of each batch: how many records were found, its first and last offset, the base of its
        # timestamps, who set them, where it is in the answer, and its size when decompressed.
        self._batches: list[tuple[int, int, int, int, int, int, int]] = []
        self._decompressed: dict[int, bytes] = {}
        self.first_offset = self.next_offset = offset
        self.leader_epoch = -1
        self.nbytes = 0
        self.error: FanOutError | None = None

    def cover(self, next_offset: int) -> None:
        """Move on; never back, and never beyond the stop."""
        if self._stop is not None:
            next_offset = min(next_offset, self._stop)
        self.next_offset = max(self.next_offset, next_offset)

    def add(self, batch: RawBatch, data: bytes, size: int) -> None:
        """Add a batch with its uncompressed data, of `size` bytes in Arrow, and cover its offsets.

        Raises:
            DamagedFrameError: If its records do not fill it; the whole records at its beginning are
                added.
        """
        found = len(self._begins)
        filled = find_records(data, RECORDS_AT, batch.rows, self._begins)
        if data is not batch.data:
            self._decompressed[len(self._batches)] = data
        base, last, by_broker = batch.base_offset, batch.next_offset - 1, batch.timestamp_type
        timestamp = batch.max_timestamp if by_broker else batch.first_timestamp
        rows = len(self._begins) - found
        self._batches.append((rows, base, last, timestamp, by_broker, batch.at, len(data)))
        if not filled:
            raise damaged_batch(self._partition, base, last, BREAKS_FORMAT)
        self.nbytes += size
        self.cover(batch.next_offset)

    def decoded(self, layout: Layout) -> tuple[DecodedPart, FanOutError | None]:
        """Return the part up to the first damage, and the error of that damage."""
        records, damage = self._decode(layout)
        records = self._trim(records)
        nbytes = records.nbytes if records.num_rows else 0
        if damage is not None:
            base_offset, self.error = damage
            self.next_offset = max(self.first_offset, base_offset)
        if self.error is not None and records.num_rows:
            self.cover(records["offset"][-1].as_py() + 1)
        return DecodedPart(records, nbytes, self.next_offset, self.leader_epoch), self.error

    def _decode(
        self, layout: Layout
    ) -> tuple[pa.RecordBatch, tuple[int, DamagedFrameError] | None]:
        """Decode all records before the first one that cannot be read.

        The damage is the first offset of the batch that cannot be read, and its error.
        """
        if not self._begins:
            return layout.no_records, None
        rows, bases, lasts, timestamps, by_broker, at, sizes = np.array(self._batches, np.int64).T
        data, at = self._joined(at, sizes)
        begins = np.array(self._begins, np.int64) + np.repeat(at, rows)
        self._begins, self._decompressed = [], {}
        batches = np.repeat(np.arange(len(rows)), rows)
        fields, why = _find_fields(data, begins, (lasts - bases)[batches])
        damage = None
        if len(fields) < len(begins):
            number = batches[len(fields)]
            batches = batches[: len(fields)]
            base = int(bases[number])
            damage = base, damaged_batch(self._partition, base, int(lasts[number]), why)
        if not len(fields):
            return layout.no_records, damage
        times, types = timestamps[batches], by_broker[batches].astype(np.int32)
        records = LocatedRecords(
            fields,
            data,
            self._partition,
            offsets=bases[batches] + fields.offset_deltas,
            timestamps=np.where(types, times, times + fields.timestamp_deltas),
            timestamp_types=types,
        )
        return layout.columns(records), damage

    def _joined(self, at: Numbers, sizes: Numbers) -> tuple[Bytes, Numbers]:
        """Return the decompressed batches as one array, and where each begins in it."""
        if not self._decompressed:
            return np.frombuffer(self._answer, np.uint8), at
        answer = memoryview(self._answer)
        pieces = [
            self._decompressed.get(number) or answer[begin : begin + size]
            for number, (begin, size) in enumerate(zip(at.tolist(), sizes.tolist(), strict=True))
        ]
        return np.frombuffer(b"".join(pieces), np.uint8), np.cumsum(sizes) - sizes

    def _trim(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out the records before the first offset to deliver, and from the stop on."""
        offsets = records["offset"].to_numpy()
        inside = offsets >= self.first_offset
        if self._stop is not None:
            inside &= offsets < self._stop
        if not inside.all():
            records, offsets = records.filter(pa.array(inside)), offsets[inside]
        if (offsets[1:] <= offsets[:-1]).any():
            raise MalformedEventError(
                f"the records of {self._partition} at offsets {self.first_offset} to "
                f"{self.next_offset - 1} are not in the order of their offsets"
            )
        return records


def _find_fields(data: Bytes, begins: Numbers, max_deltas: Numbers) -> tuple[RecordFields, str]:
    """Find the fields of records up to the first that cannot be read, and say what is wrong.

    No record has a larger offset delta than `max_deltas` says for its batch.
    """
    fields = find_fields(data, begins)
    deltas = fields.offset_deltas
    outside = np.flatnonzero((deltas < 0) | (deltas > max_deltas[: len(deltas)]))
    if not len(outside):
        return fields, BREAKS_FORMAT
    return find_fields(data, begins[: outside[0]]), "they have offsets of other batches"
