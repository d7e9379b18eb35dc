"""An error loses the remedies that a command does not have, and nothing else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import typer

from fanout.cli.command import OTHER_KEYWORDS, fanout_command
from fanout.errors import OptionError

PACKAGE = Path(__file__).parents[2] / "fanout"


def printed(message: str, capsys: pytest.CaptureFixture[str]) -> str:
    @fanout_command("name")
    def command() -> None:
        raise OptionError(message)

    with pytest.raises(typer.Exit):
        command()
    return capsys.readouterr().err.removeprefix("fanout name: ").removesuffix("\n")


@pytest.mark.parametrize(
    "message",
    ["cannot read /a/b; x=1/c: No such file", "is it that? x=1", "a; insecure_mode=1 is there"],
)
def test_text_that_is_no_remedy_stays(message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(message, capsys) == message


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("use SSL, or pass insecure=True if the network is trusted", "use SSL"),
        ("it is damaged: is it? on_bad_frame='gap' leaves it out", "it is damaged: is it?"),
        ("values come as bytes; decode= converts a batch", "values come as bytes"),
    ],
)
def test_a_remedy_that_the_command_does_not_have_is_left_out(
    message: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(message, capsys) == says


@pytest.mark.long
def test_the_remedies_of_all_messages_are_known() -> None:
    texts = [
        node.value
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    found = {name for text in texts for name in re.findall(r"(?:or pass|;|\?) (\w+)=", text)}
    assert found == OTHER_KEYWORDS
