"""The spans of micro-batches, in a real SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from fanout.core.statistics import Origin
from fanout.errors import BatchFailedError, OptionError
from fanout.landing.log.ledger import LedgerBatch
from fanout.spark import traced
from fanout.spark.query.batch_context import BatchContext, RecoveringHandler, handling
from tests.support.manual_source import ManualSource
from tests.support.spark.harness import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.trace import ReadableSpan
    from pyspark.sql import DataFrame, SparkSession

    from fanout.spark import FanOutQuery

CANARY = "canary-7f3a"
TRACES = ["0af7651916cd43dd8448eb211c80319c", "1af7651916cd43dd8448eb211c80319c"]


class Exported:
    """Spans that have ended, by name."""

    def __init__(self) -> None:
        self.memory = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.memory))

    def named(self, name: str) -> ReadableSpan:
        (span,) = [each for each in self.memory.get_finished_spans() if each.name == name]
        return span

    def text(self) -> str:
        return "".join(span.to_json() for span in self.memory.get_finished_spans())


@pytest.fixture
def exported() -> Iterator[Exported]:
    made = Exported()
    yield made
    made.provider.shutdown()


def context() -> BatchContext:
    unused: Any = None
    return BatchContext(
        7,
        "query",
        unused,
        unused,
        unused,
        describe=lambda: (
            Origin("kafka", "orders", "etl"),
            LedgerBatch(7, rows=3, bytes=99, ranges={}, watermark=None),
        ),
        seconds={"drain": 2.0, "seal": 0.5, "ledger": 0.25},
    )


def nothing(_frame: DataFrame, _batch_id: int) -> None:
    pass


def handle(handler: Callable[[Any, int], None]) -> None:
    with handling(context()):
        handler(None, 7)


def test_a_batch_is_a_span_with_its_phases_one_after_the_other(exported: Exported) -> None:
    def write(_frame: DataFrame, _batch_id: int) -> None:
        trace.get_tracer("mine", tracer_provider=exported.provider).start_span("write").end()

    handle(traced(write, tracer_provider=exported.provider, max_links=0))
    batch, mine, handler = map(exported.named, ("process orders", "write", "handler"))
    assert batch.kind is SpanKind.CONSUMER
    assert batch.status.status_code is StatusCode.UNSET
    assert batch.attributes == {
        "messaging.system": "kafka",
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "etl",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.batch.message_count": 3,
        "fanout.query.id": "query",
        "fanout.batch.id": 7,
        "fanout.batch.bytes": 99,
        "fanout.batch.splits": 0,
        "fanout.batch.ranges": (),
    }
    phases = [exported.named(name) for name in ("drain", "seal", "ledger")]
    assert all(each.parent == batch.context for each in (*phases, handler))
    assert mine.parent == handler.context
    assert phases[0].start_time == batch.start_time
    assert [round((each.end_time or 0) - (each.start_time or 0)) for each in phases] == [
        2_000_000_000,
        500_000_000,
        250_000_000,
    ]
    assert [each.start_time for each in phases[1:]] == [each.end_time for each in phases[:-1]]
    assert (phases[-1].end_time or 0) <= (handler.start_time or 0)


def test_a_failed_batch_is_an_error_without_its_text(exported: Exported) -> None:
    def failing(_frame: DataFrame, _batch_id: int) -> None:
        raise ValueError(CANARY)

    with pytest.raises(ValueError, match=CANARY):
        handle(traced(failing, tracer_provider=exported.provider, max_links=0))
    for name in ("process orders", "handler"):
        span = exported.named(name)
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes is not None
        assert span.attributes["error.type"] == "ValueError"
    assert CANARY not in exported.text()


def test_without_an_sdk_the_handler_is_called_and_the_frame_is_left_alone() -> None:
    called: list[int] = []
    handle(traced(lambda _, batch_id: called.append(batch_id)))  # a frame of None has no headers
    assert called == [7]


def test_a_handler_that_recovers_still_does() -> None:
    class Sink:
        asked: list[Any]

        def __call__(self, frame: Any, batch_id: int) -> None: ...
        def prepare(self, spark: Any, _loop: Any) -> None:
            self.asked = [spark]

        def recover(self, batch: Any) -> None:
            self.asked.append(batch)

    sink = Sink()
    wrapped = traced(sink)
    assert isinstance(wrapped, RecoveringHandler)
    unused: Any = "spark"
    wrapped.prepare(unused, unused)
    given = context()
    wrapped.recover(given)
    assert sink.asked == ["spark", given]


def test_a_negative_number_of_links_is_refused() -> None:
    with pytest.raises(OptionError, match="max_links=-1 must not be negative; 0 is for none"):
        traced(nothing, max_links=-1)


@pytest.mark.long
@pytest.mark.spark
def test_links_are_bounded_and_lead_to_the_traces_of_records(
    spark: SparkSession, exported: Exported
) -> None:
    def parent(trace_id: str) -> tuple[str, bytearray]:
        return ("traceparent", bytearray(f"00-{trace_id}-b7ad6b7169203331-01".encode()))

    secret = ("password", bytearray(CANARY.encode()))
    rows = [
        ([parent(TRACES[0]), secret],),
        ([parent(TRACES[0])],),
        ([parent(TRACES[1])],),
        ([("traceparent", bytearray(CANARY.encode() + b"\xff"))],),
        ([("traceparent", None)],),
        ([],),
        (None,),
    ]
    frame = spark.createDataFrame(rows, "headers array<struct<key: string, value: binary>>")
    for most, found in ((32, set(TRACES)), (0, set())):
        exported.memory.clear()
        with handling(context()):
            traced(nothing, tracer_provider=exported.provider, max_links=most)(frame, 7)
        links = exported.named("process orders").links
        assert {f"{link.context.trace_id:032x}" for link in links} == found
        assert len(links) == len(found)
        assert CANARY not in exported.text()
    exported.memory.clear()
    with handling(context()):
        traced(nothing, tracer_provider=exported.provider, max_links=1)(frame, 7)
    assert len(exported.named("process orders").links) <= 1
    mine = spark.createDataFrame([("mine",)], "headers string")
    exported.memory.clear()
    with handling(context()):
        traced(nothing, tracer_provider=exported.provider)(mine, 7)
    assert not exported.named("process orders").links


@pytest.mark.spark
def test_a_query_whose_batch_fails_has_a_span_of_it(
    start: Callable[..., FanOutQuery], exported: Exported
) -> None:
    def failing(frame: DataFrame, _batch_id: int) -> None:
        raise ValueError(str(frame.collect()))

    source = ManualSource()
    query = start(source, traced(failing, tracer_provider=exported.provider))
    source.put(CANARY.encode(), CANARY.encode())
    with pytest.raises(BatchFailedError):
        query.await_termination()
    span = exported.named("process")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    count = span.attributes["messaging.batch.message_count"]
    assert count in {1, 2}
    assert span.attributes["fanout.batch.ranges"] == (f"a: beginning to {count}",)
    assert span.attributes["fanout.query.id"] == query.id
    assert span.links == ()
    names = {each.name for each in exported.memory.get_finished_spans()}
    assert names == {"process", "drain", "seal", "publish", "ledger", "handler"}
    assert CANARY not in exported.text()


@pytest.mark.spark
def test_a_traced_query_delivers_what_it_would_untraced(
    start: Callable[..., FanOutQuery], exported: Exported
) -> None:
    source, recorder = ManualSource(), Recorder()
    query = start(source, traced(recorder, tracer_provider=exported.provider))
    source.put(b"one", b"two")
    recorder.wait_for_rows(2)
    query.stop()
    assert recorder.sequences == [1, 2]
