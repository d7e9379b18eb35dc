"""A few kills of `fanout land` with tables on each storage, and a judge that sees what is wrong."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.provers.tables.campaign import PLACES, TablesReport, run_tables_campaign


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_a_few_kills_on_each_storage() -> None:
    lines: list[str] = []
    report = run_tables_campaign(2 * len(PLACES), 1, lines.append)
    assert report.holds, report.to_json()
    assert report.kills.total() == len(lines) == 2 * len(PLACES)
    assert {name.partition(":")[0] for name in report.lost} == {*PLACES}
    assert len(report.lost) == 4 * len(PLACES)
    assert report.records > 10 * len(lines)


def test_what_is_lost_or_repeated_is_counted() -> None:
    report = TablesReport()
    report.count("good", Counter(range(3)), 3)
    assert report.holds
    report.count("table", Counter([0, 0, 2]), 4)
    told = json.loads(report.to_json())
    assert (told["lost"], told["repeated"]) == ({"good": 0, "table": 2}, {"good": 0, "table": 1})
    assert not told["holds"]
