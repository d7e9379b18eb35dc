"""The streams that are watched, and what each instrument reads of them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, final

from fanout.core.statistics import Statistics
from fanout.errors import OptionError
from fanout.metrics.instruments import COUNTERS
from fanout.metrics.readings import StreamReading
from fanout.metrics.write_instruments import WRITE_COUNTERS, WriteReading

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.core.statistics import SinkStatistics, WriterStatistics
    from fanout.metrics.instruments import Attributes, Instrument

Reading: TypeAlias = StreamReading | WriteReading

SUMS: Final = COUNTERS + WRITE_COUNTERS
"""The instruments whose values stay when what they read has ended."""

# One collection reads each stream once, for all instruments together.
_SAME_COLLECTION: Final = 1.0


class Watchable(Protocol):
    """A stream, a query, a writer or a sink."""

    def statistics(self) -> Statistics | WriterStatistics | SinkStatistics:
        """Return its counters, from any thread."""


class EndingStream(Protocol):
    """A stream that says by itself when it is over."""

    @property
    def is_active(self) -> bool:
        """Whether it runs."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Registration:
    """A stream that is watched."""

    stream: Watchable
    ending: EndingStream | None  # says when it is over; None where only `Registry.remove` ends it
    attributes: Attributes  # of all its series
    kind: type  # the type of its statistics: a stream and a writer may have the same attributes

    @property
    def key(self) -> tuple[type, Attributes]:
        """What no other one that is watched has."""
        return self.kind, self.attributes


@final
class Registry:
    """Read the streams that are watched, and keep the counters of those that were.

    Any thread may call it. What has ended is kept as sums by attributes, so that memory grows with
    the number of different attributes alone.
    """

    def __init__(self, worst_splits: int) -> None:
        self._worst_splits = worst_splits
        self._lock = threading.Lock()
        self._watched: dict[tuple[type, Attributes], Registration] = {}
        self._ended: dict[str, dict[Attributes, float]] = {each.name: {} for each in SUMS}
        self._readings: dict[Registration, Reading] = {}
        self._served: set[str] = set()
        self._read_at = -_SAME_COLLECTION

    def __contains__(self, registration: Registration) -> bool:
        return self._watched.get(registration.key) is registration

    def add(self, registration: Registration) -> None:
        """Begin to read a stream; no other one that is read may have the same attributes."""
        with self._lock:
            self._drop_ended()
            if registration.key in self._watched:
                what = "stream" if registration.kind is Statistics else "writer"
                named = ", ".join(f"{key}={value}" for key, value in registration.attributes)
                raise OptionError(
                    f"a {what} with the attributes {named} is watched already: stop that one, or "
                    f"tell the two apart by name="
                )
            self._watched[registration.key] = registration
            self._forget_readings()

    def remove(self, registration: Registration) -> None:
        """Keep the counters of a stream, and forget the rest of it; idempotent."""
        with self._lock:
            if registration in self:
                self._end(registration)

    def sums(self, counter: Instrument) -> dict[Attributes, float]:
        """Return the value of each series of a counter, with those of streams that have ended."""
        with self._lock:
            readings = self._collect(counter)
            sums = self._ended[counter.name].copy()
        for attributes, value in _values(counter, readings):
            sums[attributes] = sums.get(attributes, 0) + value
        return sums

    def values(self, instrument: Instrument) -> dict[Attributes, float]:
        """Return the value of each series of another instrument."""
        with self._lock:
            readings = self._collect(instrument)
        return dict(_values(instrument, readings))

    def _collect(self, instrument: Instrument) -> dict[Registration, Reading]:
        """Read all streams, unless another instrument has done so for the same collection."""
        now = time.monotonic()
        if instrument.name in self._served or now - self._read_at >= _SAME_COLLECTION:
            self._drop_ended()
            self._readings = {each: self._read(each) for each in self._watched.values()}
            self._served.clear()
            self._read_at = now
        self._served.add(instrument.name)
        return self._readings

    def _read(self, registration: Registration) -> Reading:
        statistics = registration.stream.statistics()
        if not isinstance(statistics, Statistics):
            return WriteReading(statistics)
        now = round(datetime.now(UTC).timestamp() * 1000)
        return StreamReading.take(statistics, now, self._worst_splits)

    def _drop_ended(self) -> None:
        for registration in list(self._watched.values()):
            if registration.ending is not None and not registration.ending.is_active:
                self._end(registration)

    def _end(self, registration: Registration) -> None:
        readings = {registration: self._read(registration)}
        for counter in SUMS:
            ended = self._ended[counter.name]
            for attributes, value in _values(counter, readings):
                ended[attributes] = ended.get(attributes, 0) + value
        del self._watched[registration.key]
        self._forget_readings()

    def _forget_readings(self) -> None:
        """Read anew for the next instrument: a reading and what has ended must not overlap."""
        self._read_at = -_SAME_COLLECTION


def _values(
    instrument: Instrument, readings: dict[Registration, Reading]
) -> Iterator[tuple[Attributes, float]]:
    for registration, reading in readings.items():
        if isinstance(reading, instrument.of):
            for value, own in instrument.read(reading):
                if value is not None:
                    yield registration.attributes + own, value
