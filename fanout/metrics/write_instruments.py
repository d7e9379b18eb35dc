"""What is measured of writers and sinks; `docs/observability.md` lists it for users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from fanout.metrics.instruments import OPERATION, Instrument

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.core.statistics import SinkStatistics, WriterStatistics
    from fanout.metrics.instruments import Values


@final
@dataclass(frozen=True, slots=True)
class WriteReading:
    """The statistics of a writer or a sink at one moment."""

    statistics: WriterStatistics | SinkStatistics


def _field(name: str, *attributes: tuple[str, str]) -> Callable[[WriteReading], Values]:
    """Return what reads a field; a writer and a sink do not have all of the same."""
    return lambda reading: [(getattr(reading.statistics, name, None), attributes)]


def _transactions(reading: WriteReading) -> Values:
    counted: Any = reading.statistics.transactions
    if counted is None:
        return []
    return [
        (getattr(counted, step), (("fanout.transaction.step", step),))
        for step in ("begun", "committed", "aborted")
    ]


def _written(
    name: str, unit: str, description: str, read: Callable[[WriteReading], Values]
) -> Instrument:
    return Instrument(name, unit, description, read, WriteReading)


WRITE_COUNTERS: Final = (
    _written(
        "messaging.client.sent.messages",
        "{message}",
        "Records that the service has confirmed",
        _field("records", (OPERATION, "send")),
    ),
    _written("fanout.sent.bytes", "By", "Their bytes", _field("bytes")),
    _written(
        "fanout.writer.requests",
        "{request}",
        "Requests with records that a writer has sent",
        _field("requests"),
    ),
    _written(
        "fanout.writer.retries",
        "{record}",
        "Records that a writer has sent again, each time",
        _field("retries"),
    ),
    _written(
        "fanout.writer.throttled",
        "{response}",
        "Answers in which the service slows a writer down",
        _field("throttled"),
    ),
    _written(
        "fanout.sink.batches", "{batch}", "Batches that a sink has written", _field("batches")
    ),
    _written(
        "fanout.transactions",
        "{transaction}",
        "Transactions of a writer or a sink that were begun, committed and aborted",
        _transactions,
    ),
)

WRITE_LEVELS: Final = (
    _written(
        "fanout.writer.waiting",
        "By",
        "Bytes of records that the service has not confirmed",
        _field("waiting_bytes"),
    ),
)
