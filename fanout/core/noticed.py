"""Look at the events of a subscription as they pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from fanout.core.events import Batch, End

__all__ = ("Noticed",)


@final
class Noticed:
    """Pass a subscription's events on, hold none of them, and show each to somebody first.

    Args:
        events: The events.
        show: Called with each.
    """

    def __init__(
        self, events: AsyncIterator[Batch | End], show: Callable[[Batch | End], None]
    ) -> None:
        self._events = events
        self._show = show

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch | End:
        event = await anext(self._events)
        self._show(event)
        return event
