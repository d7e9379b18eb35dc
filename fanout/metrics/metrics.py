"""Give the counters of streams and queries to OpenTelemetry, which reads them when it collects."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias, final

from opentelemetry.metrics import Observation, get_meter

from fanout.core.option_checks import check_offers, check_text, whole
from fanout.core.statistics import Statistics
from fanout.errors import OptionError
from fanout.metrics.instruments import (
    COUNTERS,
    ERROR,
    GAUGES,
    LEVELS,
    OPERATION,
    WRITE_COUNTERS,
    WRITE_LEVELS,
    WriteReading,
)
from fanout.metrics.readings import StreamReading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from opentelemetry.metrics import CallbackOptions, MeterProvider

    from fanout.core.statistics import Origin, SinkStatistics, WriterStatistics
    from fanout.metrics.instruments import Attributes, Instrument

Reading: TypeAlias = StreamReading | WriteReading

SUMS: Final = COUNTERS + WRITE_COUNTERS
"""The instruments whose values stay when what they read has ended."""

# One collection reads each stream once, for all instruments together.
_SAME_COLLECTION: Final = 1.0
# The boundaries of the conventions, and more of them, as a batch may take minutes.
_BOUNDARIES: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
    *(30, 60, 300, 900),
)


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


class _Batch(Protocol):
    @property
    def seconds(self) -> Mapping[str, float]: ...

    @property
    def error(self) -> Exception | None: ...


@final
class WatchedStream:
    """A stream that `Metrics` reads; made by `Metrics.watch`. Leaving its block unregisters it.

    Its counters stay in what is exported, so that no sum goes down. Its other values end.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Read the stream once more, and no longer after that; idempotent."""
        self._stop()


@final
class Metrics:
    """Give what streams and queries count to OpenTelemetry; make one in a process.

    All instruments but one are observable: they read `statistics()` when OpenTelemetry collects,
    and cost nothing between. `messaging.process.duration` is recorded once for a batch of a query.
    `docs/observability.md` lists them.

    Args:
        meter_provider: Makes the instruments; None for the global provider of OpenTelemetry, which
            may be set before or after.
        worst_splits: Of each stream so many splits have series of their own: those that lag most.
            Streams have their totals in any case.

    Raises:
        OptionError: If `worst_splits` is negative.
    """

    def __init__(
        self, meter_provider: MeterProvider | None = None, *, worst_splits: int = 20
    ) -> None:
        if whole("worst_splits", worst_splits) < 0:
            raise OptionError(f"worst_splits={worst_splits} must not be negative; 0 is for none")
        if meter_provider is not None:
            check_offers("meter_provider", meter_provider, "get_meter", "a MeterProvider, or None")
        self._registry = Registry(worst_splits)
        meter = get_meter("fanout", meter_provider=meter_provider)
        for make, read, instruments in (
            (meter.create_observable_counter, self._registry.sums, SUMS),
            (meter.create_observable_up_down_counter, self._registry.values, LEVELS + WRITE_LEVELS),
            (meter.create_observable_gauge, self._registry.values, GAUGES),
        ):
            for each in instruments:
                make(each.name, [partial(_observe, read, each)], each.unit, each.description)
        self._process = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Seconds that the handler took for a batch",
            explicit_bucket_boundaries_advisory=_BOUNDARIES,
        )

    def watch(self, stream: Watchable, *, name: str | None = None) -> WatchedStream:
        """Read a stream at each collection, until the block of what is returned is left.

        A query is unregistered by its end, too. Any thread may call it.

        Args:
            stream: What `fanout.open`, `fanout.land` or an `open_writer` yields, what
                `foreach_batch` returns, or a `KafkaSink` or `KinesisSink`.
            name: The attribute `fanout.stream.name` of all its series; None for the name of the
                query, and for none where that has none.

        Raises:
            OptionError: If another stream with the same attributes is watched.
        """
        check_offers("stream", stream, "statistics", "a stream, a landing, a query or a writer")
        check_text("name", name)
        query: Any = stream if hasattr(stream, "on_batch") else None
        if name is None and query is not None:
            name = query.name
        statistics = stream.statistics()
        named = _attributes(statistics.origin, name)
        registration = Registration(stream, query, named, type(statistics))
        self._registry.add(registration)
        with ExitStack() as stack:
            stack.callback(self._registry.remove, registration)
            if query is not None:
                stack.callback(query.on_batch(partial(self._record, registration)))
            return WatchedStream(stack.pop_all().close)

    def _record(self, registration: Registration, batch: _Batch) -> None:
        if registration in self._registry:
            attributes = {**dict(registration.attributes), OPERATION: "process"}
            if batch.error is not None:
                attributes[ERROR] = type(batch.error).__name__
            self._process.record(batch.seconds.get("handler", 0.0), attributes)


def _observe(
    read: Callable[[Instrument], dict[Attributes, float]],
    instrument: Instrument,
    _options: CallbackOptions,
) -> Iterator[Observation]:
    for attributes, value in read(instrument).items():
        yield Observation(value, dict(attributes))


def _attributes(origin: Origin, name: str | None) -> Attributes:
    named = {
        "messaging.system": origin.system,
        "messaging.destination.name": origin.destination,
        "messaging.consumer.group.name": origin.group,
        "fanout.stream.name": name,
    }
    return tuple((key, value) for key, value in named.items() if value)
