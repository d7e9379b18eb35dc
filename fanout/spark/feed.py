"""The running stream behind a query, as blocking calls for Spark's threads."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import TYPE_CHECKING, final

from fanout.core.opening import open_stream
from fanout.errors import StreamStateError
from fanout.spark.loop_thread import in_thread
from fanout.spark.pump import Pump
from fanout.spark.spool import Spool

if TYPE_CHECKING:
    from fanout.core.checkpoint import Checkpoint
    from fanout.core.fan_out import FanOut
    from fanout.core.source import Lending, Source, Spooling
    from fanout.core.statistics import OnResubscribe, Statistics
    from fanout.landing.pending import PendingSegments
    from fanout.landing.segments import SegmentLog
    from fanout.spark.loop_thread import LoopThread
    from fanout.spark.spool import Taken

__all__ = ("Feed",)


@final
class Feed:
    """Open a stream in the loop thread, and pump it until the loop thread ends.

    Args:
        loop: Where the stream runs.
        source: What to read.
        positions: Where to go on.
        log: Opens segments.
        pending: Names segments before a batch takes them, where the source lends its records.
        max_wait: Seconds to go on filling a segment while Spark waits and records keep coming.
        bounded: Finish when every split has reached its newest record.
        on_resubscribe: Told about each recoverable end, in the loop thread.

    Raises:
        FanOutError: If the stream cannot be opened.
    """

    def __init__(
        self,
        loop: LoopThread,
        source: Source,
        positions: Checkpoint,
        log: SegmentLog,
        pending: PendingSegments,
        *,
        max_wait: float,
        bounded: bool,
        on_resubscribe: OnResubscribe | None,
    ) -> None:
        self._loop = loop
        self._source = source
        self._positions = positions
        self._log = log
        self._pending = pending
        self._max_wait = max_wait
        self._bounded = bounded
        self._on_resubscribe = on_resubscribe
        opened: concurrent.futures.Future[tuple[FanOut, Pump | Spool]] = concurrent.futures.Future()
        self._serving = loop.start(self._serve(opened))
        self._stream, self._giver = opened.result()

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the stream or its pump, as soon as it is known."""
        return self._stream.failure or self._giver.failure or self._outcome()

    def statistics(self) -> Statistics:
        """Return the stream's counters."""
        return self._stream.statistics()

    def take(self, idle: float) -> Taken:
        """Block until there are records, for at most `idle` seconds.

        Raises:
            FanOutError: The failure of the stream, after its last records.
        """
        try:
            return self._loop.call(self._giver.next(idle))
        except StreamStateError:
            # The pump knows only that it was cancelled; its task will know why.
            concurrent.futures.wait([self._serving])
            if (failure := self.failure) is not None:
                raise failure from None
            raise

    def acknowledge(self, positions: Checkpoint) -> None:
        """Tell the service that everything up to `positions` is durable and was handled.

        What was lent was acknowledged when it was durable.
        """
        if self._stream.capabilities.lending is None:
            self._loop.call(self._stream.acknowledge(positions))

    def stop(self) -> None:
        """Let `take` return `Stopped` at once from now on."""
        self._loop.call_soon(self._giver.stop)

    def _outcome(self) -> BaseException | None:
        if not self._serving.done() or self._serving.cancelled():
            return None
        return self._serving.exception()

    async def _serve(self, opened: concurrent.futures.Future[tuple[FanOut, Pump | Spool]]) -> None:
        try:
            async with open_stream(
                self._source,
                resume=self._positions.to_json(),
                available_now=self._bounded,
                on_resubscribe=self._on_resubscribe,
            ) as stream:
                offered = stream.capabilities
                if offered.lending is not None:
                    await self._spool(stream, offered.lending, offered.spooling, opened)
                    return
                pump = Pump(stream, self._log, max_wait=self._max_wait, bounded=self._bounded)
                opened.set_result((stream, pump))
                await pump.run()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)
            raise

    async def _spool(
        self,
        stream: FanOut,
        lending: Lending,
        spooling: Spooling | None,
        opened: concurrent.futures.Future[tuple[FanOut, Pump | Spool]],
    ) -> None:
        """Serve a stream that lends its records."""
        if spooling is None:
            raise StreamStateError(
                f"{self._positions.source} locks records, and cannot name those whose "
                f"acknowledgement is unconfirmed; Spark would get them twice"
            )
        spooling.remember(self._pending.unconfirmed)  # at once, so that no split has subscribed yet
        await in_thread(self._pending.open)
        max_wait = min(self._max_wait, lending.seconds / 3)
        pump = Pump(stream, self._log, max_wait=max_wait, bounded=self._bounded)
        spool = Spool(
            stream,
            spooling,
            pump,
            self._pending,
            max_records=self._log.max_records,
            max_bytes=self._log.max_bytes,
        )
        opened.set_result((stream, spool))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pump.run())
            tasks.create_task(spool.run())
