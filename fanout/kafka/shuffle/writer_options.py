"""The options of a writer of a shuffle, in asyncio and in Spark."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, final

from fanout.core.option_checks import at_least_one, check_text, number, whole
from fanout.core.user_functions import check_function
from fanout.errors import OptionError
from fanout.kafka.shuffle.frames import MAX_GENERATION, MAX_PRODUCERS
from fanout.kafka.writing.write_options import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

ColumnChoice: TypeAlias = "str | Callable[[pa.RecordBatch], pa.Array]"
"""A column by its name, or a function of the rows that returns one."""

# Announcing more often keeps brokers busy for nothing.
_LEAST_IDLE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleProducerOptions(WriteOptions):
    """Options of a producer of a shuffle; see also `WriteOptions`.

    Args:
        topic: The topic of the shuffle. It has to exist.
        delivery_guarantee: `"exactly_once"` or `"at_least_once"`.
        out_of_orderness: Seconds by which a record may be earlier than a record before it; the
            watermark follows from that and the times of the records. None for other watermarks.
        partition_count: The number of partitions that the topic must have; None for any.
        producer: The number of this producer, from 0 on.
        producers: The number of producers that write to the topic.
        generation: A number that all producers share, and that rises whenever `producers`
            changes: a higher generation replaces all lower ones. None, for a single producer, is
            a new one for each run.
    """

    topic: str
    delivery_guarantee: Literal["exactly_once", "at_least_once"] = "exactly_once"
    out_of_orderness: float | None = None
    partition_count: int | None = None
    producer: int = 0
    producers: int = 1
    generation: int | None = None

    def check_producer(self, *, has_times: bool) -> None:
        """Check the options of this class, with or without times of records."""
        self.check_writing("exactly_once", "at_least_once")
        check_text("topic", self.topic, or_none=False)
        lateness = self.out_of_orderness
        if lateness is not None:
            if not 0 <= number("out_of_orderness", lateness) < math.inf:
                raise OptionError(
                    f"out_of_orderness={lateness} must be 0 seconds or more, and finite, or None"
                )
            if not has_times:
                raise OptionError("out_of_orderness is about the times of records: pass timestamp=")
        self._check_identity()
        at_least_one("partition_count", self.partition_count, or_none=True)

    def _check_identity(self) -> None:
        """Check which producer of its generation this is."""
        count, generation = whole("producers", self.producers), self.generation
        if not 1 <= count <= MAX_PRODUCERS:
            raise OptionError(f"producers={count} must be from 1 to {MAX_PRODUCERS}")
        if not 0 <= whole("producer", self.producer) < count:
            raise OptionError(
                f"producer={self.producer} must be from 0 to {count - 1}: there are {count}"
            )
        if generation is None and count > 1:
            raise OptionError(
                f"{count} producers share a generation: pass the same generation= to each, and a "
                f"higher one whenever their number changes"
            )
        if generation is not None and not (
            0 <= whole("generation", generation, or_none=True) <= MAX_GENERATION
        ):
            raise OptionError(
                f"generation={generation} must be from 0 to {MAX_GENERATION}, or None"
            )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleWriterOptions(ShuffleProducerOptions):
    """Options of `open_shuffle_writer`; see also `ShuffleProducerOptions` and `WriteOptions`.

    If `out_of_orderness` is None, the user calls `ShuffleWriter.watermark`. If `generation` is
    None, it is the time in milliseconds; with `"exactly_once"` it is also above that of the last
    writer, independently of clocks. With `"exactly_once"` a commit is a transaction. With
    `"at_least_once"` records are visible at once, and repeated if the user writes them again.

    Args:
        key: The column of the keys, string or binary, or a function that returns it.
        value: The column of the values, likewise.
        timestamp: The column of the times, with a time zone, likewise; None for records without
            times.
        idle_after: Seconds without a call after which the writer announces that it is idle, and
            again after each such time, so that readers do not wait for it; at least 0.1. None for
            never.

    Raises:
        OptionError: If an option is malformed or out of range, or two contradict each other.
    """

    key: ColumnChoice = "key"
    value: ColumnChoice = "value"
    timestamp: ColumnChoice | None = None
    idle_after: float | None = 10.0

    def __post_init__(self) -> None:
        for name in ("key", "value", "timestamp"):
            value = getattr(self, name)
            if not (isinstance(value, str) or (name, value) == ("timestamp", None)):
                kind = "the name of a column, or a function of rows"
                check_function(name, value, kind)
        self.check_producer(has_times=self.timestamp is not None)
        idle = self.idle_after
        if idle is not None and not _LEAST_IDLE <= number("idle_after", idle) < math.inf:
            raise OptionError(
                f"idle_after={idle} must be at least {_LEAST_IDLE:g} seconds, or None"
            )

    @property
    def transactional_id(self) -> str:
        """The transactional id; each producer of a topic has its own."""
        return f"{self.transactional_id_prefix}-{self.topic}-producer-{self.producer}"
