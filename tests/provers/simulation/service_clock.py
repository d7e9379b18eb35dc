"""The clock of the simulated services."""

from __future__ import annotations

import math
from typing import Final

__all__ = ("EPOCH_MILLIS", "millis")

EPOCH_MILLIS: Final = 1_800_000_000_000
"""The moment of the service's clock at which virtual time begins."""


def millis(now: float) -> int:
    """Return the service's clock, in milliseconds since the Unix epoch, at a virtual second."""
    return EPOCH_MILLIS + math.floor(now * 1000)
