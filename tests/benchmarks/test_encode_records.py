from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from benchmarks import decode_records
from benchmarks.decode_records import SHAPES
from benchmarks.encode_records import contenders, run


@pytest.mark.parametrize("shape", SHAPES)
def test_all_contenders_write_the_same(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_records, "BATCH", 50)
    found = {name: write() for name, write in contenders(shape, 200).items()}
    ours = {name: found[f"{name} fanout"]["value"].to_pylist() for name in ("json", "avro")}
    assert ours["avro"] == found["avro fastavro"]
    assert [json.loads(each) for each in ours["json"]] == list(
        map(json.loads, found["json msgspec"])
    )
    parsed: Any = fastavro.parse_schema(SHAPES[shape][1])
    assert [json.loads(each) for each in ours["json"]] == [
        fastavro.schemaless_reader(io.BytesIO(each), parsed, None) for each in ours["avro"]
    ]


@pytest.mark.long
def test_the_report_has_a_ratio_to_each_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_records, "BATCH", 50)
    report = run(1, (200,))
    assert report.ratios.keys() == {
        f"encode-records/{shape} 200/vs_{peer}"
        for shape in SHAPES
        for peer in ("msgspec", "fastavro", "google")
    }
    assert len(report.rows) == 12
