"""One connection of one lander, as the coordinator sees it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias, final

from fanout.core.error_text import text_of
from fanout.core.lifecycle_log import LanderName
from fanout.core.statistics import LanderStatistics
from fanout.landers.channel import ChannelClosedError
from fanout.landers.messages import Beat, MessageError, encode, from_lander

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fanout.errors import FanOutError
    from fanout.landers.channel import Channel
    from fanout.landers.messages import FromCoordinator, Hello

SILENCE: Final = 7.0
"""Seconds without a message of a lander after which its session is over."""

_BEAT_SECONDS: Final = 1.0

TakeIn: TypeAlias = "Callable[[LanderSession, object], None]"
"""Takes a message of a session in; MessageError ends the session."""


@final
class LanderSession:
    """The splits of a lander, what it has told, and the messages to it."""

    def __init__(self, hello: Hello, epoch: int, channel: Channel) -> None:
        self.lander = hello.lander
        self.attempt = hello.attempt
        self.host = hello.host
        self.pid = hello.pid
        self.epoch = epoch
        self.splits: set[str] = set()
        self.releasing: set[str] = set()
        self.seq = 0
        self.bytes_in_flight = 0
        self.held = 0  # records in its open segment, as it has told last
        self.segments = 0
        self.last_segment = ""
        self.failure: FanOutError | None = None
        self._channel = channel
        self._outbox: asyncio.Queue[FromCoordinator] = asyncio.Queue()
        self._receiving: asyncio.Task[str] | None = None
        self._time = asyncio.get_running_loop().time
        self._connected_at = self._time()

    @property
    def connected(self) -> float:
        """Seconds since the lander connected."""
        return self._time() - self._connected_at

    @property
    def name(self) -> LanderName:
        """Which lander it is, for the log."""
        return LanderName(self.lander, self.host, self.pid)

    def __str__(self) -> str:
        return str(self.name)

    def statistics(self, bytes_per_second: Mapping[str, float]) -> LanderStatistics:
        """Return what the lander does, with the rates of splits as far as known; in any thread."""
        splits = tuple(self.splits)
        return LanderStatistics(
            lander=self.lander,
            host=self.host,
            pid=self.pid,
            splits=len(splits),
            segments=self.segments,
            bytes_per_second=sum((bytes_per_second.get(id_, 0.0) for id_ in splits), 0.0),
            connected=self.connected,
        )

    def tell(self, message: FromCoordinator) -> None:
        """Send a message as soon as the ones before it are sent."""
        self._outbox.put_nowait(message)

    async def attend(self, take_in: TakeIn) -> str | None:
        """Send and receive until the session is over; return why, or None if `hang_up` ended it.

        Cancellation: nothing is sent or taken in any more.
        """
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(self._send())
            self._receiving = tasks.create_task(self._receive(take_in))
            await asyncio.wait([self._receiving])
            sending.cancel()
        return None if self._receiving.cancelled() else self._receiving.result()

    def hang_up(self) -> None:
        """Take no further message in."""
        if self._receiving is not None:
            self._receiving.cancel()

    async def _receive(self, take_in: TakeIn) -> str:
        """Take messages in until the session is over; return why it is."""
        while True:
            try:
                async with asyncio.timeout(SILENCE):
                    message = from_lander(await self._channel.receive())
                take_in(self, message)
            except TimeoutError:
                return f"it was silent for {SILENCE:g} s"
            except (ChannelClosedError, MessageError) as error:
                return text_of(error)

    async def _send(self) -> None:
        with suppress(ChannelClosedError):
            while True:
                message: FromCoordinator = Beat()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_BEAT_SECONDS):
                        message = await self._outbox.get()
                await self._channel.send(encode(message))
