from __future__ import annotations

import pytest

from benchmarks import decode_records
from benchmarks.decode_records import SHAPES, contenders, run


@pytest.mark.parametrize("shape", SHAPES)
def test_all_contenders_read_the_same(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_records, "BATCH", 50)
    found = [contend().to_pylist() for contend in contenders(shape, 200).values()]
    assert all(each == found[0] for each in found)
    assert len(found[0]) == 50


@pytest.mark.long
def test_the_report_has_a_ratio_to_each_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_records, "BATCH", 50)
    report = run(1, (200,))
    assert report.ratios.keys() == {
        f"decode-records/{shape} 200/vs_{peer}"
        for shape in SHAPES
        for peer in ("msgspec", "fastavro", "google")
    }
    assert len(report.rows) == 12
