"""The metrics of a query, read through a real SDK, and its listeners."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import prometheus_client
import pytest
from opentelemetry.sdk.metrics import MeterProvider

from fanout.errors import BatchFailedError
from tests.support.collected_metrics import Collected, attributes
from tests.support.manual_source import ManualSource
from tests.support.spark.harness import Recorder, eventually, fail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from fanout.spark import BatchReport, FanOutQuery
    from fanout.testing.kinesis.server import KinesisServer

    Start = Callable[..., FanOutQuery]

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).parents[2] / "docs" / "observability.md").read_text()
PHASES = {"drain", "seal", "publish", "ledger", "handler", "commit"}


@pytest.fixture
def collected() -> Iterator[Collected]:
    opened = Collected()
    yield opened
    opened.provider.shutdown()


def test_batches_are_counted_and_told_by_phase(start: Start, collected: Collected) -> None:
    source, recorder, told = ManualSource(), Recorder(), list[Any]()
    query = start(source, recorder, max_records=10, query_name="orders-etl")
    collected.metrics.watch(query)
    query.on_batch(told.append)
    source.put(*(str(n).encode() for n in range(25)))
    recorder.wait_for_rows(25)
    eventually(lambda: sum(report.rows for report in told) == 25)
    now = collected.now()
    assert [report.batch_id for report in told] == recorder.batch_ids
    assert [report.rows for report in told] == [len(call.rows) for call in recorder.calls]
    assert {phase for report in told for phase in report.seconds} == PHASES
    assert all(report.error is None for report in told)
    assert now["fanout.batches"] == {"": len(recorder.calls)}
    assert now["fanout.batch.records"] == {"": 25}
    assert now["fanout.batch.bytes"] == {"": sum(report.bytes for report in told)}
    assert now["fanout.batch.duration"] == {
        phase: pytest.approx(sum(report.seconds[phase] for report in told)) for phase in PHASES
    }
    assert now["messaging.process.duration"] == {"": len(recorder.calls)}
    assert now["messaging.client.consumed.messages"] == {"": 25}
    (series,) = attributes(collected.all()["fanout.batches"])
    assert series["fanout.stream.name"] == "orders-etl"
    query.stop()
    after = collected.now()
    assert after["fanout.batch.records"] == {"": 25}
    assert "fanout.splits" not in after


def test_a_handler_that_fails_is_told_by_the_type_of_its_error(
    start: Start, collected: Collected
) -> None:
    source, told = ManualSource(), list[Any]()
    query = start(source, fail)
    collected.metrics.watch(query)
    query.on_batch(told.append)
    source.put(b"canary")
    with pytest.raises(BatchFailedError):
        query.await_termination()
    (report,) = told
    assert isinstance(report.error, ValueError)
    assert (report.batch_id, report.rows) == (0, 0)
    assert report.seconds.keys() == PHASES - {"commit"}
    now = collected.now()
    assert now["messaging.process.duration"] == {"ValueError": 1}
    assert now["fanout.batches"] == {"": 0}
    assert "fanout.batch.duration" not in now


@pytest.mark.long
def test_a_listener_that_fails_is_logged_and_the_query_goes_on(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    def listener(_: BatchReport) -> None:
        raise KeyError("mine")

    source, recorder = ManualSource(), Recorder()
    query = start(source, recorder)
    query.on_batch(listener)
    with caplog.at_level(logging.WARNING, "fanout.spark.query.query"):
        source.put(b"one")
        recorder.wait_for_rows(1)
        eventually(lambda: "a listener of batch 0 failed: 'mine'" in caplog.messages)
        source.put(b"two")
        recorder.wait_for_rows(2)
    query.stop()


def test_the_example_of_a_driver_is_scraped(
    kinesis_server: KinesisServer,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del spark  # the example gets the session that runs
    for name, value in kinesis_server.environment.items():
        monkeypatch.setenv(name, value)
    kinesis_server.create_stream("orders")
    kinesis_server.put_records("orders", [("customer", b"1"), ("customer", b"2")])
    providers: list[Any] = []
    init = MeterProvider.__init__

    def keep(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        providers.append(self)

    monkeypatch.setattr(MeterProvider, "__init__", keep)
    monkeypatch.setattr(prometheus_client, "start_http_server", lambda _: None)
    _, code, listening = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    *lines, last = code.replace("s3a://lake", f"file://{tmp_path}").rstrip().splitlines()
    assert last == "query.await_termination()"
    names: dict[str, Any] = {}
    exec("\n".join([*lines, listening]), names)  # noqa: S102 - the page is ours
    handled = 'fanout_batch_records_total{fanout_stream_name="orders-etl"'
    try:
        eventually(
            lambda: re.search(
                rf"^{re.escape(handled)}.* 2\.0$",
                prometheus_client.generate_latest().decode(),
                re.MULTILINE,
            )
        )
        kinesis_server.put_records("orders", [("customer", b"3")])
        eventually(lambda: re.search(r"^[1-9]\d* 1 \{", capsys.readouterr().out, re.MULTILINE))
    finally:
        names["query"].stop()
        for provider in providers:
            provider.shutdown()
