"""Make columns of what users pass, and choose the partition of each row.

A partition follows from the key as in Kafka's own producers, for whole columns at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fanout.core.option_checks import as_rows
from fanout.core.user_functions import drop_unawaited
from fanout.errors import UnwritableRecordError
from fanout.kafka.writing.row_batches import COLUMNS, column_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    _Hashes: TypeAlias = npt.NDArray[np.uint32]

_TOPIC: Final = "topic"

Partitioner: TypeAlias = "Callable[[pa.Array, int], pa.Array]"
"""From the keys of many rows (binary, null where there is none) and the number of partitions of
their topic to the partition of each."""

# `murmur2` in Utils.java of Kafka's clients.
_SEED: Final = 0x9747B28C
_FACTOR: Final = np.uint32(0x5BD1E995)
_SHIFT: Final = np.uint32(24)
_WORD: Final = 4


def partitions_of(keys: pa.BinaryArray, count: int, *, first_row: int = 0) -> pa.Int32Array:
    """Return the partition of each key, as the default partitioner of Kafka's producers does.

    Records without a key go to the partitions in turn by the numbers of their rows, so that the
    same rows have the same partitions each time.
    """
    chosen = (murmur2(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(count)
    if keys.null_count:
        turns = (np.arange(len(keys)) + first_row) % count
        chosen = np.where(keys.is_null().to_numpy(zero_copy_only=False), turns, chosen)
    return pa.array(chosen, pa.int32())


def murmur2(keys: pa.BinaryArray) -> _Hashes:
    """Return Kafka's hash of each key; the hash of a null key has no meaning."""
    _, offsets, data = keys.buffers()
    ends = np.frombuffer(offsets, np.int32, len(keys) + 1, keys.offset * 4).astype(np.int64)
    first, last = int(ends[0]), int(ends[-1])
    ends -= first
    # Zeros follow the last byte, because whole words are read.
    content = np.zeros(last - first + _WORD, np.uint8)
    content[: last - first] = np.frombuffer(data or b"", np.uint8, last - first, first)
    # The longest keys come first, so those that have a word left are the first ones.
    lengths = np.diff(ends)
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = ends[:-1][order], lengths[order]
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    whole = lengths // _WORD
    words = np.ndarray((len(content) - _WORD + 1,), "<u4", content, strides=(1,))
    for number in range(int(whole[0]) if len(whole) else 0):
        left = int(np.searchsorted(-whole, -number))
        mixed = words[starts[:left] + number * _WORD] * _FACTOR
        mixed ^= mixed >> _SHIFT
        hashes[:left] = (hashes[:left] * _FACTOR) ^ (mixed * _FACTOR)
    tail = lengths % _WORD
    rest = words[starts + whole * _WORD] & ((1 << 8 * tail) - 1).astype(np.uint32)
    hashes = np.where(tail, (hashes ^ rest) * _FACTOR, hashes)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _FACTOR
    hashes ^= hashes >> np.uint32(15)
    unsorted = np.empty_like(hashes)
    unsorted[order] = hashes
    return unsorted


def checked(partitioner: Partitioner) -> Partitioner:
    """Wrap a user's function; raise UnwritableRecordError where its result is not partitions."""

    def assign(keys: pa.Array, count: int) -> pa.Array:
        found = partitioner(keys, count)
        try:
            partitions = pa.array(found).cast(pa.int32())
        except (pa.ArrowException, TypeError) as error:
            drop_unawaited(found)
            raise UnwritableRecordError(
                f"the partitioner must return an array of partitions: {error}"
            ) from error
        numbers = partitions.to_numpy(zero_copy_only=False)
        if (
            len(numbers) != len(keys)
            or partitions.null_count
            or not (((numbers >= 0) & (numbers < count)).all())
        ):
            raise UnwritableRecordError(
                f"the partitioner must return, for each of the {len(keys)} keys that it is given, "
                f"a partition from 0 to {count - 1}"
            )
        return partitions

    return assign


def to_batch(records: pa.RecordBatch | Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Return rows as a record batch, or raise UnwritableRecordError where Kafka cannot hold one."""
    if isinstance(records, pa.RecordBatch):
        return records
    rows = as_rows(records)
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _column(name, [row.get(name) for row in rows]) for name in names}
    return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])


def topics_of(records: pa.RecordBatch, topic: str | None) -> list[str]:
    """Return the topics of rows: this one, or those of their column where it is None."""
    if topic is not None:
        return [topic]
    if _TOPIC not in records.schema.names:
        raise UnwritableRecordError("there is no topic: pass topic=, or add a column 'topic'")
    column = records[_TOPIC]
    if column.null_count:
        raise UnwritableRecordError("a record has no topic: give each one")
    topics: list[str] = column.unique().to_pylist()
    return topics


def place_rows(
    records: pa.RecordBatch,
    counts: Mapping[str, int],
    *,
    partitioner: Partitioner | None,
    first_row: int,
) -> pa.RecordBatch:
    """Return rows with a topic and a partition each; a given partition goes before the partitioner.

    `counts` has the number of partitions of each topic; where there is one, all rows are for it.
    Rows without a key go to all partitions in turn, by their numbers from `first_row` on.
    """
    columns = {name: records[name] for name in records.schema.names}
    if len(counts) == 1:
        (topic,) = counts
        columns[_TOPIC] = pa.repeat(topic, len(records))
    given = column_of(records, "partition")
    if given.null_count:
        keys = column_of(records, "key")
        found = _assign(keys, columns[_TOPIC], counts, partitioner, first_row)
        given = pc.coalesce(given, found)
    columns["partition"] = given
    return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])


def _assign(
    keys: pa.Array,
    topics: pa.Array,
    counts: Mapping[str, int],
    partitioner: Partitioner | None,
    first_row: int,
) -> pa.Array:
    if len(counts) == 1:
        (count,) = counts.values()
        return _partitions(keys, count, partitioner, first_row)
    found = np.zeros(len(keys), np.int32)
    for topic, count in counts.items():
        rows = np.flatnonzero(pc.equal(topics, topic).to_numpy(zero_copy_only=False))
        of_topic = _partitions(keys.take(pa.array(rows)), count, partitioner, first_row)
        found[rows] = of_topic.to_numpy()
    return pa.array(found)


def _partitions(
    keys: pa.Array, count: int, partitioner: Partitioner | None, first_row: int
) -> pa.Array:
    if partitioner is None:
        return partitions_of(keys, count, first_row=first_row)
    return checked(partitioner)(keys, count)


def _column(name: str, values: list[Any]) -> pa.Array:
    kind = COLUMNS.get(name)
    if kind is None:
        raise UnwritableRecordError(
            f"a row has {name!r}, which Kafka cannot hold: leave it out, or name it one of "
            f"{', '.join(COLUMNS)}"
        )
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        # The original error may quote a value, so it is not chained.
        raise UnwritableRecordError(f"{name!r} of a row cannot be made {kind}") from None
