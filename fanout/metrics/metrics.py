"""Give the counters of streams and queries to OpenTelemetry, which reads them when it collects."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, final

from opentelemetry.metrics import Observation, get_meter

from fanout.core.option_checks import whole
from fanout.errors import OptionError
from fanout.metrics.instruments import ERROR, GAUGES, LEVELS, OPERATION
from fanout.metrics.registry import SUMS, Registration, Registry
from fanout.metrics.write_instruments import WRITE_LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from opentelemetry.metrics import CallbackOptions, MeterProvider

    from fanout.core.statistics import Origin
    from fanout.metrics.instruments import Attributes, Instrument
    from fanout.metrics.registry import Watchable

# The boundaries of the conventions, and more of them, as a batch may take minutes.
_BOUNDARIES: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
    *(30, 60, 300, 900),
)


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
