"""The page of some reports, as a browser reads it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import TYPE_CHECKING, final

import pytest

from benchmarks import __main__ as cli
from benchmarks.harness import Report, Row
from benchmarks.report import page, read_reports

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = {"platform": "Linux", "cpus": 2, "libraries": {"pyarrow": "26.0.1"}}


def row(
    name: str,
    rate: float,
    latency: tuple[float, float, float] | None = None,
    put: int | None = None,
) -> Row:
    return Row(
        name=name,
        record_bytes=1024,
        records_per_second=rate,
        bytes_per_second=rate * 1024,
        peak_rss_bytes=1 << 20,
        shards=4,
        cpu_seconds_per_million=3.5,
        latency=latency,
        rate=put,
    )


REPORTS = [
    Report(
        scenario="consume",
        rows=[row("fanout", 300_000.0), row("<b>peer</b>", 100_000.0)],
        ratios={"consume/kinesis/1024/vs_aioboto3": 3.0},
        machine=MACHINE,
    ),
    Report(
        scenario="latency",
        rows=[
            row("fanout", 10.0, (0.003, 0.005, 0.007), 10),
            row("fanout", 1000.0, (0.013, 0.015, 0.017), 1000),
        ],
        ratios={},
        seconds={"scale/death/median": 4.25},
        machine=MACHINE,
    ),
]


@final
class Page(HTMLParser):
    """Collect the texts and the bars of a page, and see that each element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.bars: list[tuple[bool, float]] = []
        self.lines: list[list[str]] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "polyline":
            self.lines.append((given["points"] or "").split())
            return
        assert tag == "rect"
        self.bars.append((given.get("class") == "fanout", float(given["width"] or "")))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_page_has_a_plot_of_each_figure_and_the_ratios() -> None:
    shown = Page(page(REPORTS))
    assert [ours for ours, _ in shown.bars] == [True, False] * 2 + [True] * 5 * 2
    (_, fast), (_, slow), *_ = shown.bars
    assert slow == pytest.approx(fast / 3, abs=0.1)
    for text in (
        "consume",
        "1024 B, 4 shards or partitions: records per second (longer is better)",
        "<b>peer</b>",
        "300,000",
        "consume/kinesis/1024/vs_aioboto3",
        "3.00",
        "4.25",
        (
            "1024 B, 4 shards or partitions, 10 records a second: milliseconds until 50, 95 and "
            "99 % of the records arrived (shorter is better)"
        ),
        "fanout, p95",
        "15.00",
        "platform Linux, cpus 2, pyarrow 26.0.1",
    ):
        assert text in shown.texts


def test_reports_are_found_among_other_lines() -> None:
    lines = ["a table", "{not json", '{"scenario": "soak"}']
    lines += [json.dumps(report.as_json()) for report in REPORTS]
    assert read_reports(lines) == REPORTS


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    figures, output = tmp_path / "figures.txt", tmp_path / "page.html"
    figures.write_text("\n".join(json.dumps(report.as_json()) for report in REPORTS))
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", str(figures), "--output", str(output)])
    assert ended.value.code == 0
    assert output.read_text() == page(REPORTS)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a table", "there is no report in these files: run python -m benchmarks with --json"),
        (None, "figures.txt cannot be read"),
    ],
)
def test_a_file_without_a_report_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, sentence: str
) -> None:
    if text is not None:
        (tmp_path / "figures.txt").write_text(text)
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", str(tmp_path / "figures.txt")])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


SOAK = {
    "scenario": "soak",
    "minutes": 30.0,
    "records": 7,
    "samples": [{"seconds": 10.0 * n, "JVM heap": 100.0 * n, "kafka": n} for n in range(60)],
    "growth": {"JVM heap": {"per_hour": 36_000.0, "flat": False}},
}


def test_a_soak_is_drawn_over_time(tmp_path: Path) -> None:
    figures, output = tmp_path / "figures.txt", tmp_path / "page.html"
    figures.write_text("a table\n" + json.dumps(SOAK))
    with pytest.raises(SystemExit) as ended:
        cli.main(["report", str(figures), "--output", str(output)])
    assert ended.value.code == 0
    shown = Page(output.read_text())
    assert "JVM heap: +36,000 an hour, grows" in shown.texts
    assert {"5,900", "0", "0 min", "10 min"} <= set(shown.texts)
    (line,) = shown.lines
    assert len(line) == 60
    heights = [float(point.split(",")[1]) for point in line]
    assert heights == sorted(heights, reverse=True)
