"""The commands of the page about reliability work, and the files of the architecture exist."""

from __future__ import annotations

import re
import shlex

from typer.testing import CliRunner

from tests.pages import ROOT, page
from tests.provers.__main__ import app

TEXT = page("reliability.md")


def test_the_commands_of_the_page_work() -> None:
    commands = re.findall(r"^\$ \.venv/bin/python -m tests\.provers (.*)$", TEXT, re.MULTILINE)

    assert commands
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command, comments=True))
        assert result.exit_code == 0, result.output


def test_every_file_that_the_architecture_names_exists() -> None:
    text = page("architecture.md")
    named = set(re.findall(r"`((?:fanout|tests)/[a-z_/.]+)`", text))

    assert len(named) > 30
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
