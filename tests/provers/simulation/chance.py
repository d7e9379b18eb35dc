"""Chance, by how often something happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

__all__ = ("happens",)


def happens(random: Random, share: float) -> bool:
    """Draw whether something happens that happens in a share of all cases.

    Args:
        random: Where chance comes from; one number is taken.
        share: From 0, which is never, to 1, which is always.
    """
    return random.random() < share
