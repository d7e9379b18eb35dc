"""Read one partition of a shuffle: its records, its watermark and its end."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, final

from fanout.core.events import End
from fanout.core.positions import Cursor
from fanout.core.sentence import Suggestion
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

log = logging.getLogger(__name__)


def producers_at(position: Position) -> Producers:
    """Return the producers of a partition at a position.

    Args:
        position: A position of a shuffle, from statistics or a checkpoint.

    Raises:
        PositionError: If the state that is stored with the position is damaged.
    """
    return Producers.from_state(position.state if isinstance(position, Cursor) else "")


@final
class ShuffleReader:
    """Turn a subscription to a partition of Kafka into one to a partition of a shuffle.

    `liveness` lasts over all subscriptions to the partition. `check_partitions` gets the number of
    partitions that producers announce, and raises if the topic has another number. PositionError is
    raised if the state that is stored with the position is damaged.
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
        """Yield pieces, and `End` once every producer has ended and nothing follows.

        Raises:
            BadFrameError: If a record is no frame, and is not to be skipped.
            ServiceError: If the topic has another number of partitions than producers announce.
            SilentProducerError: If a producer is silent, and is not to be left out.
        """
        waits_at_end = False
        while True:
            began = asyncio.get_running_loop().time()
            batch = await anext(batches)
            waited = asyncio.get_running_loop().time() - began
            if waits_at_end:
                # The subscription reports an empty partition at this interval. A longer wait has
                # other causes than the producers: memory, the network, or other code in the loop.
                self._liveness.waited(min(waited, HEARTBEAT))
            assert not isinstance(batch, End), "a partition of Kafka has no end"
            waits_at_end = batch.behind == 0
            reserved = True  # the memory of the whole batch, which the first piece takes over
            for piece in self._cutter.cut(batch):
                if self._producers.partitions is not None:
                    await self._check_partitions(self._producers.partitions)
                if not reserved and piece.nbytes:
                    await reserve(piece.nbytes)
                yield piece
                reserved = False
            del batch, piece  # free the records before the next wait
            if waits_at_end and self._producers.ended:
                yield End(self._split)
                return
            if waits_at_end and self._leave_out():
                yield self._cutter.without_records()

    def _on_frame(self, frame: ControlFrame) -> None:
        self._liveness.note_frame(frame.generation, frame.producer)

    def _leave_out(self) -> bool:
        """Leave out silent producers; return whether there are any."""
        silent = self._liveness.timed_out(self._producers.awaited)
        if not silent:
            return False
        names = ", ".join(map(str, silent))
        message = (
            f"these producers of {self._split}, of generation {self._producers.generation}, have "
            f"written nothing for {self._liveness.timeout:g} s: {names}"
        )
        if not self._leave_out_silent:
            raise SilentProducerError(
                f"{message}; start them again",
                Suggestion.of(", or go on without them: {on_silent_producer='leave_out'}"),
            )
        log.warning("%s; the watermark goes on without them", message)
        self._producers.leave_out(silent)
        return True
