"""The message channel between a lander and the coordinator."""

from __future__ import annotations

from typing import Protocol

from fanout.errors import FanOutError


class ChannelClosedError(FanOutError):
    """The channel was closed by either side, or broke; what was sent last may not have arrived."""


class Channel(Protocol):
    """Carry whole messages both ways, in order, between one lander and the coordinator.

    One task may receive at a time; any number may send.
    """

    async def send(self, message: bytes) -> None:
        """Send at most `MAX_MESSAGE_BYTES`; wait while the other side reads too slowly.

        A channel that is closed or breaks is a ChannelClosedError. Cancellation: the message may
        arrive all the same.
        """
        ...

    async def receive(self) -> bytes:
        """Return the next message; cancelled, it loses none.

        A channel that is closed or breaks is a ChannelClosedError.
        """
        ...

    async def close(self) -> None:
        """Send what waits, then close the channel, within 2 s; a second call does nothing.

        Cancellation: the channel is cut at once.
        """
        ...
