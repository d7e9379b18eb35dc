"""Read one partition of a shuffle: records, watermarks, and its end."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, final

from fanout.core.events import End
from fanout.core.positions import Cursor
from fanout.errors import SilentProducerError
from fanout.kafka.reading.subscription import HEARTBEAT
from fanout.kafka.shuffle.batch_cutter import BatchCutter
from fanout.kafka.shuffle.producers import Producers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from fanout.core.events import Batch, Split
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kafka.shuffle.frames import ControlFrame
    from fanout.kafka.shuffle.producers import Liveness

__all__ = ("ShuffleReader", "producers_at")

log = logging.getLogger(__name__)


def producers_at(position: Position) -> Producers:
    """Return what is known of the producers of a partition at a position.

    Args:
        position: A position of a shuffle, as statistics and checkpoints have it.

    Raises:
        PositionError: If what is stored with it is damaged.
    """
    return Producers.from_state(position.state if isinstance(position, Cursor) else "")


@final
class ShuffleReader:
    """Turn one subscription to a partition into one to a partition of a shuffle.

    Args:
        split: The partition.
        position: Where the subscription begins.
        may_lose: Whether what is no frame is left out, as a gap.
        may_leave_out: Whether the watermark goes on without a producer that is silent.
        silence: For how long producers have said nothing, in this subscription and those before.
        check: Called with the number of partitions that producers announce; raises where the topic
            has another number.

    Raises:
        PositionError: If what is stored with the position is damaged.
    """

    def __init__(
        self,
        split: Split,
        position: Position,
        *,
        skip_bad_frames: bool,
        leave_out_silent: bool,
        liveness: Liveness,
        check_partitions: Callable[[int], Awaitable[None]],
    ) -> None:
        self._split = split
        self._leave_out_silent = leave_out_silent
        self._liveness = liveness
        self._check_partitions = check_partitions
        self._producers = producers_at(position)
        self._cutter = BatchCutter(
            split,
            position,
            self._producers,
            skip_bad_frames=skip_bad_frames,
            on_frame=self._on_frame,
        )

    async def read(
        self, batches: AsyncIterator[Batch | End], reserve: Reserve
    ) -> AsyncGenerator[Batch | End]:
        """Yield pieces, and the end where every producer has ended and nothing comes after it.

        Args:
            batches: What the partition has, with the columns of `FRAMED`.
            reserve: Waits until memory may be taken.

        Raises:
            BadFrameError: If a record is no frame, and may not be lost.
            ServiceError: If the topic has another number of partitions than producers announce.
            SilentProducerError: If a producer is silent for too long, and may not be left out.
        """
        waits_at_end = False
        while True:
            began = asyncio.get_running_loop().time()
            batch = await anext(batches)
            waited = asyncio.get_running_loop().time() - began
            if waits_at_end:
                # It tells that there is nothing after this long. What takes longer is not the
                # producers' fault: memory, the network, or other code in the loop.
                self._liveness.waited(min(waited, HEARTBEAT))
            assert not isinstance(batch, End), "a partition of Kafka has no end"
            waits_at_end = batch.behind == 0
            reserved = True  # for all that was read, and handed over with the first piece
            for piece in self._cutter.cut(batch):
                if self._producers.partitions is not None:
                    await self._check_partitions(self._producers.partitions)
                if not reserved and piece.nbytes:
                    await reserve(piece.nbytes)
                yield piece
                reserved = False
            del batch, piece  # nobody here holds on to records while others are waited for
            if waits_at_end and self._producers.ended:
                yield End(self._split)
                return
            if waits_at_end and self._leave_out():
                yield self._cutter.without_records()

    def _on_frame(self, frame: ControlFrame) -> None:
        self._liveness.note_frame(frame.generation, frame.producer)

    def _leave_out(self) -> bool:
        """Leave out producers that are silent for too long; tell whether there are any."""
        silent = self._liveness.timed_out(self._producers.awaited)
        if not silent:
            return False
        names = ", ".join(map(str, silent))
        message = (
            f"of generation {self._producers.generation} of the producers of {self._split}, these "
            f"have written nothing for {self._liveness.timeout:g} s: {names}"
        )
        if not self._leave_out_silent:
            raise SilentProducerError(
                f"{message}; start them again, or go on without them: "
                f"on_silent_producer='leave_out'"
            )
        log.warning("%s; its watermark goes on without them", message)
        self._producers.leave_out(silent)
        return True
