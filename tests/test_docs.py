"""The links and the commands of the page about reliability work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from tests.provers.__main__ import app

PAGE = Path(__file__).parent.parent / "docs" / "reliability.md"
TEXT = PAGE.read_text()


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\((\S+?)\)", TEXT)

    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []


def test_the_commands_of_the_page_work() -> None:
    commands = re.findall(r"^\$ \.venv/bin/python -m tests\.provers (.*)$", TEXT, re.MULTILINE)

    assert commands
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command, comments=True))
        assert result.exit_code == 0, result.output


def test_every_file_that_the_architecture_names_exists() -> None:
    text = (PAGE.parent / "architecture.md").read_text()
    named = set(re.findall(r"`((?:fanout|tests)/[a-z_/.]+)`", text))

    assert len(named) > 30
    assert [path for path in sorted(named) if not (PAGE.parents[1] / path).exists()] == []
