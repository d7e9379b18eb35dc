"""The generations of producers that write to a simulated shuffle, one after the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from tests.provers.simulation.randomness import happens

if TYPE_CHECKING:
    from random import Random

__all__ = ("GenerationMember", "ProducerGeneration", "draw_generations")


@final
@dataclass(frozen=True, slots=True)
class GenerationMember:
    """One producer of a generation.

    Args:
        first: When it may speak for the first time, in virtual seconds.
        last: When it dies or is stopped; it announces neither.
    """

    first: float
    last: float


@final
@dataclass(frozen=True, slots=True)
class ProducerGeneration:
    """Producers that were started together.

    Args:
        number: Its number; a later generation has a higher one.
        members: The producers, by their numbers.
        partitions: How many partitions they write to.
        transactional: Whether they write in transactions.
    """

    number: int
    members: tuple[GenerationMember, ...]
    partitions: int
    transactional: bool


def draw_generations(
    random: Random,
    generations: int,
    producers: int,
    *,
    partitions: int,
    seconds: float,
    transactions: bool,
) -> tuple[ProducerGeneration, ...]:
    """Draw the generations of a topic; an older one may write on beside its successor.

    Args:
        random: Where chance comes from.
        generations: How many there are at the most.
        producers: How many producers each has at the most.
        partitions: How many partitions the topic has.
        seconds: For how long records come, in virtual seconds.
        transactions: Whether there may be any.
    """
    count = random.randint(1, generations)
    begins = [-math.inf, *sorted(random.uniform(0.05, 0.85) * seconds for _ in range(count - 1))]
    number = random.randrange(1000)
    drawn = []
    for began, replaced in zip(begins, [*begins[1:], math.inf], strict=True):
        number += random.randint(1, 1000)
        members = tuple(
            _member(random, began, replaced, seconds) for _ in range(random.randint(1, producers))
        )
        drawn.append(
            ProducerGeneration(number, members, partitions, transactions and happens(random, 0.6))
        )
    return tuple(drawn)


def _member(random: Random, began: float, replaced: float, seconds: float) -> GenerationMember:
    if happens(random, 0.05):
        return GenerationMember(math.inf, math.inf)  # it was announced, and never starts
    late = random.uniform(0, 0.2) * seconds if happens(random, 0.2) else 0.0
    first = max(began, 0.0) + late if late else began
    if happens(random, 0.15):
        return GenerationMember(first, random.uniform(max(first, 0.0), seconds))  # it dies
    if replaced < math.inf and happens(random, 0.7):
        replaced += random.uniform(0, 0.4) * seconds  # it does not know its successor yet
    return GenerationMember(first, replaced)
