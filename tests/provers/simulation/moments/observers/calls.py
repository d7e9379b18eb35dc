"""Look at the calls of a method while a simulation runs, and change nothing about them."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ("after", "around", "before", "timed", "together")


@contextmanager
def before(owner: type, name: str, look: Callable[..., object]) -> Iterator[None]:
    """Look at each call of a method before it is made.

    Args:
        owner: The class.
        name: The method.
        look: Receives the arguments of the call, the object itself first.
    """
    original = vars(owner)[name]

    @wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        look(*args, **kwargs)
        return original(*args, **kwargs)

    with _replaced(owner, name, watched):
        yield


@contextmanager
def after(owner: type, name: str, look: Callable[..., object]) -> Iterator[None]:
    """Look at each call of a method that has returned.

    Args:
        owner: The class.
        name: The method, a coroutine function or a plain one.
        look: Receives the result, then the arguments of the call.
    """
    original = vars(owner)[name]

    @wraps(original)
    async def watched(*args: Any, **kwargs: Any) -> Any:
        result = await original(*args, **kwargs)
        look(result, *args, **kwargs)
        return result

    @wraps(original)
    def watched_plainly(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        look(result, *args, **kwargs)
        return result

    waits = inspect.iscoroutinefunction(original)
    with _replaced(owner, name, watched if waits else watched_plainly):
        yield


@contextmanager
def around(
    owner: type, name: str, look: Callable[..., AbstractContextManager[None]]
) -> Iterator[None]:
    """Look at each call of a method from its beginning until it has returned or raised.

    Args:
        owner: The class.
        name: The method, a coroutine function or a plain one.
        look: Given what the call is given, returns what surrounds the call.
    """
    original = vars(owner)[name]

    @wraps(original)
    async def watched(*args: Any, **kwargs: Any) -> Any:
        with look(*args, **kwargs):
            return await original(*args, **kwargs)

    @wraps(original)
    def watched_plainly(*args: Any, **kwargs: Any) -> Any:
        with look(*args, **kwargs):
            return original(*args, **kwargs)

    waits = inspect.iscoroutinefunction(original)
    with _replaced(owner, name, watched if waits else watched_plainly):
        yield


@contextmanager
def timed(owner: type, name: str, look: Callable[[float], object]) -> Iterator[None]:
    """Look at how long each call of a coroutine method has waited, where it has.

    Args:
        owner: The class.
        name: The method.
        look: Receives the seconds, by the clock of the loop, when the call has returned.
    """
    original = vars(owner)[name]

    @wraps(original)
    async def watched(*args: Any, **kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        began = loop.time()
        result = await original(*args, **kwargs)
        if (seconds := loop.time() - began) > 0:
            look(seconds)
        return result

    with _replaced(owner, name, watched):
        yield


@contextmanager
def together(*looks: AbstractContextManager[None]) -> Iterator[None]:
    """Look at the calls of several methods.

    Args:
        *looks: What looks at each; a later one looks before an earlier one of the same method.
    """
    with ExitStack() as stack:
        for look in looks:
            stack.enter_context(look)
        yield


@contextmanager
def _replaced(owner: type, name: str, watched: Callable[..., Any]) -> Iterator[None]:
    original = vars(owner)[name]
    setattr(owner, name, watched)
    try:
        yield
    finally:
        setattr(owner, name, original)
