"""The clock, the randomness and the rules that the parts of the service share."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Final, final

from tests.provers.simulation.service_clock import EPOCH_MILLIS

if TYPE_CHECKING:
    from random import Random

    from fanout.testing.kinesis.rules import KinesisRules

__all__ = ("EPOCH", "ServiceState")

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=EPOCH_MILLIS)
"""When virtual time begins, by the clock of the service."""


@final
class ServiceState:
    """Hold the time and the rules, and collect the rules that a reader has broken.

    `violations` has these, each with its moment. `skew` is by how many seconds the clock of the
    service is ahead of virtual time.

    Args:
        rules: The rules.
        random: The source of randomness of the service: latencies, the lag of its listings.
    """

    def __init__(self, rules: KinesisRules, random: Random) -> None:
        self.rules = rules
        self.random = random
        self.skew = 0.0
        self.violations: list[str] = []

    @property
    def now(self) -> float:
        """The virtual seconds."""
        return self._loop.time()

    @property
    def clock(self) -> datetime:
        """The clock of the service."""
        return EPOCH + timedelta(seconds=self.now + self.skew)

    def violated(self, rule: str) -> None:
        """Note a rule that the reader has broken."""
        self.violations.append(f"{self.now:.3f}: {rule}")

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()
