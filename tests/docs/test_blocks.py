"""Each block of code on a page is run by a test, or says why not; commands are ones that exist."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, Final

import pytest
import typer.main

from fanout.cli.app import app
from tests.docs.examples import RUN_BY
from tests.support.pages import DOCS, PAGES, ROOT

if TYPE_CHECKING:
    from pathlib import Path

RUN: Final = {"python", "pycon"}
# What a shell, a file or a program shows; tests of the single pages read most of it.
SHOWN: Final = {"console", "json", "mermaid", "sql", "text", "yaml"}
BLOCK: Final = re.compile(
    r"^(?:<!-- not run: (.+) -->\n)?```(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


def name_of(path: Path) -> str:
    return str(path.relative_to(DOCS)) if path.is_relative_to(DOCS) else path.name


def blocks() -> list[tuple[str, str, str, str]]:
    """Return page, reason, language and code of each block."""
    return [(name_of(path), *found) for path in PAGES for found in BLOCK.findall(path.read_text())]


def test_each_block_says_what_it_is() -> None:
    kinds = {(page, kind) for page, _, kind, _ in blocks()}
    assert len(kinds) > 50
    assert {(page, kind) for page, kind in kinds if kind not in RUN | SHOWN} == set()


def test_a_page_with_code_has_a_test_that_runs_it_and_no_other_page_is_listed() -> None:
    assert {page for page, reason, kind, _ in blocks() if kind in RUN and not reason} == set(RUN_BY)


@pytest.mark.parametrize("page", RUN_BY)
def test_the_test_reads_the_page(page: str) -> None:
    for module in RUN_BY[page]:
        assert f'"{page}"' in (ROOT / "tests" / module).read_text(), module


def _joined(page: Path) -> str:
    """Return a page with the lines of each command in one."""
    return page.read_text().replace("\\\n", " ")


COMMANDS: Final = sorted(
    {
        command
        for path in PAGES
        for command in re.findall(r"^\$ (fanout .*)$", _joined(path), re.MULTILINE)
    }
)


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_options_that_exist(command: str) -> None:
    words = shlex.split(command.partition(" | ")[0], comments=True)[1:]
    found: Any = typer.main.get_command(app)
    context = found.make_context("fanout", words, resilient_parsing=True)
    while hasattr(found, "resolve_command"):
        name, found, words = found.resolve_command(context, words)
        assert found is not None, command
        context = found.context_class(found, info_name=name, parent=context)
    found.make_context(found.name, words, parent=context.parent)
