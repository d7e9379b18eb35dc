"""Metrics of running streams and queries for OpenTelemetry.

Needs the extra `otel`, which is OpenTelemetry's interface alone: its SDK and an exporter are yours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout._exports import lazy_exports

if TYPE_CHECKING:
    from fanout.metrics.metrics import Metrics, WatchedStream

__all__ = ("Metrics", "WatchedStream")

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Metrics": "fanout.metrics.metrics",
        "WatchedStream": "fanout.metrics.metrics",
    },
)
