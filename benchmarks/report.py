"""Write reports of benchmarks as one HTML page with plots: `python -m benchmarks report`.

Its input is what `python -m benchmarks --json` prints: a line of JSON for each scenario, among
other lines. The page needs no network and no script, and has light and dark colours.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.harness import Report, Row
from benchmarks.time_plot import time_plot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = ("main", "page", "read_reports", "read_soaks")

_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: .2rem .8rem; border-bottom: 1px solid #8886; text-align: right; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1.5rem 0; } figcaption { font-weight: 600; }
svg { max-width: 100%; height: auto; }
svg text { fill: currentColor; font: 13px system-ui, sans-serif; }
rect { fill: #8a8f98; } rect.fanout { fill: #2f81f7; }
polyline { fill: none; stroke: #2f81f7; stroke-width: 2; }
"""
_INTRODUCTION: Final = (
    "Contenders took turns on one machine. A figure is the median of its rounds. A ratio compares "
    "fanout with a peer in the same run; 1 is as good as the peer."
)
_PERCENTILES: Final = (50, 95, 99)
_WIDTH, _NAMES, _FIGURES, _BAR, _STEP = 760, 230, 120, 18, 26
_WHOLE_FROM: Final = 100
# What a bar may show: the figure of a row, how it is written, and what is better.
_PLOTS: Final[Mapping[str, Callable[[Row], float | None]]] = {
    "records per second (longer is better)": lambda row: row.records_per_second,
    "CPU seconds for a million records (shorter is better)": (
        lambda row: row.cpu_seconds_per_million
    ),
}
# The contenders that are fanout's, by the beginning of their names.
_OURS: Final = (
    "fanout",
    "foreach_batch",
    "DataFrame",
    "exactly_once",
    "at_least_once",
    "shuffle",
    "in process",
)


def read_reports(lines: Iterable[str]) -> list[Report]:
    """Return the reports among some lines; other lines, such as tables, are left out.

    Args:
        lines: What `python -m benchmarks --json` has printed.
    """
    reports = []
    for line in lines:
        found = _object(line)
        if found is not None and "rows" in found:
            rows = [Row(**_row(row)) for row in found.pop("rows")]
            reports.append(Report(rows=rows, **found))
    return reports


def read_soaks(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Return what soaks have printed among some lines.

    Args:
        lines: What `python -m benchmarks soak --json` has printed.
    """
    found = (_object(line) for line in lines)
    return [each for each in found if each is not None and "samples" in each]


def page(reports: Sequence[Report], soaks: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the page of some reports.

    Args:
        reports: The reports, in their order on the page.
        soaks: What soaks have printed; they come after them.
    """
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Benchmarks of fanout</title>',
        '<meta name="viewport" content="width=device-width">',
        f"<style>{_STYLE}</style></head><body>",
        "<h1>Benchmarks of fanout</h1>",
        f"<p>{_INTRODUCTION}</p>",
    ]
    for report in reports:
        parts += _section(report)
    for soak in soaks:
        parts += _soak_section(soak)
    return "\n".join([*parts, "</body></html>", ""])


