"""Plant bugs in the library, and have the seeds of a model find them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fanout.testing.virtual_time.loop import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def instead(kind: Any, name: str, make: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Return what replaces an attribute by one that is made of it."""
    return lambda patch: patch.setattr(kind, name, make(getattr(kind, name)))


def check_found(bug: str, run_seed: Callable[[int], Coroutine[Any, Any, Any]], seeds: int) -> None:
    """Check that one of so many seeds fails."""
    for seed in range(seeds):
        try:
            simulate(partial(run_seed, seed))
        except BaseException:  # noqa: BLE001 - a rule that is broken, or a stream that hangs
            return
    raise AssertionError(f"{seeds} seeds do not find that {bug}")
