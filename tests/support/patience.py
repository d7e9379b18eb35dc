"""How long a test waits before it takes what it waits for as hanging."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE: Final = 120.0
"""Seconds. It is no measure of speed: on a machine that does other work a JVM takes half a minute
to start. It is shorter than the timeout of a test, so that the assertion is what fails."""


def eventually(fact: Callable[[], object]) -> None:
    """Wait for what nothing signals."""
    deadline = time.monotonic() + PATIENCE
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.01)
