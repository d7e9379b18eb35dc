from __future__ import annotations

import pytest

from benchmarks.consume_kafka import AT_ONCE
from benchmarks.consume_typed import run

pytestmark = pytest.mark.long


@pytest.mark.usefixtures("one_process")
def test_the_report_has_a_ratio_to_bytes_and_to_fastavro() -> None:
    report = run(1, {1000: 2 * AT_ONCE})
    assert report.ratios.keys() == {
        f"consume/typed/{shape} 1000/vs_{peer}"
        for shape in ("flat", "nested")
        for peer in ("bytes", "fastavro")
    }
    assert [row.name for row in report.rows] == [
        f"{shape} {name}"
        for shape in ("flat", "nested")
        for name in ("fanout", "fanout typed", "confluent and fastavro")
    ]
