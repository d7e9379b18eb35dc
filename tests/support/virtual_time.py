"""Run tests in virtual time."""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from fanout.testing.virtual_time.loop import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

__all__ = ("in_virtual_time",)

P = ParamSpec("P")


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test of a coroutine function: it runs on a simulated loop, and may leave nothing."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        simulate(partial(test, *args, **kwargs))

    return run
