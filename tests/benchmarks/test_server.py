from __future__ import annotations

import pytest

from benchmarks.server import run


def test_each_row_is_measured() -> None:
    report = run(1, puts=2, events=50, idle=8)
    assert [row.name for row in report.rows] == [
        "puts, HTTP/1.1 JSON",
        "puts, HTTP/2 CBOR",
        "puts, moto",
        "frames, HTTP/1.1",
        "frames, HTTP/2",
        "8 idle subscriptions",
    ]
    ours, _, moto, *_ = (row.records_per_second for row in report.rows)
    assert report.ratios == {"server/puts/vs_moto": pytest.approx(ours / moto)}
    assert min(row.records_per_second for row in report.rows) > 0
    assert report.seconds["server/start"] > 0
