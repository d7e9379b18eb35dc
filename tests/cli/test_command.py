"""An error is printed with the options of the command, and without remedies that it lacks."""

from __future__ import annotations

import pytest
import typer

from fanout.cli.command import fanout_command
from fanout.core.sentence import Option, Suggestion
from fanout.errors import OptionError


def printed(capsys: pytest.CaptureFixture[str], *parts: str) -> str:
    @fanout_command("name")
    def command(ca_file: str = "", *, insecure: bool = False) -> None:
        assert not (ca_file and insecure)
        raise OptionError(*parts)

    with pytest.raises(typer.Exit):
        command(ca_file="", insecure=False)
    return capsys.readouterr().err.removeprefix("fanout name: ").removesuffix("\n")


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (
            (Option("ca_file", "/etc/ca_file.pem"), " is odd"),
            "--ca-file /etc/ca_file.pem is odd",
        ),
        ((Option("ca_file", "a b"), " is odd"), "--ca-file 'a b' is odd"),
        ((Option("ca_file", 2.0), " is odd"), "--ca-file 2 is odd"),
        ((Option("insecure", value=True), " is odd"), "--insecure is odd"),
        ((Option("token", text="a token"), " is missing"), "KAFKA_TOKEN is missing"),
        ((Option("servers"), " must be strings"), "--bootstrap-servers must be strings"),
        ((Option("decode"), " must be a function"), "decode must be a function"),
        (("cannot read ca_file/a; insecure=1: No such file",),) * 2,
    ],
)
def test_options_are_those_of_the_command(
    parts: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(capsys, *parts) == "".join(says)


@pytest.mark.parametrize(
    ("name", "says"),
    [("insecure", "use SSL, or pass --insecure"), ("on_bad_frame", "use SSL")],
)
def test_a_remedy_that_the_command_does_not_have_is_left_out(
    name: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(capsys, "use SSL", Suggestion(", or pass ", Option(name))) == says
