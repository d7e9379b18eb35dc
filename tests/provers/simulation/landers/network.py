"""The network between landers and coordinators: slow, cut, broken, and in order as TCP is."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from fanout.errors import SetupError
from fanout.landers.channel import ChannelClosedError
from fanout.testing.virtual_time.loop import running_loop
from tests.provers.simulation.randomness import stream_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from fanout.landers.channel import Channel
    from tests.provers.simulation.landers.plan import LandersPlan

__all__ = ("Network", "SimConnection")

# A connection that is closed where the other side cannot be reached is cut after so long.
_CLOSE_SECONDS: Final = 2.0
# So many messages fit into the buffers of a connection.
_BUFFERED: Final = 16


@final
@dataclass(slots=True)
class _Way:
    """One direction between a lander's machine and the driver's.

    Args:
        cut_until: Until when nothing passes.
        slow_until: Until when everything takes seconds.
    """

    cut_until: float = 0.0
    slow_until: float = 0.0
    woken: list[asyncio.Event] = field(default_factory=list)

    def wake(self) -> None:
        for event in self.woken:
            event.set()


@final
class _Pipe:
    """One direction of one connection.

    Args:
        way: Where its messages pass.
        latency: Draws how long a message takes.
    """

    def __init__(self, way: _Way, latency: Callable[[_Way], float]) -> None:
        self.lost = False
        self._way = way
        self._latency = latency
        self._messages: deque[tuple[float, bytes | None]] = deque()
        self._last = 0.0
        self.changed = asyncio.Event()
        way.woken.append(self.changed)

    def put(self, message: bytes | None) -> None:
        if not self.lost:
            self._last = max(self._last, running_loop().time() + self._latency(self._way))
            self._messages.append((self._last, message))
            self.changed.set()

    @property
    def full(self) -> bool:
        return len(self._messages) >= _BUFFERED

    @property
    def is_cut(self) -> bool:
        return self.lost or self._way.cut_until > running_loop().time()

    def arrival(self) -> float:
        """Return when the next message arrives."""
        if not self._messages or self.lost:
            return math.inf
        return max(self._messages[0][0], self._way.cut_until)

    def take(self) -> bytes | None:
        self.changed.set()
        return self._messages.popleft()[1]

    def detach(self) -> None:
        """Carry nothing any more."""
        if self.changed in self._way.woken:
            self._way.woken.remove(self.changed)


@final
class _End:
    """One end of a connection; a `Channel`.

    Args:
        out: Where it sends.
        into: Where it receives.
        heard: Called with each message that it receives.
    """

    def __init__(self, out: _Pipe, into: _Pipe, heard: Callable[[bytes], None]) -> None:
        self.broken_at = math.inf
        self._out = out
        self._into = into
        self._heard = heard
        self._closed = False
        self._ended = False

    async def send(self, message: bytes) -> None:
        while self._is_open() and self._out.full:
            await self._wait(self._out, math.inf)
        if not self._is_open():
            raise ChannelClosedError("the connection has ended")
        self._out.put(message)

    async def receive(self) -> bytes:
        while self._is_open():
            arrival = self._into.arrival()
            if arrival <= running_loop().time():
                message = self._into.take()
                if message is None:
                    self._ended = True
                    break
                self._heard(message)
                return message
            await self._wait(self._into, arrival)
        raise ChannelClosedError("the connection has ended")

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        gone = self._ended or self.broken_at <= running_loop().time()
        if not gone:
            self._out.put(None)
        self.wake()
        self._into.detach()
        if not gone:
            await asyncio.sleep(_CLOSE_SECONDS if self._out.is_cut else 0.0)

    def wake(self) -> None:
        self._into.changed.set()
        self._out.changed.set()

    def _is_open(self) -> bool:
        return not (self._closed or self._ended or self.broken_at <= running_loop().time())

    async def _wait(self, pipe: _Pipe, until: float) -> None:
        until = min(until, self.broken_at)
        pipe.changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(None if until == math.inf else until):
                await pipe.changed.wait()


@final
class SimConnection:
    """A connection of a lander.

    Args:
        up: Towards the coordinator.
        down: Towards the lander.
        heard: Called with each message that the lander receives.
        told: Called with each message that the coordinator receives.
    """

    def __init__(
        self,
        up: _Pipe,
        down: _Pipe,
        heard: Callable[[bytes], None],
        told: Callable[[bytes], None],
    ) -> None:
        self._pipes = (up, down)
        self.lander = _End(up, down, heard)
        self.coordinator = _End(down, up, told)

    def lose(self, *, up: bool, down: bool) -> None:
        """Lose all that is under way and all that is sent from now on, unnoticed."""
        self._pipes[0].lost |= up
        self._pipes[1].lost |= down

    def break_off(self, lander_after: float, coordinator_after: float) -> None:
        """Break it; each side notices after some seconds."""
        now = running_loop().time()
        self.lose(up=True, down=True)
        self.lander.broken_at = min(self.lander.broken_at, now + lander_after)
        self.coordinator.broken_at = min(self.coordinator.broken_at, now + coordinator_after)
        self.lander.wake()
        self.coordinator.wake()

    @property
    def over(self) -> bool:
        """Whether the lander's end is closed."""
        return self.lander._closed