def main(arguments: Sequence[str]) -> int:
    """Write the page of the reports in some files.

    Returns:
        The exit code: 2 if there is no report in them.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks report", description=__doc__)
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="output of python -m benchmarks --json, or -"
    )
    parser.add_argument("--output", default="benchmarks.html", help="default benchmarks.html")
    options = parser.parse_args(arguments)
    reports, soaks = [], []
    for name in options.files:
        try:
            text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            parser.error(f"{name} cannot be read: {error}")
        reports += read_reports(text.splitlines())
        soaks += read_soaks(text.splitlines())
    if not (reports or soaks):
        parser.error("there is no report in these files: run python -m benchmarks with --json")
    Path(options.output).write_text(page(reports, soaks), encoding="utf-8")
    print(options.output)  # noqa: T201 - where the page is
    return 0


def _object(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        found: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        return None
    return found


def _row(row: dict[str, Any]) -> dict[str, Any]:
    latency = row.get("latency")
    return row | {"latency": None if latency is None else tuple(latency)}


def _section(report: Report) -> list[str]:
    groups: dict[tuple[int, int | None, int | None], list[Row]] = defaultdict(list)
    for row in report.rows:
        groups[row.record_bytes, row.shards, row.rate].append(row)
    parts = [f"<h2>{escape(report.scenario)}</h2>"]
    for (size, shards, rate), rows in groups.items():
        where = f"{size} B" if shards is None else f"{size} B, {shards} shards or partitions"
        where += "" if rate is None else f", {rate:,} records a second"
        for caption, figure in _PLOTS.items():
            bars = [(row.name, value) for row in rows if (value := figure(row)) is not None]
            if bars:
                parts.append(_plot(f"{where}: {caption}", bars))
        if latencies := list(_latencies(rows)):
            caption = "milliseconds until 50, 95 and 99 % of the records arrived"
            parts.append(_plot(f"{where}: {caption} (shorter is better)", latencies))
    if report.ratios:
        parts.append(_table(("ratio", ""), [(n, f"{v:.2f}") for n, v in report.ratios.items()]))
    if report.seconds:
        parts.append(_table(("seconds", ""), [(n, f"{v:.2f}") for n, v in report.seconds.items()]))
    machine = dict(report.machine)
    machine |= {f"{name} version": value for name, value in machine.pop("libraries", {}).items()}
    told = ", ".join(f"{name.removesuffix(' version')} {value}" for name, value in machine.items())
    return [*parts, f"<p><small>{escape(told)}</small></p>"]


def _latencies(rows: Iterable[Row]) -> Iterator[tuple[str, float]]:
    for row in rows:
        if row.latency is not None:
            for percentile, seconds in zip(_PERCENTILES, row.latency, strict=True):
                yield f"{row.name}, p{percentile}", seconds * 1000


def _soak_section(soak: Mapping[str, Any]) -> list[str]:
    parts = ["<h2>soak</h2>", f"<p>{soak['minutes']:g} minutes, {soak['records']:,} records</p>"]
    seconds = [sample["seconds"] for sample in soak["samples"]]
    for name, grown in soak["growth"].items():
        verdict = "flat" if grown["flat"] else "grows"
        caption = f"{name}: {grown['per_hour']:+,.0f} an hour, {verdict}"
        parts.append(time_plot(caption, seconds, [one[name] for one in soak["samples"]]))
    return parts


def _plot(caption: str, bars: Sequence[tuple[str, float]]) -> str:
    longest = max(value for _, value in bars) or 1.0
    room = _WIDTH - _NAMES - _FIGURES
    drawn = []
    for number, (name, value) in enumerate(bars):
        top, text = number * _STEP, number * _STEP + _BAR - 4
        ours = ' class="fanout"' if name.strip().startswith(_OURS) else ""
        width = value / longest * room
        drawn += [
            f'<text x="{_NAMES - 8}" y="{text}" text-anchor="end">{escape(name)}</text>',
            f'<rect{ours} x="{_NAMES}" y="{top}" width="{width:.1f}" height="{_BAR}" rx="2"/>',
            f'<text x="{_NAMES + width + 6:.1f}" y="{text}">{_short(value)}</text>',
        ]
    label = escape(caption, quote=True)
    size = f'width="{_WIDTH}" height="{len(bars) * _STEP}"'
    view = f'viewBox="0 0 {_WIDTH} {len(bars) * _STEP}"'
    return (
        f"<figure><figcaption>{label}</figcaption>"
        f'<svg {size} {view} role="img" aria-label="{label}">{"".join(drawn)}</svg></figure>'
    )


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(each)}</td>" for each in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= _WHOLE_FROM else f"{value:.2f}"
