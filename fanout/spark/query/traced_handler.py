"""Trace the micro-batches of a handler by OpenTelemetry: a span for each, with its phases."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, final

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, get_current_span, get_tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fanout.core.option_checks import whole
from fanout.core.user_functions import call
from fanout.errors import OptionError
from fanout.spark.query.batch_context import RecoveringHandler, current_batch
from fanout.spark.query.batch_runner import check_handler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue
    from pyspark.sql import DataFrame, SparkSession

    from fanout.spark.query.batch_context import BatchContext
    from fanout.spark.query.batch_runner import Handler
    from fanout.spark.workers.loop_thread import LoopThread

# Of each batch the headers of so many records are looked at, and so many splits are named.
_LOOK_AT: Final = 1000
_SPLITS: Final = 100
_HEADERS: Final = "array<struct<key:string,value:binary>>"
_PREPARED: Final = ("drain", "seal", "publish", "ledger")
_W3C: Final = TraceContextTextMapPropagator()


def traced(
    handler: Handler, *, tracer_provider: TracerProvider | None = None, max_links: int = 32
) -> Handler:
    """Return a handler for `foreach_batch` that makes a span of each micro-batch.

    The spans of what the handler calls are below it. `docs/observability.md` lists the attributes.
    No record data and no text of an error is in them.

    Args:
        handler: Your handler, or a sink.
        tracer_provider: Makes the spans; None for the global provider of OpenTelemetry, which may
            be set before or after.
        max_links: A batch of Kafka links to so many traces at most, by the header `traceparent` of
            its first 1,000 records. That takes a job of Spark for each sampled batch; 0 is for
            no job and no links.

    Raises:
        OptionError: If handler is no plain function, or `max_links` is negative.
    """
    check_handler(handler)
    if whole("max_links", max_links) < 0:
        raise OptionError(f"max_links={max_links} must not be negative; 0 is for none")
    return _TracedHandler(handler, get_tracer("fanout", tracer_provider=tracer_provider), max_links)


@final
class _TracedHandler:
    def __init__(self, handler: Handler, tracer: Tracer, max_links: int) -> None:
        self._handler = handler
        self._tracer = tracer
        self._max_links = max_links

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        context, now = current_batch(), time.time_ns()
        took = {phase: round(context.seconds.get(phase, 0.0) * 1e9) for phase in _PREPARED}
        at = now - sum(took.values())
        attributes = _attributes(context)
        name = f"process {attributes.get('messaging.destination.name', '')}".rstrip()
        with self._span(name, SpanKind.CONSUMER, at, attributes) as span:
            if span.is_recording():
                for phase in context.seconds.keys() & took.keys():
                    since = at + sum(took[each] for each in _PREPARED[: _PREPARED.index(phase)])
                    self._tracer.start_span(phase, start_time=since).end(since + took[phase])
                self._link(span, frame)
            with self._span("handler", SpanKind.INTERNAL):
                call(self._handler, frame, batch_id)

    def prepare(self, spark: SparkSession, loop: LoopThread) -> None:
        """Prepare the handler where it asks for that."""
        if isinstance(self._handler, RecoveringHandler):
            self._handler.prepare(spark, loop)

    def recover(self, context: BatchContext) -> None:
        """Let the handler recover where it can."""
        if isinstance(self._handler, RecoveringHandler):
            self._handler.recover(context)

    @contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        since: int | None = None,
        attributes: dict[str, AttributeValue] | None = None,
    ) -> Iterator[Span]:
        # What OpenTelemetry records of an exception has its text, which may have data in it.
        with self._tracer.start_as_current_span(
            name,
            kind=kind,
            attributes=attributes,
            start_time=since,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                span.set_status(Status(StatusCode.ERROR))
                span.set_attribute("error.type", type(error).__name__)
                raise

    def _link(self, span: Span, frame: DataFrame) -> None:
        if not self._max_links or "headers" not in frame.columns:
            return
        if frame.schema["headers"].dataType.simpleString() != _HEADERS:
            return
        parents = (
            frame.select("headers")
            .limit(_LOOK_AT)
            .selectExpr("explode(filter(headers, one -> one.key = 'traceparent')) AS header")
            .selectExpr("substring(header.value, 1, 55) AS parent")
            .where("parent IS NOT NULL")
            .distinct()
            .limit(self._max_links)
        )
        for row in parents.collect():
            carrier = {"traceparent": bytes(row.parent).decode("ascii", "replace")}
            found = get_current_span(_W3C.extract(carrier, Context())).get_span_context()
            if found.is_valid:
                span.add_link(found)


def _attributes(context: BatchContext) -> dict[str, AttributeValue]:
    attributes: dict[str, Any] = {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "fanout.query.id": context.query_id,
        "fanout.batch.id": context.batch_id,
    }
    if context.describe is not None:
        origin, batch = context.describe()
        named = {
            "messaging.system": origin.system,
            "messaging.destination.name": origin.destination,
            "messaging.consumer.group.name": origin.group,
        }
        attributes |= {key: value for key, value in named.items() if value}
        if batch is not None:
            ranges = batch.ranges or {}
            attributes |= {
                "messaging.batch.message_count": batch.rows,
                "fanout.batch.bytes": batch.bytes,
                "fanout.batch.splits": len(ranges),
                "fanout.batch.ranges": batch.places(_SPLITS),
            }
    return attributes
