"""Functions that a user hands in: refuse what would never run, and see what has not run yet."""

from __future__ import annotations

import concurrent.futures
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Final, ParamSpec

from fanout.errors import OptionError

_P = ParamSpec("_P")

# A call of these makes an object, and runs nothing of the body.
_LAZY: Final = (
    (inspect.iscoroutinefunction, "an async function"),
    (inspect.isasyncgenfunction, "an async generator"),
    (inspect.isgeneratorfunction, "a generator"),
)


def check_function(name: str, function: object, *, takes: str, arguments: int) -> None:
    """Check that an option is a function whose call does its work.

    Args:
        name: The option.
        function: Its value: a function, a method, a partial, or an object that can be called.
        takes: What it is called with, for the message.
        arguments: How many arguments that are.

    Raises:
        OptionError: If it is none: nothing that can be called, a class, async, a generator, or a
            function of another number of arguments.
    """
    wanted = f"{name} must be a function of {takes}"
    if not callable(function):
        raise OptionError(f"{name}={function!r} must be a function of {takes}")
    if isinstance(function, type):
        raise OptionError(f"{wanted}, and is the class {function.__name__}: pass an instance of it")
    if (lazy := _lazy(function)) is not None:
        raise OptionError(
            f"{wanted}, and is {lazy}, whose body would never run: pass a plain function that has "
            f"done its work when it returns"
        )
    try:
        # What a decorator says of the function in it does not count.
        inspect.signature(function, follow_wrapped=False).bind(*range(arguments))
    except TypeError as error:
        raise OptionError(f"{wanted}, and cannot be called so: {error}") from error
    except ValueError:  # one of C, which has no signature
        pass


class UnfinishedError(Exception):
    """A function of the user has returned before it has done its work."""


def call(function: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
    """Call a function that has done its work when it returns; what it returns is not used.

    Raises:
        UnfinishedError: If it returns what would do the work only later, as a coroutine does.
        BaseException: What it raises.
    """
    if (left := unfinished(function(*args, **kwargs))) is not None:
        raise UnfinishedError(
            f"returned {left}, whose work is not done: do it before returning, and return nothing"
        )


def unfinished(result: object) -> str | None:
    """Return what a function has returned in place of doing its work; None where it has done it.

    A coroutine is closed, so that Python does not warn of it.

    Args:
        result: What the function has returned.
    """
    if inspect.iscoroutine(result):
        result.close()
        return "a coroutine"
    if isinstance(result, Awaitable | Iterator | AsyncIterator | concurrent.futures.Future):
        return f"an object of the type {type(result).__name__}"
    return None


def _lazy(function: Callable[..., object]) -> str | None:
    """Return what kind of function makes an object in place of running; None for a plain one."""
    while isinstance(function, partial):
        function = function.func
    for called in (function, type(function).__call__):
        for is_kind, kind in _LAZY:
            if is_kind(called):
                return kind
    return None
