"""The queries of docs/grafana.json, and of the alerts, against what an exporter serves."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promql_parser
import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fanout.core.statistics import (
    BatchStatistics,
    LanderStatistics,
    LendingStatistics,
    SplitState,
    StreamTotals,
)
from fanout.metrics import Metrics
from tests.metrics.given import Given, GivenBatch, GivenQuery, split, statistics

if TYPE_CHECKING:
    from collections.abc import Mapping

DASHBOARD = json.loads((Path(__file__).parents[2] / "docs" / "grafana.json").read_text())
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"]}
QUERIES = [target["expr"] for panel in PANELS.values() for target in panel["targets"]]
# Grafana writes these in.
VARIABLES = {"$stream": "orders|clicks", "$__rate_interval": "2m"}


@pytest.fixture(scope="module")
def served() -> Mapping[str, set[str]]:
    """The labels of each metric that an exporter serves of a query with everything, and of a group.

    A stream of a share group stores no offsets, so it is another one.
    """
    provider = MeterProvider([PrometheusMetricReader()], shutdown_on_exit=False)
    query = GivenQuery(
        replace(
            statistics(
                {
                    "orders-0": split(1.0, behind=5, newest=1),
                    "orders-1": split(None, state=SplitState.BACKING_OFF),
                }
            ),
            totals=StreamTotals(7, 70, {"TimeoutError": 1}, late_records=1),
            max_bytes_in_flight=100,
            watermark=1,
            batches=BatchStatistics(1, 7, 70, {"handler": 1.0}),
            lander_sessions=1,
            landers=(
                LanderStatistics(
                    lander=0,
                    host="a",
                    pid=1,
                    splits=1,
                    segments=1,
                    bytes_per_second=0.0,
                    connected=1.0,
                ),
            ),
        )
    )
    metrics = Metrics(provider)
    lent = Given(statistics({}, lending=LendingStatistics(accepted=1)))
    with metrics.watch(query), metrics.watch(lent, name="shared"):
        query.listeners[0](GivenBatch(1.0))
        text = generate_latest(REGISTRY).decode()
    provider.shutdown()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def selectors(expression: Any) -> list[tuple[str, set[str]]]:
    """Return the metrics that a query reads, with the labels by which it chooses."""
    found: list[tuple[str, set[str]]] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector) and node.name is not None:
            found.append((node.name, {each.name for each in node.matchers.matchers}))

    promql_parser.walk(expression, visit)
    return found


def grouped(expression: Any) -> set[str]:
    """Return the labels by which a query adds up."""
    found: set[str] = set()

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            found.update(node.modifier.labels)

    promql_parser.walk(expression, visit)
    return found


def written_in(query: str) -> str:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_reads_metrics_and_labels_that_are_served(
    query: str, served: Mapping[str, set[str]]
) -> None:
    parsed = promql_parser.parse(written_in(query))
    read = selectors(parsed)
    assert read
    for name, labels in read:
        assert name in served
        assert labels == {"messaging_destination_name"}
        assert labels <= served[name]
    assert grouped(parsed) <= set().union(*(served[name] for name, _ in read))


def test_the_dashboard_shows_each_counter_of_what_goes_wrong() -> None:
    shown = {
        name for query in QUERIES for name, _ in selectors(promql_parser.parse(written_in(query)))
    }
    assert {
        "fanout_resubscriptions_total",
        "fanout_gaps_total",
        "fanout_late_records_total",
        "fanout_bad_records_total",
        "fanout_commits_total",
        "fanout_share_settled_total",
    } <= shown


def test_the_labels_of_legends_are_left_by_their_queries() -> None:
    for panel in PANELS.values():
        for target in panel["targets"]:
            labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            parsed = promql_parser.parse(written_in(target["expr"]))
            assert labels <= grouped(parsed) | {"messaging_destination_partition_id"}


def test_each_panel_has_a_place_of_its_own_and_queries_with_names() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in PANELS.values()]
    assert len(set(places)) == len(places) == len(DASHBOARD["panels"])
    for panel in PANELS.values():
        names = [target["refId"] for target in panel["targets"]]
        assert len(set(names)) == len(names)


def test_the_choice_of_streams_reads_a_label_that_is_served(
    served: Mapping[str, set[str]],
) -> None:
    _, choice = DASHBOARD["templating"]["list"]
    found = re.fullmatch(r"label_values\((\w+), (\w+)\)", choice["query"])
    assert found is not None
    assert found[2] in served[found[1]]
