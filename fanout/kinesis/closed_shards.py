"""Warn of closed shards that deliver nothing and do not end.

Kinesis ends the subscription to a closed shard with an event that names its children. Some servers
that imitate Kinesis leave that event out, and the children wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Self, final

from fanout.core.events import End

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fanout.core.events import Batch, Split
    from fanout.core.source import Reserve
    from fanout.kinesis.shards import ShardCatalog

log = logging.getLogger(__name__)

# Kinesis sends the end of a closed shard right after its last record.
_SECONDS: Final = 60.0


@final
class ClosedShards:
    """Warn once of each closed shard that has sent neither a record nor its end for a minute.

    A shard is closed if the latest listing has the sequence number that it was closed with. That
    number alone does not prove that every record has been read, so the children still wait.
    """

    def __init__(self, catalog: ShardCatalog, stream: str) -> None:
        self._catalog = catalog
        self._stream = stream
        self._waits: dict[str, Wait] = {}

    def wait(self, split: Split) -> Wait:
        """Return the time that the reader of a shard has waited for the service."""
        return self._waits.setdefault(split.id, Wait(closed=self._is_closed(split.id)))

    def observe(self, event: Batch | End) -> None:
        """Begin a wait anew with each event that makes progress; forget a shard that has ended."""
        wait = self._waits.get(event.split.id)
        if isinstance(event, End):
            self._waits.pop(event.split.id, None)
        # An event without records makes progress only while there are newer records.
        elif wait is not None and (event.num_records or event.lag != 0):
            wait.restart()

    def check(self) -> None:
        """Warn of the shards that are due; call it after each listing."""
        for shard_id, wait in self._waits.items():
            if not self._is_closed(shard_id):
                continue
            if not wait.closed:
                wait.closed = True
                wait.restart()  # an open shard may be idle
            if wait.seconds >= _SECONDS and not wait.warned:
                wait.warned = True
                children = ", ".join(child.id for child in self._catalog.children(shard_id))
                log.warning(
                    "%s of the stream %s is closed, as ListShards says, but has sent neither a "
                    "record nor its end for %.0f s; %s cannot begin before that end. Kinesis sends "
                    "it at once. If the endpoint is another server, use one that ends closed "
                    "shards, or try mode='polling'; otherwise open the stream again",
                    shard_id,
                    self._stream,
                    wait.seconds,
                    children or "its child shards",
                )

    def _is_closed(self, shard_id: str) -> bool:
        shard = self._catalog.listed.get(shard_id)
        return shard is not None and shard.last is not None


@final
class Wait:
    """The time that the reader of a shard has waited for the service since the last progress.

    Waits for memory and for the consumer do not count. The time of several subscriptions adds up.
    """

    def __init__(self, *, closed: bool) -> None:
        self.closed = closed
        self.warned = False
        self._before = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """The time so far."""
        running = 0.0 if self._since is None else asyncio.get_running_loop().time() - self._since
        return self._before + running

    def restart(self) -> None:
        """Begin at 0 again."""
        self._before = 0.0
        if self._since is not None:
            self.start()

    def start(self) -> None:
        """Go on measuring."""
        self._since = asyncio.get_running_loop().time()

    def stop(self) -> None:
        """Measure no longer."""
        self._before, self._since = self.seconds, None

    def excluding(self, reserve: Reserve) -> Reserve:
        """Return a `reserve` that stops the measurement while it waits."""

        async def reserved(nbytes: int) -> None:
            running = self._since is not None
            self.stop()
            await reserve(nbytes)
            if running:
                self.start()

        return reserved


@final
class MeasuredEvents:
    """Pass the events of a subscription on, and measure the waits for them."""

    def __init__(self, events: AsyncIterator[Batch | End], wait: Wait) -> None:
        self._events = events
        self._wait = wait

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch | End:
        self._wait.start()
        try:
            return await anext(self._events)
        finally:
            self._wait.stop()
