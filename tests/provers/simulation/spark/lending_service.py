"""A service that delivers acquired records again until they are acknowledged."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from tests.provers.simulation.spark.arriving_source import ArrivalLog, Row

__all__ = ("LOCK", "AcquiredRecord", "LendingService")

# In virtual seconds.
LOCK: Final = 2.0
_PER_POLL: Final = 3


@final
@dataclass(slots=True, eq=False)
class AcquiredRecord:
    """A record, and who has it until when."""

    row: Row
    at: float
    holder: object = None
    until: float = 0.0

    @property
    def name(self) -> str:
        """What tells it from others."""
        return f"{self.row[0]}:{self.row[1]}"


@final
class LendingService:
    """The state of the service, for all its readers.

    Args:
        logs: The records, with the moments at which they arrive.
        random: Whether acknowledgements arrive, and are answered.
        on_accept: Told each record that is acknowledged for good.
    """

    def __init__(
        self, logs: Sequence[ArrivalLog], random: Random, on_accept: Callable[[Row], None]
    ) -> None:
        self.random = random
        self._on_accept = on_accept
        self._left = [
            AcquiredRecord((log.split.id, arrival.sequence, arrival.data), arrival.at)
            for log in logs
            for arrival in log.arrivals
            if arrival.data is not None
        ]

    def lend(self, holder: object, now: float) -> list[AcquiredRecord]:
        """Let a reader acquire a few records that are available."""
        free = [loan for loan in self._left if loan.at <= now and loan.until <= now][:_PER_POLL]
        for loan in free:
            loan.holder, loan.until = holder, now + LOCK
        return free

    def next(self, now: float) -> float:
        """Return the seconds until a record is available."""
        return min((max(loan.at, loan.until) - now for loan in self._left), default=math.inf)

    def empty(self, now: float) -> bool:
        """Say whether everything that has arrived is acknowledged."""
        return all(loan.at > now for loan in self._left)

    def accept(self, loan: AcquiredRecord, holder: object, now: float) -> bool:
        """Take an acknowledgement, unless it is too late."""
        if loan.holder is not holder or loan.until <= now:
            return False
        self._left.remove(loan)
        self._on_accept(loan.row)
        return True

    def take_back(self, holders: set[object]) -> None:
        """Let others have at once what these had."""
        for loan in self._left:
            if loan.holder in holders:
                loan.holder, loan.until = None, 0.0
