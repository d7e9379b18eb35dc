"""The pictures of docs/benchmarks.md are drawn by the harness, from figures that the page has."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

import pytest

from benchmarks import __main__ as cli
from benchmarks import pictures
from benchmarks.harness import Report, Row
from tests.support.pages import page

if TYPE_CHECKING:
    from pathlib import Path

PAGE: Final = page("benchmarks.md")
STORED: Final = json.loads(pictures.FIGURES.read_text())
RATES: Final = {
    rate for groups in STORED.values() for bars in groups.values() for rate in bars.values()
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", STORED)
def test_a_picture_is_drawn_from_its_figures_and_is_on_the_page(name: str, scheme: str) -> None:
    stored = (pictures.DIRECTORY / f"{name}-{scheme}.svg").read_text()
    assert stored == pictures.draw(STORED[name], scheme), "run python -m benchmarks pictures"
    assert PAGE.count(f"](images/benchmarks/{name}-{scheme}.svg#only-{scheme})") == 1


def test_there_is_no_other_picture() -> None:
    named = {f"{name}-{scheme}.svg" for name in STORED for scheme in ("light", "dark")}
    assert {path.name for path in pictures.DIRECTORY.iterdir()} == named
    assert set(re.findall(r"images/benchmarks/([\w.-]+)#", PAGE)) == named


def test_each_rate_of_the_table_has_a_bar() -> None:
    rates = [float(rate.replace(",", "")) for rate in re.findall(r"([\d,]+) /s \|", PAGE)]
    assert len(rates) > 40
    assert [rate for rate in rates if rate not in RATES] == []


def test_a_bar_is_as_long_as_its_figure() -> None:
    drawn = ET.fromstring(pictures.draw({"1 KB": {"fanout": 200.0, "<peer>": 50.0}}, "dark"))  # noqa: S314 - ours
    fast, slow = (float(each.attrib["width"]) for each in drawn.findall("{*}rect"))
    assert fast == pytest.approx(4 * slow)
    texts = [each.text for each in drawn.findall("{*}text")]
    assert texts == ["1 KB", "fanout", "200", "<peer>", "50"]


def test_new_reports_replace_their_figures_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "DIRECTORY", tmp_path / "benchmarks")
    monkeypatch.setattr(pictures, "FIGURES", tmp_path / "benchmarks.json")
    pictures.FIGURES.write_text('{"decode": {"a": {"b": 1.0}}, "consume-kafka": {"a": {"b": 1.0}}}')
    row = Row(
        name="fanout",
        record_bytes=1024,
        records_per_second=381_234.0,
        bytes_per_second=1.0,
        peak_rss_bytes=1,
        shards=1,
    )
    ratios = {"consume/kafka/1024/vs_aiokafka": 2.0}
    report = Report(scenario="consume", rows=[row], ratios=ratios)
    (tmp_path / "run.txt").write_text(f"a table\n{json.dumps(report.as_json())}\n")
    with pytest.raises(SystemExit) as ended:
        cli.main(["pictures", str(tmp_path / "run.txt")])
    assert ended.value.code == 0
    assert json.loads(pictures.FIGURES.read_text()) == {
        "decode": {"a": {"b": 1.0}},
        "consume-kafka": {"Records of 1 KB, 1 partition": {"fanout": 381_000.0}},
    }
    assert "381,000" in (tmp_path / "benchmarks" / "consume-kafka-light.svg").read_text()


def test_ratios_are_shown_beside_those_of_the_page() -> None:
    rates = {"fanout": 336_000.0, "botocore": 21_000.0}
    rows = [
        Row(
            name=name,
            record_bytes=1024,
            records_per_second=rate,
            bytes_per_second=rate * 1024,
            peak_rss_bytes=1,
        )
        for name, rate in rates.items()
    ]
    shown = pictures.changes([Report(scenario="decode", rows=rows, ratios={}, machine={})])
    cells = [[*column.cells] for column in shown.columns]
    assert cells == [["decode"], ["1 KB"], ["fanout by botocore"], ["12.00"], ["16.00"], ["1.33"]]


def test_each_row_of_the_table_has_the_command_that_measures_it() -> None:
    table = PAGE[PAGE.index("| what | record") : PAGE.index("## Plots")]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:] if line
    ]
    assert {len(row) for row in rows} == {6}
    commands = {row[5].strip("`") for row in rows if row[0]}
    for command in commands:
        scenario, *source = command.split(" --source ")
        assert (
            set(source or ["kinesis"]) <= {*cli.SCENARIOS[scenario]}
            or len(cli.SCENARIOS[scenario]) == 1
        )
    assert all(row[5] for row in rows if row[0])
