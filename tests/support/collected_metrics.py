"""What a real OpenTelemetry SDK collects of `Metrics`, in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from fanout.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

pa.array([0])  # imports pandas, which reads files, so not in a loop that refuses blocking calls

ORIGIN = (
    "messaging.system",
    "messaging.destination.name",
    "messaging.consumer.group.name",
    "fanout.stream.name",
)


class Collected:
    """Metrics with an SDK of their own."""

    def __init__(self, *, worst_splits: int = 20) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.metrics = Metrics(self.provider, worst_splits=worst_splits)

    def all(self) -> dict[str, Any]:
        """Collect once; return the SDK's metrics by name."""
        data = self.reader.get_metrics_data()
        return {} if data is None else {metric.name: metric for metric in _metrics(data)}

    def close(self) -> None:
        """Shut the SDK down."""
        self.provider.shutdown()

    def now(self) -> dict[str, dict[str, float]]:
        """Collect once; return the values of each metric by what is special to a series.

        A histogram has the number of its values.
        """
        return {name: _points(metric) for name, metric in self.all().items()}


def attributes(metric: Any) -> list[dict[str, str]]:
    return [dict(point.attributes) for point in metric.data.data_points]


def _metrics(data: Any) -> Iterator[Any]:
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            yield from scope.metrics


def _points(metric: Any) -> dict[str, float]:
    points = {}
    for point in metric.data.data_points:
        own = {k: v for k, v in point.attributes.items() if k not in ORIGIN}
        own.pop("messaging.operation.name", None)
        value = point.count if isinstance(point, HistogramDataPoint) else point.value
        points[" ".join(own.values())] = value
    return points
