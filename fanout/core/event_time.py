"""Event time: when the event of a record happened, and the watermark of a split."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias, final

from fanout.core.user_functions import check_function, drop_unawaited, is_interrupt
from fanout.errors import EventTimeError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from fanout.core.events import Batch
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
