"""The process of one attempt of a lander."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, final

from fanout.errors import SetupError
from fanout.landers.channel import ChannelClosedError
from fanout.testing.virtual_time.loop import running_loop
from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.landers.bucket import HOST, Host

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fanout.landers.channel import Channel
    from fanout.landers.task import LanderTask
    from tests.provers.simulation.landers.network import Network, SimConnection

__all__ = ("LanderProcess", "connect_stand_in", "holding", "running_process")

running_process: ContextVar[LanderProcess] = ContextVar("running lander")

# A lander that has lost its coordinator ends its subscriptions after 5 s, and a bit.
_LEASE: Final = 6.0


@final
class LanderProcess(Host):
    """Run one attempt of a lander.

    Args:
        work: What it does.
        network: Where it finds the coordinator.
        lander: Its number.
        attempt: The number of the attempt.
    """

    def __init__(self, work: LanderTask, network: Network, *, lander: int, attempt: int) -> None:
        super().__init__()
        self.lander = lander
        self.attempt = attempt
        self.network = network
        self.connections: list[SimConnection] = []
        self.heard_at = running_loop().time()
        self.holds: dict[str, int] = {}
        self._work = work
        self.task = asyncio.create_task(self._run())

    def __str__(self) -> str:
        return f"attempt {self.attempt} of lander {self.lander}"

    async def _run(self) -> None:
        running_process.set(self)
        HOST.set(self)
        try:
            await self._work._run(self.lander, self.attempt)
        except (SetupError, ChannelClosedError) as error:
            running_loop().note(f"{self} gives up: {error}")

    async def kill(self, *, silently: bool) -> None:
        """End it at once, as SIGKILL does; silently, if its machine goes too."""
        self.end_threads()
        for connection in self.connections:
            if silently:
                connection.lose(up=True, down=True)
            else:
                connection.break_off(0.0, 0.01)
        self.task.cancel()
        await asyncio.wait([self.task])

    def heard(self, _: bytes) -> None:
        """Take note of a sign of life of the coordinator."""
        self.heard_at = running_loop().time()

    def told(self, message: bytes) -> None:
        """Take note of a message that has reached the coordinator."""

    @property
    def held(self) -> list[str]:
        """The splits of which it holds a subscription."""
        return [split_id for split_id, count in self.holds.items() if count]

    def check(self) -> None:
        """Check that it holds no subscription after its lease.

        Raises:
            OracleError: If it does.
        """
        silence = running_loop().time() - self.heard_at
        if self.held and silence > _LEASE and not self.dead:
            raise OracleError(
                f"broke a rule: {self} holds {self.held}, {silence:.1f} s without a coordinator"
            )
        if self.task.done() and not self.task.cancelled() and (error := self.task.exception()):
            raise error


@contextmanager
def holding(split_id: str) -> Iterator[None]:
    """Note that the process that runs holds a subscription."""
    process = running_process.get()
    process.holds[split_id] = process.holds.get(split_id, 0) + 1
    try:
        yield
    finally:
        process.holds[split_id] -= 1


@asynccontextmanager
async def connect_stand_in(
    address: tuple[str, int], secret: bytes, *, connect_timeout: float = 10.0, tls: None = None
) -> AsyncIterator[Channel]:
    """Stand in for `fanout.landers.control_client.connect`."""
    del secret, tls
    process = running_process.get()
    opening = process.network.connect(
        process.lander, address[1], connect_timeout, process.heard, process.told
    )
    async with opening as connection:
        process.connections = [each for each in process.connections if not each.over]
        process.connections.append(connection)
        yield connection.lander
