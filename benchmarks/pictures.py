"""Draw the pictures of docs/benchmarks.md: `python -m benchmarks pictures`.

docs/images/benchmarks.json has their figures, in records per second: by picture, by what was read,
and by contender. Each picture is drawn twice, for pages with light and with dark colours.
"""

from __future__ import annotations

import argparse
import json
import re
from html import escape
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from rich.table import Table

from benchmarks.report import read_reports

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.harness import Report, Row

__all__ = ("DIRECTORY", "FIGURES", "changes", "draw", "figures_of", "main")

Figures: TypeAlias = dict[str, dict[str, dict[str, float]]]

DIRECTORY: Final = Path(__file__).parents[1] / "docs" / "images" / "benchmarks"
FIGURES: Final = DIRECTORY.with_suffix(".json")

# The colour of text, of fanout's bars and of the others.
_COLOURS: Final[Mapping[str, tuple[str, str, str]]] = {
    "light": ("#24292f", "#2f81f7", "#8a8f98"),
    "dark": ("#e6edf3", "#58a6ff", "#8a8f98"),
}
_WIDTH, _NAMES, _FIGURES, _BAR, _STEP, _TITLE = 760, 230, 90, 18, 26, 30
# The contenders that are fanout's, by the beginning of their names.
_WORDS: Final = ("what", "records", "ratio")
_OURS: Final = ("fanout", "exactly_once", "at_least_once", "land", "shuffle", "plain")


def figures_of(reports: Sequence[Report]) -> Figures:
    """Return the figures of reports, to three digits.

    Args:
        reports: What `python -m benchmarks --json` has measured.
    """
    found: Figures = {}
    for report in reports:
        groups = found.setdefault(name := _name(report), {})
        for row in report.rows:
            group = _group(row, "partition" if "kafka" in name else "shard")
            groups.setdefault(group, {})[row.name] = float(f"{row.records_per_second:.3g}")
    return found


def changes(reports: Sequence[Report]) -> Table:
    """Return a table of the ratios of reports, beside those of the run that the page has.

    A ratio is the rate of fanout by that of another contender. It has no stored one where the run
    of the page had no such pair, or another number of shards.

    Args:
        reports: What was measured.
    """
    stored: Figures = json.loads(FIGURES.read_text("utf-8"))
    laid_out = Table(title="Ratios, and those of the stored run (docs/images/benchmarks.json)")
    for heading in ("what", "records", "ratio", "stored", "now", "times"):
        laid_out.add_column(heading, justify="left" if heading in _WORDS else "right")
    for picture, groups in figures_of(reports).items():
        for group, rates in groups.items():
            before = _ratios(stored.get(picture, {}).get(group, {}))
            for peer, now in _ratios(rates).items():
                then = before.get(peer)
                told = ("", "") if then is None else (f"{then:.2f}", f"{now / then:.2f}")
                size = group.removeprefix("Records of ")
                laid_out.add_row(picture, size, peer, told[0], f"{now:.2f}", told[1])
    return laid_out


def _ratios(rates: Mapping[str, float]) -> dict[str, float]:
    """Return the rate of the first contender that is fanout's by each other one."""
    ours = next((name for name in rates if name.startswith(_OURS)), None)
    if ours is None:
        return {}
    return {f"{ours} by {name}": rates[ours] / rate for name, rate in rates.items() if name != ours}


def draw(groups: Mapping[str, Mapping[str, float]], scheme: str) -> str:
    """Return a picture as SVG: a bar for each contender, longest where it is the fastest.

    Args:
        groups: The records per second of each contender, by what was read.
        scheme: `"light"` or `"dark"`.
    """
    text, _, _ = _COLOURS[scheme]
    drawn, top = [], 0
    for title, bars in groups.items():
        drawn.append(f'<text x="0" y="{top + 16}" font-weight="600">{escape(title)}</text>')
        top += _TITLE
        drawn += _bars(bars, top, scheme)
        top += len(bars) * _STEP + _STEP // 2
    size = f'viewBox="0 0 {_WIDTH} {top}" width="{_WIDTH}" height="{top}"'
    font = f'fill="{text}" font-family="system-ui, sans-serif" font-size="13"'
    opened = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>'
    return "\n".join([opened, *drawn, "</svg>\n"])


def main(arguments: Sequence[str]) -> int:
    """Take the figures of new reports over, and draw all pictures.

    Returns:
        The exit code: 0.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks pictures", description=__doc__)
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        type=Path,
        help="output of python -m benchmarks --json, whose figures replace those of the same name",
    )
    options = parser.parse_args(arguments)
    texts = chain.from_iterable(each.read_text("utf-8").splitlines() for each in options.files)
    figures: Figures = json.loads(FIGURES.read_text("utf-8")) | figures_of(read_reports(texts))
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    DIRECTORY.mkdir(exist_ok=True)
    for name, groups in figures.items():
        for scheme in _COLOURS:
            (DIRECTORY / f"{name}-{scheme}.svg").write_text(draw(groups, scheme), encoding="utf-8")
    return 0


def _name(report: Report) -> str:
    """Return the scenario and, where its ratios name one, its source."""
    for ratio in report.ratios:
        if source := re.match(rf"{report.scenario}/([a-z][a-z-]*)/", ratio):
            return f"{report.scenario}-{source[1]}"
    return report.scenario


def _group(row: Row, split: str) -> str:
    size = "1 KB" if row.record_bytes == 1 << 10 else f"{row.record_bytes} B"
    if row.shards is None:
        return f"Records of {size}"
    return f"Records of {size}, {row.shards} {split}{'s' if row.shards > 1 else ''}"


def _bars(bars: Mapping[str, float], top: int, scheme: str) -> list[str]:
    _, ours, others = _COLOURS[scheme]
    room = (_WIDTH - _NAMES - _FIGURES) / max(bars.values())
    drawn = []
    for number, (name, value) in enumerate(bars.items()):
        above, line = top + number * _STEP, top + number * _STEP + _BAR - 4
        colour, width = ours if name.startswith(_OURS) else others, value * room
        size = f'width="{width:.1f}" height="{_BAR}"'
        drawn += [
            f'<text x="{_NAMES - 8}" y="{line}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{_NAMES}" y="{above}" {size} rx="2" fill="{colour}"/>',
            f'<text x="{_NAMES + width + 6:.1f}" y="{line}">{value:,.0f}</text>',
        ]
    return drawn
