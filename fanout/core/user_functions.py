"""Check the functions that users pass as options, and what comes back from them."""

from __future__ import annotations

import inspect
import threading
from typing import TYPE_CHECKING, Any

from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable


def check_function(what: str, value: object, kind: str) -> None:
    """Check that an option is a function that returns its result when it is called.

    Args:
        what: The option, with its value where that may be shown.
        value: Its value.
        kind: What it must be, such as "a function of a record batch".

    Raises:
        OptionError: If it is something else, a class, an async function or a generator.
    """
    if isinstance(value, type) or not callable(value):
        raise OptionError(f"{what} must be {kind}")
    if other := _other_kind(value):
        raise OptionError(f"{what} must be {kind}, and no {other}")


def check_on_resubscribe(value: object) -> None:
    """Check the option `on_resubscribe`.

    Raises:
        OptionError: If it is neither None nor a function that is not async.
    """
    if value is not None:
        kind = "a function of a split, an error and a number"
        check_function(f"on_resubscribe={value!r}", value, kind)


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error is Ctrl-C of a person, and not what a user's function raised."""
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and isinstance(error, KeyboardInterrupt)


def drop_unawaited(returned: object) -> None:
    """Close a coroutine that nobody is going to await, so that Python does not warn of it."""
    if inspect.iscoroutine(returned):
        returned.close()


def call_listener(name: str, function: Callable[..., object], *arguments: Any) -> None:
    """Call a user's function whose result counts for nothing.

    Args:
        name: The option.
        function: The function.
        *arguments: Its arguments.

    Raises:
        OptionError: If it returns something that would have to be awaited, or raises what would end
            the event loop, such as SystemExit.
        Exception: Any other error that it raises.
    """
    try:
        returned = function(*arguments)
    except Exception:
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise OptionError(f"the function {name} raised {type(error).__name__}") from error
    if inspect.isawaitable(returned):
        drop_unawaited(returned)
        raise OptionError(
            f"the function {name} returned {type(returned).__name__}, which is never awaited; pass "
            f"a function that is not async"
        )


def _other_kind(function: Any) -> str:
    """Return which kind of function it is that returns no result when called; empty for none."""
    for each in (function, type(function).__call__):
        if inspect.iscoroutinefunction(each):
            return "async function"
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            return "generator"
    return ""
