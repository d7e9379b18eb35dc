"""Event time: when the event of a record happened, and the watermarks of splits and streams."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias, final

from fanout.core.events import Batch, End
from fanout.core.user_functions import check_function, drop_unawaited, is_interrupt
from fanout.errors import EventTimeError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from fanout.core.events import Split
    from fanout.core.positions import Cursor

TimesOf: TypeAlias = "Callable[[pa.RecordBatch], pa.Array]"
"""A user's function: from records to their event times, an array of timestamps with a time zone.

It is called once for each batch that the service sends, in the loop, so it must not block; work on
whole columns with `pyarrow.compute`. A null is a record without an event time.
"""

# What a timestamp can hold.
_NEWEST: Final = 2**63 - 1
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@final
@dataclass(frozen=True, slots=True)
class EventTime:
    """Where the event time of a record is, and how far out of order records come.

    Args:
        column: The name of a column of timestamps, or a function that computes one; None for when
            the record arrived at the service.
        out_of_orderness: Seconds by which an event may be older than the newest one before it in
            its split. An event that is older still is late; it is delivered like any other.
        idleness: Seconds without a record after which a split holds the stream's watermark back no
            longer; None for never. Only the time counts in which the reader waits for records, so
            that no split is idle whose records wait for the reader.

    Raises:
        OptionError: If an option is malformed or out of range.
    """

    column: str | TimesOf | None = None
    _: KW_ONLY
    out_of_orderness: float = 0.0
    idleness: float | None = None

    def __post_init__(self) -> None:
        if self.column is not None and not isinstance(self.column, str):
            kind = "the name of a column, or a function of a record batch"
            check_function("event_time: column", self.column, kind)
        if not 0 <= _number("out_of_orderness", self.out_of_orderness) < math.inf:
            raise OptionError(
                f"event_time: out_of_orderness={self.out_of_orderness} must not be negative, and "
                f"finite"
            )
        if self.idleness is not None and not 0 < _number("idleness", self.idleness) < math.inf:
            raise OptionError(
                f"event_time: idleness={self.idleness} must be more than 0 seconds, and finite, "
                f"or None"
            )


@final
@dataclass(frozen=True, slots=True)
class CarriedWatermarks:
    """Watermarks that the records carry themselves: each batch comes with that of its split."""

    # Returns the watermark of a split at a stored position; None where it has none. It raises
    # PositionError for one that is damaged.
    stored: Callable[[Cursor], int | None]


def parse_event_time(event_time: object, schema: pa.Schema, *, default: str) -> EventTime | None:
    """Check the option `event_time` against the schema, and fill in the default column.

    The default is the column with the arrival at the service; None stands for no watermarks.
    """
    match event_time:
        case None:
            return None
        case EventTime(str() | None as column):
            name = default if column is None else column
        case EventTime():
            return event_time
        case _:
            raise OptionError(f"event_time={event_time!r} must be an EventTime, or None")
    if name not in schema.names:
        raise OptionError(
            f"event_time: there is no column {name!r}; there are {', '.join(schema.names)}"
        )
    if problem := _problem(schema.field(name).type):
        raise OptionError(f"event_time: the column {name!r} {problem}")
    return replace(event_time, column=name)


@final
class SplitWatermark:
    """Follow the event time of one split, by an option that `parse_event_time` has returned.

    The watermark is the newest event time so far - `out_of_orderness` - 1 ms: no event that is as
    old or older is expected any more. It is the formula of Apache Flink
    (`BoundedOutOfOrdernessWatermarks`), which counts in milliseconds too.
    """

    def __init__(self, event_time: EventTime) -> None:
        self._column = event_time.column
        self._delay = math.ceil(event_time.out_of_orderness * 1000) + 1
        self._millis: int | None = None

    def stamp(self, batch: Batch) -> Batch:
        """Return a batch with the event times of its records, and the watermark after them.

        The watermark never goes back. It is None as long as no record had an event time.

        Raises:
            EventTimeError: If the user's function raised, which is then the cause, or returned
                anything but one timestamp or null for each record.
        """
        times = self._times(batch) if batch.num_records else None
        if times is not None and (newest := _newest(times)) is not None:
            millis = newest - self._delay
            self._millis = millis if self._millis is None else max(self._millis, millis)
        return replace(batch, watermark=self._millis, event_times=times)

    def _times(self, batch: Batch) -> pa.Array:
        if isinstance(self._column, str):
            return batch.records.column(self._column)
        assert self._column is not None, "the source names the column"
        what = f"{batch.split} has no event time from {batch.range.after} to {batch.range.until}"
        try:
            times = self._column(batch.records)
        except BaseException as error:
            if is_interrupt(error):
                raise
            # Its sentence may quote a record; the cause has it.
            raise EventTimeError(f"{what}: the function raised {type(error).__name__}") from error
        import pyarrow as pa  # noqa: PLC0415 - `import fanout` loads no pyarrow

        if not isinstance(times, pa.Array):
            drop_unawaited(times)
            found = type(times).__name__
            raise EventTimeError(f"{what}: the function returned {found}, not a pyarrow.Array")
        if problem := _problem(times.type):
            raise EventTimeError(f"{what}: the array that the function returned {problem}")
        if len(times) != batch.num_records:
            raise EventTimeError(
                f"{what}: the function returned {len(times)} times for {batch.num_records} records"
            )
        return times


def _newest(times: pa.Array) -> int | None:
    """Return the newest of some timestamps in milliseconds; None where all are null."""
    import pyarrow.compute as pc  # noqa: PLC0415 - see above

    value = pc.max(times).value
    return None if value is None else value * 1000 // _PER_SECOND[times.type.unit]


def late(times: pa.Array | None, watermark: int | None) -> int:
    """Count the timestamps, of any unit, that are not newer than a watermark in milliseconds."""
    if times is None or watermark is None:
        return 0
    import pyarrow as pa  # noqa: PLC0415 - see above
    import pyarrow.compute as pc  # noqa: PLC0415 - see above

    # The newest time of this unit whose whole milliseconds are not above the watermark.
    limit = ((watermark + 1) * _PER_SECOND[times.type.unit] - 1) // 1000
    # Mostly no record is late, and one look at the oldest one shows it.
    oldest = pc.min(times).value
    if oldest is None or oldest > limit:
        return 0
    newest_late = pa.scalar(min(limit, _NEWEST), times.type)
    return int(pc.sum(pc.less_equal(times, newest_late)).as_py())


def _problem(type_: pa.DataType) -> str:
    """Say what keeps a type from being that of event times, as the end of a sentence."""
    import pyarrow as pa  # noqa: PLC0415 - see above

    if not pa.types.is_timestamp(type_):
        return f"is of {type_}, which is no timestamp"
    if type_.tz is None:
        return f"is of {type_}, without a time zone; use pyarrow.compute.assume_timezone"
    return ""


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(f"event_time: {name}={value!r} must be a number of seconds")
    return value


@final
@dataclass(slots=True, eq=False)
class _Member:
    """A split that takes part."""

    split: Split
    since: float  # when its last record came, or it began to count, on the clock of the wait
    watermark: int | None = None
    idle: bool = False  # whether another process that reads it says that it is idle


@final
class Watermarks:
    """Hold the least watermark of all splits that count; it never goes back.

    The rules are those of Apache Flink's sources ("Generating Watermarks", "Dealing With Idle
    Sources"): a split without a record holds the stream back, until it is idle; an idle split is
    left out until it has a record again; where every split is idle, or has left, the watermark
    stays. A split leaves with its end, or at the stop of a bounded stream. A split whose parents
    are still read is left out, as they stand for it.

    The clock stands still while the consumer is busy, as Flink's does under back-pressure
    (FLIP-471): records that wait for the consumer are no sign of an idle split. Where other
    processes read the splits, they wait for records, and say which splits are idle.

    `stream` is the stream's watermark in milliseconds since the Unix epoch; None as long as there
    is none. `idleness` are seconds, None for never. In a `bounded` stream a batch without lag is
    the last one of its split.
    """

    def __init__(self, *, idleness: float | None, bounded: bool) -> None:
        self.stream: int | None = None
        self.bounded = bounded
        self._idleness = math.inf if idleness is None else idleness
        self._members: dict[str, _Member] = {}
        self._clock = 0.0
        self._waiting_since: float | None = None
        self._holder: _Member | None = None
        self._held_at: int | None = None

    def add(self, split: Split, watermark: int | None = None) -> None:
        """Let a split take part, with the watermark that it has; None for none yet."""
        self._members[split.id] = _Member(split, self._clock, watermark)

    def restore(self) -> None:
        """Begin with the least watermark of the splits that take part, which they had before."""
        self._advance()

    def deliver(self, event: Batch | End, watermark: int | None) -> None:
        """Take in what was handed to the consumer, and the watermark of its split after that."""
        match event:
            case End():
                self.leave(event.split.id)
            case Batch():
                self.advance(event.split.id, watermark, records=bool(event.num_records))
                if self.bounded and event.lag == 0:
                    self.leave(event.split.id)

    def advance(
        self, split_id: str, watermark: int | None, *, records: bool, idle: bool = False
    ) -> None:
        """Take in the watermark of a split, and whether it had records; one that left is ignored.

        `idle` is whether another process says that the split is idle after them.
        """
        if (member := self._members.get(split_id)) is not None:
            if records:
                member.since = self._clock
            member.idle = idle or (member.idle and not records)
            member.watermark = watermark
            self._advance()

    def leave(self, split_id: str) -> None:
        """Leave a split out for good: it has ended, or is at its stop."""
        if (member := self._members.get(split_id)) is not None:
            self._leave(member)
            self._advance()

    def is_idle(self, split_id: str, now: float) -> bool:
        """Return whether a split that takes part has had no record for long, at the loop's time."""
        member = self._members.get(split_id)
        waited = 0.0 if self._waiting_since is None else now - self._waiting_since
        return member is not None and self._is_idle(member, waited)

    def begin_wait(self, now: float) -> None:
        """Note that the consumer waits and that nothing is ready for it."""
        self._waiting_since = now

    def end_wait(self, now: float) -> None:
        """Note that the wait is over, and leave out the splits that have become idle."""
        assert self._waiting_since is not None, "a wait has begun"
        self._clock += now - self._waiting_since
        self._waiting_since = None
        self._advance()

    def _leave(self, member: _Member) -> None:
        del self._members[member.split.id]
        for other in self._members.values():
            if member.split.id in other.split.parents:
                other.since = self._clock

    def _advance(self) -> None:
        """Move the stream's watermark to the least one that counts."""
        holder = self._holder
        # As long as one split holds the stream back where it did, the others need no look.
        if holder is not None and self._counts(holder) and holder.watermark == self._held_at:
            return
        counting = (member for member in self._members.values() if self._counts(member))
        holder = self._holder = min(counting, key=_height, default=None)
        self._held_at = None if holder is None else holder.watermark
        if self._held_at is not None and (self.stream is None or self._held_at > self.stream):
            self.stream = self._held_at

    def _counts(self, member: _Member) -> bool:
        return (
            member.split.id in self._members
            and not self._is_idle(member)
            and not any(parent in self._members for parent in member.split.parents)
        )

    def _is_idle(self, member: _Member, waited: float = 0.0) -> bool:
        return member.idle or self._clock + waited - member.since >= self._idleness


def _height(member: _Member) -> float:
    return -math.inf if member.watermark is None else member.watermark
