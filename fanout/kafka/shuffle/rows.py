"""Rows for the topic of a shuffle: records by their keys, and what producers say everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from fanout.errors import ServiceError
from fanout.kafka.shuffle.frame_columns import encode
from fanout.kafka.shuffle.frames import encode_control
from fanout.kafka.writing.partitioner import partitions_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fanout.kafka.shuffle.frames import ControlFrame

__all__ = ("check_count", "keyed", "said")


def keyed(
    topic: str, count: int, keys: pa.Array, values: pa.Array, timestamps: pa.Array | None
) -> pa.RecordBatch:
    """Return records, each for the partition that Kafka's own producers choose for its key.

    Args:
        topic: The topic.
        count: How many partitions it has.
        keys: As for `encode`, like the columns that follow.
        values: The values.
        timestamps: When the rows happened.

    Raises:
        BadFrameError: As `encode`.
        OptionError: As `encode`.
    """
    frames = encode(keys, values, timestamps)
    # Kafka's timestamp is left to be that of the writing: topics are kept for so long.
    columns = {
        "topic": pa.repeat(topic, len(keys)),
        "partition": partitions_of(keys.cast(pa.binary()), count),
        "key": keys.cast(pa.binary()),
        "value": frames,
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def said(topic: str, partitions: Iterable[int], frames: Sequence[ControlFrame]) -> pa.RecordBatch:
    """Return what a producer says, for each of some partitions in the order of the frames."""
    values = [encode_control(frame) for frame in frames]
    numbers = [number for number in partitions for _ in values]
    columns = {
        "topic": pa.repeat(topic, len(numbers)),
        "partition": pa.array(numbers, pa.int32()),
        "key": pa.nulls(len(numbers), pa.binary()),
        "value": pa.array(values * (len(numbers) // max(1, len(values))), pa.binary()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def check_count(
    topic: str, found: int, expected: int | None, *, by: str = "partition_count"
) -> None:
    """Check how many partitions a topic has.

    Args:
        topic: The topic.
        found: How many it has.
        expected: How many it should have; None for any number.
        by: Who says so, for the message.

    Raises:
        ServiceError: It has another number than was said.
    """
    if expected not in {None, found}:
        raise ServiceError(
            f"the topic {topic!r} has {found} partitions, and by {by} it has {expected}: "
            f"keys would not be where they were; write to a new topic"
        )
