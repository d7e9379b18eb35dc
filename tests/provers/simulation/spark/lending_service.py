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
        """The name of the record, which no other record has."""
        return f"{self.row[0]}:{self.row[1]}"


@final
class LendingService:
    """The state of the service, for all its readers.

    Args:
        logs: The records, with the moments at which they arrive.
        random: Whether acknowledgements arrive, and are answered.
        on_accept: Receives each record that is acknowledged for good.
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
        free = [record for record in self._left if record.at <= now and record.until <= now][
            :_PER_POLL
        ]
        for record in free:
            record.holder, record.until = holder, now + LOCK
        return free

    def next(self, now: float) -> float:
        """Return the seconds until a record is available."""
        return min((max(record.at, record.until) - now for record in self._left), default=math.inf)

    def empty(self, now: float) -> bool:
        """Say whether everything that has arrived is acknowledged."""
        return all(record.at > now for record in self._left)

    def accept(self, record: AcquiredRecord, holder: object, now: float) -> bool:
        """Take an acknowledgement, unless it is too late."""
        if record.holder is not holder or record.until <= now:
            return False
        self._left.remove(record)
        self._on_accept(record.row)
        return True

    def take_back(self, holders: set[object]) -> None:
        """Let others have at once what these had."""
        for record in self._left:
            if record.holder in holders:
                record.holder, record.until = None, 0.0
