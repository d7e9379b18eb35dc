"""Keep the calls of polling within the rate limit of a shard.

The figures are those of GetRecords and GetShardIterator in the AWS API reference: a shard takes
five calls of each in a second and returns 2 MiB a second, all of its pollers together.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, final

from fanout.kinesis.intervals import KINESIS_INTERVALS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_BYTES_PER_SECOND: Final = 2 * 1024 * 1024


@final
class ShardRateLimit:
    """Space the calls about one shard, by the clock of the event loop.

    GetRecords and GetShardIterator are spaced together, which keeps to the limit of either. A rest
    begins with an answer: the service has counted it, however long the network took with it.
    """

    def __init__(self) -> None:
        self._free_at = -math.inf
        self._intervals = KINESIS_INTERVALS.current
        self._interval = self._intervals.poll

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Wait until a call may be made; the next one may follow a fifth of a second after it."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._free_at - loop.time()))
        try:
            yield
        finally:
            self._free_at = max(self._free_at, loop.time() + self._intervals.poll)

    def set_idle(self, *, idle: bool) -> None:
        """Set whether the last answer had nothing new; idle rests double, up to a second."""
        intervals = self._intervals
        longer = min(2 * self._interval, intervals.idle_poll)
        self._interval = longer if idle else intervals.poll

    def rest(self, answered_at: float, nbytes: int) -> None:
        """Let the shard rest until its average rate is allowed; an answer's last call counts."""
        rest = min(nbytes / _BYTES_PER_SECOND, self._intervals.longest_rest)
        self._free_at = answered_at + max(rest, self._interval)
