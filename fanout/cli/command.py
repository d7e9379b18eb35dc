"""What the commands share: exit codes, groups of options, and errors in words of the options."""

from __future__ import annotations

import inspect
import shlex
from contextvars import ContextVar
from dataclasses import is_dataclass
from enum import IntEnum
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_origin

import typer

from fanout._exports import naming_extras
from fanout._secret_variables import REGISTRY_SECRETS, SECRET_VARIABLES
from fanout.core.sentence import Option, Sentence
from fanout.errors import FanOutError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Secrets are no options, which would show in the list of processes.
_WORDS: Final = SECRET_VARIABLES | REGISTRY_SECRETS | {"servers": "--bootstrap-servers"}
_words_of_command: ContextVar[Mapping[str, str]] = ContextVar("words", default=_WORDS)


class ExitCode(IntEnum):
    """The exit codes of all commands; docs/commands.md says what each command means by them."""

    DONE = 0
    """The command did what it says, and found nothing wrong. A server was told to end."""
    FOUND = 1
    """The command was carried out, and found something wrong or could not do a part."""
    UNUSABLE = 2
    """Nothing was done: an option, a name, the environment or the service cannot be used."""
    INTERRUPTED = 130
    """The command was interrupted by Ctrl-C or SIGTERM before it was done."""


def fanout_command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command: put this decorator below that of typer.

    A parameter whose type is a dataclass stands for the options that are the fields of the class.
    An error of fanout, a missing library included, is printed in one line, in the words of the
    options and after the name of the command, and exits with 2; Ctrl-C exits with 130.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        given = inspect.signature(function, eval_str=True).parameters.values()
        groups: dict[str, Any] = {
            one.name: one.annotation for one in given if is_dataclass(one.annotation)
        }
        parameters = [
            part
            for one in given
            for part in (_fields(groups[one.name]) if one.name in groups else [one])
        ]
        words = _WORDS | {one.name: _word(one) for one in parameters}

        @wraps(function)
        def command(**values: Any) -> None:
            for group, kind in groups.items():
                own = {field: values.pop(field) for field in kind.__dataclass_fields__}
                values[group] = kind(**own)
            _words_of_command.set(words)
            _run(name, lambda: function(**values))

        # typer reads these two.
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return command

    return decorate


def in_words_of_options(said: str | FanOutError) -> str:
    """Write what is said with the options of the command that runs."""
    return Sentence(said).in_words(_written)


def _written(option: Option) -> str | None:
    """Return what a user of the command that runs writes for an option."""
    word, value = _words_of_command.get().get(option.name), option.value
    if word is None or value in {None, "True"}:
        return word
    if word.startswith("--") and value[0] in {"'", '"'}:
        value = shlex.quote(value[1:-1])
    return f"{word} {value.removesuffix('.0')}"


def _run(name: str, function: Callable[[], None]) -> None:
    try:
        with naming_extras("it"):
            function()
    except FanOutError as error:
        typer.echo(f"fanout {name}: {in_words_of_options(error)}", err=True)
        raise typer.Exit(ExitCode.UNUSABLE) from error
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _fields(kind: Any) -> list[inspect.Parameter]:
    return [*inspect.signature(kind, eval_str=True).parameters.values()]


def _word(parameter: inspect.Parameter) -> str:
    """Return what a user writes for a parameter: `--ca-file` for an option, `STREAM` otherwise."""
    if get_origin(parameter.annotation) is Annotated:
        described = get_args(parameter.annotation)[1]
        if not isinstance(described, typer.models.OptionInfo):
            return parameter.name.upper()
        if isinstance(described.default, str) and described.default.startswith("--"):
            return described.default
    return "--" + parameter.name.strip("_").replace("_", "-")
