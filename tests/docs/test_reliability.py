"""The commands of the page about reliability work, and the files of the architecture exist."""

from __future__ import annotations

import re
import shlex

import pytest
from typer.testing import CliRunner

from tests.docs.counts import COUNTS
from tests.docs.last_run import BEGIN, END, section
from tests.provers.__main__ import app
from tests.support.pages import ROOT, page

TEXT = page("reliability.md")
# The confidence of a bound.
STANDING = {"95"}


@pytest.mark.long
def test_the_commands_of_the_page_work() -> None:
    commands = re.findall(r"^\$ \.venv/bin/python -m tests\.provers (.*)$", TEXT, re.MULTILINE)

    assert commands
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command, comments=True))
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("name", "phrase"), [(name, phrase) for name, counts in COUNTS.items() for phrase in counts]
)
def test_a_count_of_a_page_is_what_there_is(name: str, phrase: str) -> None:
    text = " ".join(page(name).split())
    assert phrase.format(f"{COUNTS[name][phrase]:,}") in text


def test_each_count_of_the_page_is_checked() -> None:
    """Numbers of two digits and more; runs, measurements and blocks of code are left out."""
    measured = "<!-- measured by hand.*?<!-- end of what was measured -->"
    left_out = f"{measured}|{BEGIN}.*?{END}|```.*?```|\\]\\([^)]*\\)"
    text = re.sub(left_out, "", TEXT, flags=re.DOTALL)
    text = " ".join(text.split())
    for phrase, count in COUNTS["reliability.md"].items():
        text = text.replace(phrase.format(f"{count:,}"), "", 1)
    assert set(re.findall(r"\d[\d,]*\d", text)) == STANDING


def test_the_run_on_the_page_has_kept_every_promise() -> None:
    run = TEXT.split(BEGIN)[1].split(END)[0]
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", run, re.MULTILINE))
    assert re.fullmatch(r"[\d,]+, of (\d+) kinds", rows["faults that struck"])
    assert {rows[kind] for kind in ("lost", "duplicated", "out of order", "altered")} == {"0"}


def test_a_run_is_written_as_a_table() -> None:
    found = {
        "first": 1000,
        "seeds": 2000,
        "seconds": 90.0,
        "virtual_hours": 281.4,
        "records": 170_000,
        "replayed": 30_000,
        "faults": {"cut": 3000, "stall": 4, "never": 0},
        "restarts": 5000,
        "calls": {"SubscribeToShard": 1000, "ListShards": 1},
        "failures": {"lost": 0, "stuck": 1},
        "moments": {"A": 7, "B": 0},
        "recovery_seconds_p99": 368,
        "recovery_seconds_max": 1041,
        "slowest_close": 9.97,
    }
    lines = section(found, "2 cores").splitlines()
    assert lines[0] == "2 cores:"
    assert "| seeds | 2,000 (1,000 to 2,999), in 1.5 minutes |" in lines
    assert "| faults that struck | 3,004, of 2 kinds |" in lines
    assert "| stuck | 1 |" in lines
    assert "| coincidences met | 1 of 2, the rarest 0 times |" in lines


def test_every_file_that_the_architecture_names_exists() -> None:
    text = page("architecture.md")
    named = set(re.findall(r"`((?:fanout|tests)/[a-z_/.]+)`", text))

    assert len(named) > 30
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
