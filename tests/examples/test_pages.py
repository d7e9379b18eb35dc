"""Each example of docs/examples is listed there, has tests, and is set up in ten lines."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.examples.harness import EXAMPLES

PAGE = (EXAMPLES / "README.md").read_text()
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


def test_the_list_names_every_example() -> None:
    assert sorted(re.findall(r"\]\((\w+)\.py\)", PAGE)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_example_has_tests(name: str) -> None:
    assert Path(__file__).with_name(f"test_{name}.py").exists()


@pytest.mark.parametrize("name", NAMES)
def test_the_setup_takes_at_most_ten_lines(name: str) -> None:
    text = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text()))
    assert text is not None
    commands = re.findall(r"^    \S.*", text.partition("\nSetup:\n")[2], re.MULTILINE)
    assert 2 < len(commands) <= 10
    assert any(command.split()[:2] == ["python", f"{name}.py"] for command in commands)