@final
class Network:
    """Connect landers with the coordinator of a run.

    Args:
        plan: How slow it is.
    """

    def __init__(self, plan: LandersPlan) -> None:
        self._latest = plan.latency
        self._random = stream_of(plan.seed, "network")
        self._up = [_Way() for _ in range(plan.landers)]
        self._down = [_Way() for _ in range(plan.landers)]
        self._accepts: dict[int, Callable[[Channel], None]] = {}

    def listen(self, run: int, accept: Callable[[Channel], None]) -> None:
        """Let a run's coordinator accept connections."""
        self._accepts[run] = accept

    def listen_no_longer(self, run: int) -> None:
        """Refuse connections to a run."""
        self._accepts.pop(run, None)

    def cut(self, lander: int, seconds: float, *, up: bool, down: bool) -> None:
        """Let nothing pass between a lander and the driver."""
        until = running_loop().time() + seconds
        for way in self._ways(lander, up=up, down=down):
            way.cut_until = max(way.cut_until, until)
            way.wake()

    def slow(self, lander: int, seconds: float) -> None:
        """Let everything take up to two seconds between a lander and the driver."""
        for way in self._ways(lander, up=True, down=True):
            way.slow_until = running_loop().time() + seconds

    def repair(self) -> None:
        """Let everything pass."""
        for way in (*self._up, *self._down):
            way.cut_until = way.slow_until = 0.0
            way.wake()

    @asynccontextmanager
    async def connect(
        self,
        lander: int,
        run: int,
        seconds: float,
        heard: Callable[[bytes], None],
        told: Callable[[bytes], None],
    ) -> AsyncIterator[SimConnection]:
        """Connect a lander with a run's coordinator.

        Raises:
            SetupError: If that does not answer within some seconds.
        """
        up, down = self._up[lander], self._down[lander]
        try:
            async with asyncio.timeout(seconds):
                while max(up.cut_until, down.cut_until) > running_loop().time():  # noqa: ASYNC110 - as TCP
                    await asyncio.sleep(0.5)
                await asyncio.sleep(self._latency(up) + self._latency(down))
        except TimeoutError:
            raise SetupError("the driver does not answer") from None
        accept = self._accepts.get(run)
        if accept is None:
            raise SetupError("the driver refuses the connection")
        pipes = _Pipe(up, self._latency), _Pipe(down, self._latency)
        connection = SimConnection(*pipes, heard, told)
        accept(connection.coordinator)
        try:
            yield connection
        finally:
            await connection.lander.close()

    def _ways(self, lander: int, *, up: bool, down: bool) -> list[_Way]:
        return [self._up[lander]] * up + [self._down[lander]] * down

    def _latency(self, way: _Way) -> float:
        slow = way.slow_until > running_loop().time()
        return self._random.uniform(0.0, 2.0 if slow else self._latest)
