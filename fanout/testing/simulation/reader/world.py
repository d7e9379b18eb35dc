"""What stays while the processes of a simulated job come and go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from random import Random

    from fanout.kinesis.source import KinesisSource
    from fanout.testing.simulation.faults.armed import Armed
    from fanout.testing.simulation.oracle.oracle import Oracle
    from fanout.testing.simulation.plan import Plan
    from fanout.testing.simulation.reader.store import Store
    from fanout.testing.simulation.service.service import SimService

__all__ = ("World",)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What every run of a job meets.

    Args:
        plan: How it reads.
        options: What it asks of the library.
        service: What answers it.
        armed: What goes wrong.
        oracle: What looks at everything that it gets.
        store: Where its positions are kept.
        random: The chance in the job itself.
        product: The chance in the library.
    """

    plan: Plan
    options: KinesisSource
    service: SimService
    armed: Armed
    oracle: Oracle
    store: Store
    random: Random
    product: Random
