"""The queue of one event between a subscriber and the consumer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.core.events import Batch, End, Event, Failure


@final
@dataclass(frozen=True, slots=True)
class Waiting:
    """An event that waits for the consumer."""

    event: Batch | End
    since: float  # when it began to wait, on the loop's clock


@final
class Slot:
    """Hold one event of a split, and beside it the poison pill.

    A full slot is the backpressure: its subscriber waits, so it stops reading its socket, and the
    service stops sending. The pill has a cell of its own: it never waits for room, never evicts the
    event, and is taken after it. `on_ready` is called with the slot each time something can be
    taken from it.
    """

    def __init__(self, on_ready: Callable[[Slot], None]) -> None:
        self._on_ready = on_ready
        self._event: Batch | End | None = None
        self._cost = 0
        self._since = 0.0
        self._pill: Failure | None = None
        self._vacant = asyncio.Event()
        self._vacant.set()

    @property
    def occupied(self) -> bool:
        """Whether an event is buffered."""
        return self._event is not None

    @property
    def waiting(self) -> Waiting | None:
        """The event that is buffered; from any thread."""
        event, since = self._event, self._since
        return None if event is None else Waiting(event, since)

    @property
    def pill(self) -> Failure | None:
        """The failure of the split, as soon as it is known and for ever after."""
        return self._pill

    async def put(self, event: Batch | End, cost: int = 0) -> None:
        """Hand an event over, waiting until the slot is vacant. One subscriber puts at a time.

        `cost` are the bytes that are reserved for the event until it is taken.

        Cancellation: atomic. The event is in the slot if and only if the call returned.
        """
        await self._vacant.wait()
        assert self._event is None, "a slot holds at most one event"
        self._since = asyncio.get_running_loop().time()
        self._event, self._cost = event, cost
        self._vacant.clear()
        self._on_ready(self)

    def fail(self, pill: Failure) -> None:
        """Set the pill. The first one wins; a later one changes nothing."""
        if self._pill is None:
            self._pill = pill
            self._on_ready(self)

    def take(self) -> tuple[Event, int]:
        """Take the event and its cost; where none is buffered, the pill.

        Call it once for each `on_ready`; it never waits.
        """
        if self._event is not None:
            event, cost = self._event, self._cost
            self._event, self._cost = None, 0
            self._vacant.set()
            return event, cost
        assert self._pill is not None, "a slot is only taken from when it is ready"
        return self._pill, 0
