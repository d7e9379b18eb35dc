"""Metrics of fanout that are collected all the time, and sent nowhere."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    PeriodicExportingMetricReader,
)

from fanout.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.metrics.export import MetricsData

__all__ = ("collected_metrics",)


class _Nowhere(MetricExporter):
    """Drop what is exported: to send it costs what the exporter costs."""

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any
    ) -> MetricExportResult:
        """Drop it."""
        del metrics_data, timeout_millis
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Return at once."""
        del timeout_millis
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """Do nothing."""


@contextmanager
def collected_metrics() -> Iterator[Metrics]:
    """Collect metrics once a second while the block runs."""
    reader = PeriodicExportingMetricReader(_Nowhere(), export_interval_millis=1000)
    provider = MeterProvider([reader])
    try:
        yield Metrics(provider)
    finally:
        provider.shutdown()
