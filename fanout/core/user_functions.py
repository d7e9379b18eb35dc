"""Functions that a user hands in: refuse what would never run, and see what has not run yet."""

from __future__ import annotations

import concurrent.futures
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Final, ParamSpec

from fanout.core.sentence import Option, Sentence
from fanout.errors import OptionError

_P = ParamSpec("_P")

# A call of these makes an object, and runs nothing of the body.
_LAZY: Final = (
    (inspect.iscoroutinefunction, "an async function"),
    (inspect.isasyncgenfunction, "an async generator"),
    (inspect.isgeneratorfunction, "a generator"),
)


def check_function(
    option: str,
    value: object,
    kind: str,
    *,
    arguments: int | None = None,
    is_secret: bool = False,
) -> None:
    """Check that an option is a function whose call does its work.

    It may be a method, a partial, or an object that can be called, but neither a class, nor async,
    nor a generator. `kind` is what it must be, such as "a function of a record batch". It is called
    with so many arguments; None checks no number. A value that may be a secret is not shown.
    """
    wanted = Sentence(Option(option), f" must be {kind}")
    if not callable(value):
        raise OptionError(Option(option, ... if is_secret else value), f" must be {kind}")
    if isinstance(value, type):
        raise OptionError(wanted, f", and is the class {value.__name__}: pass an instance of it")
    if (lazy := _lazy(value)) is not None:
        raise OptionError(
            wanted,
            f", and is {lazy}, whose body would never run: pass a plain function that has done its "
            "work when it returns",
        )
    if arguments is None:
        return
    try:
        # What a decorator says of the function in it does not count.
        inspect.signature(value, follow_wrapped=False).bind(*range(arguments))
    except TypeError as error:
        raise OptionError(wanted, f", and cannot be called so: {error}") from error
    except ValueError:  # one of C, which has no signature
        pass


def check_on_resubscribe(value: object) -> None:
    """Check the option `on_resubscribe`."""
    if value is not None:
        kind = "a function of a split, an error and a delay"
        check_function("on_resubscribe", value, kind, arguments=3)


class UnfinishedError(Exception):
    """A function of the user has returned before it has done its work."""


def call(function: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
    """Call a function that has done its work when it returns; what it returns is not used.

    A result that would do the work only later, as a coroutine does, is an UnfinishedError.
    """
    if (left := unfinished(function(*args, **kwargs))) is not None:
        raise UnfinishedError(
            f"returned {left}, whose work is not done: do it before returning, and return nothing"
        )


def call_listener(
    option: str, function: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs
) -> None:
    """Call a function that is told of something, in the event loop.

    It is an OptionError if it has not done its work when it returns, or raises what would end the
    event loop, such as SystemExit. Any other error passes as it is.
    """
    try:
        call(function, *args, **kwargs)
    except UnfinishedError as error:
        raise OptionError(f"the function {option} {error}") from None
    except Exception:  # as it is: the caller says whose it was
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise OptionError(f"the function {option} raised {type(error).__name__}") from error


def unfinished(result: object) -> str | None:
    """Return what a function has returned in place of doing its work; None where it has done it.

    A coroutine is closed; see `drop_unawaited`.
    """
    if inspect.iscoroutine(result):
        drop_unawaited(result)
        return "a coroutine"
    if isinstance(result, Awaitable | Iterator | AsyncIterator | concurrent.futures.Future):
        return f"an object of the type {type(result).__name__}"
    return None


def drop_unawaited(returned: object) -> None:
    """Close a coroutine that nobody is going to await, so that Python does not warn of it."""
    if inspect.iscoroutine(returned):
        returned.close()


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error is Ctrl-C of a person, and not what a user's function raised."""
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and isinstance(error, KeyboardInterrupt)


def _lazy(function: Callable[..., object]) -> str | None:
    """Return what kind of function makes an object in place of running; None for a plain one."""
    while isinstance(function, partial):
        function = function.func
    for called in (function, type(function).__call__):
        for is_kind, kind in _LAZY:
            if is_kind(called):
                return kind
    return None
