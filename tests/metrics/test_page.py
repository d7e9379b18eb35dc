"""The table and the code of docs/observability.md."""

from __future__ import annotations

import asyncio
import logging
import re
import urllib.request
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import prometheus_client
import pyarrow as pa
import pytest
import yaml
from opentelemetry.sdk.metrics import MeterProvider

from fanout.core.lifecycle_log import LogEvent
from fanout.core.statistics import SplitState
from fanout.kinesis import KinesisSource
from fanout.metrics import Metrics, instruments
from fanout.metrics.instruments import GAUGES, WRITE_LEVELS
from fanout.metrics.metrics import SUMS
from tests.support.pages import defined_by

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from fanout.testing.kinesis.server import KinesisServer

COUNTERS, LEVELS = SUMS, instruments.LEVELS + WRITE_LEVELS

__all__ = (
    "KinesisSource",
    "Metrics",
)  # the page's code imports it, in a loop that refuses to read files
pa.array([0])  # imports pandas, which reads files, too

PAGE = (Path(__file__).parents[2] / "docs" / "observability.md").read_text(encoding="utf-8")
ASYNCIO, SPARK, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SCRAPE, ALERTS = (
    yaml.safe_load(each) for each in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
)


def rows(header: str) -> list[list[str]]:
    table = PAGE.split(header)[1].splitlines()[2:]
    lines = takewhile(lambda line: line.startswith("|"), table)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The ports on which the page's code serves; its metrics are closed after the test."""
    found: list[int] = []
    servers: list[Any] = []
    providers: list[Any] = []
    start, init = prometheus_client.start_http_server, MeterProvider.__init__

    def start_here(port: int) -> None:
        assert port == 9464
        server, thread = start(0, "127.0.0.1")
        found.append(server.server_port)
        servers.append((server, thread))

    def keep(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        providers.append(self)

    monkeypatch.setattr(prometheus_client, "start_http_server", start_here)
    monkeypatch.setattr(MeterProvider, "__init__", keep)
    yield found
    for provider in providers:
        provider.shutdown()
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text: str = answer.read().decode()
    return text


def test_the_table_has_every_instrument() -> None:
    made = [
        (each.name, each.unit, kind)
        for kind, instruments in (("counter", COUNTERS), ("updown", LEVELS), ("gauge", GAUGES))
        for each in instruments
    ]
    made.append(("messaging.process.duration", "s", "histogram"))
    listed = [
        (name.strip("`"), unit.strip("`"), kind)
        for name, unit, kind, *_ in rows("| metric | unit |")
    ]
    assert sorted(listed) == sorted(made)


def test_the_table_has_every_state() -> None:
    (states,) = (row[4] for row in rows("| metric | unit |") if row[0] == "`fanout.splits`")
    assert re.findall(r"`(\w+)`", states) == [state.name.lower() for state in SplitState]


def test_prometheus_has_the_names_that_the_page_says() -> None:
    kinds = {"counter": COUNTERS, "updown": LEVELS, "gauge": GAUGES}
    assert {each.unit for some in kinds.values() for each in some if each.unit[0] != "{"} == {
        "s",
        "By",
    }
    exported = {
        "_".join(
            filter(
                None,
                (
                    each.name.replace(".", "_"),
                    {"s": "seconds", "By": "bytes"}.get(each.unit),
                    "total" if kind == "counter" else None,
                ),
            )
        ).replace("bytes_bytes", "bytes")
        for kind, some in kinds.items()
        for each in some
    }
    named = set(re.findall(r"`((?:fanout|messaging)_\w+)`", PAGE))
    named |= {
        name
        for rule in ALERTS["groups"][0]["rules"]
        for name in re.findall(r"\bfanout_\w+(?=[\[){])", rule["expr"])
    }
    assert len(named) == 5
    assert named <= exported


def test_there_are_five_alerts_and_a_target() -> None:
    assert len(ALERTS["groups"][0]["rules"]) == 5
    (job,) = SCRAPE["scrape_configs"]
    assert job["static_configs"][0]["targets"][0].endswith(":9464")


async def test_the_asyncio_example_is_scraped(
    kinesis_server: KinesisServer,
    monkeypatch: pytest.MonkeyPatch,
    aws: None,  # noqa: ARG001 - used for what it does
    ports: list[int],
) -> None:
    for name, value in kinesis_server.environment.items():
        monkeypatch.setenv(name, value)
    kinesis_server.create_stream("orders")
    text = ""
    consumed = re.compile(r"^messaging_client_consumed_messages_total{.*} [1-9]", re.MULTILINE)
    async with asyncio.TaskGroup() as tasks:
        example = tasks.create_task(defined_by(ASYNCIO)["main"]())
        while not consumed.search(text):
            kinesis_server.put_records("orders", [("customer", b"1")])
            await asyncio.sleep(0.05)
            text = await asyncio.to_thread(scraped, ports[0]) if ports else ""
        example.cancel()
    assert re.search(
        r'^fanout_lag_time_seconds{messaging_consumer_group_name="orders-observed",'
        r'messaging_destination_name="orders",messaging_system="aws_kinesis"',
        text,
        re.MULTILINE,
    )
    for rule in ALERTS["groups"][0]["rules"]:
        for name in re.findall(r"\bfanout_\w+(?=[\[){])", rule["expr"]):
            assert re.search(rf"^{name}{{", text, re.MULTILINE), name
        for label in re.findall(r"\bby \((\w+)\)|{(\w+)=~", rule["expr"]):
            assert f"{''.join(label)}=" in text


def test_the_table_of_events_has_each_one() -> None:
    table = rows("| event | level |")
    assert {name.strip("`") for name, *_ in table} == {event.value for event in LogEvent}
    assert all(hasattr(logging, level) for _, level, *_ in table)
