"""What became of a partition that is not known any more, or not at the offset of its reader.

Both may be a false alarm: a broker that has just started, or has just become the leader, may not
know yet what there is. So a loss is declared only where the cluster has said the same several
times, some seconds apart, and the reader was refused each time and met nothing else in between.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, final

from aiokafka.errors import UnknownTopicOrPartitionError

from fanout.core.cancellation import prefer_cancellation
from fanout.core.policy import Fatal, Pace, Retry, Skip
from fanout.core.positions import Cursor
from fanout.kafka.intervals import KAFKA_INTERVALS
from fanout.kafka.policy import Remedy, judge
from fanout.kafka.reading.transport import OffsetSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.core.policy import Verdict
    from fanout.core.positions import Position
    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.transport import KafkaTransport

__all__ = ("DataLossCheck",)

_SURE_TIMES: Final = 4
# What is refused although nothing is wrong with it is asked for about ten minutes.
_CONTRADICTIONS: Final = 40

_WAYS_OUT: Final = (
    "on_data_loss='earliest' goes on with the oldest record that is left; or start anew, without "
    "the stored position"
)

log = logging.getLogger(__name__)


@final
@dataclass(slots=True)
class _Doubt:
    """Something that may be lost: where the reader stands, and since when it was refused.

    `times` counts the looks that were some seconds apart, and `counted_at` is the last of them.
    """

    remedy: Remedy
    position: Position
    since: float
    times: int = 0
    counted_at: float = -math.inf


@final
@dataclass(frozen=True, slots=True)
class _Loss:
    """What is lost, and where a reader that may lose it goes on."""

    reason: str
    to: Cursor


@final
class DataLossCheck:
    """Say how the reader of a partition goes on whose records may be lost.

    Args:
        transport: The calls.
        on_data_loss: What to do where they are.
        stops: The first offset that is not wanted, of each partition that has one.
    """

    def __init__(
        self,
        transport: KafkaTransport,
        *,
        on_data_loss: Literal["fail", "earliest"],
        stops: Mapping[Partition, int],
    ) -> None:
        self._transport = transport
        self._may_lose = on_data_loss == "earliest"
        self._stops = stops
        self._intervals = KAFKA_INTERVALS.current
        self._doubts: dict[Partition, _Doubt] = {}

    def forget(self, partition: Partition) -> None:
        """Begin to doubt anew: a partition was read from, or was refused because of something else.

        A cluster in which brokers start again and again says now and then that it knows no topic.
        """
        self._doubts.pop(partition, None)

    async def verdict(self, remedy: Remedy, partition: Partition, position: Position) -> Verdict:
        """Find out what became of a partition; it raises nothing.

        Args:
            remedy: What has to be found out.
            partition: The partition.
            position: Where its reader stands.
        """
        try:
            loss = await self._look(remedy, partition, position)
        except Exception as error:  # noqa: BLE001 - the table tells what it means
            prefer_cancellation(error)
            log.warning("what became of %s is not known: %s", partition, error)
            verdict = judge(error, first=False)
            return Retry() if isinstance(verdict, Remedy) else verdict
        if loss is None:
            self._doubts.pop(partition, None)
            return Retry(hint="the partition has this offset", limit=_CONTRADICTIONS)
        if not self._sure(remedy, partition, position):
            return Retry(hint=f"asked again, as it may be a false alarm: {loss.reason}")
        if not self._may_lose:
            return Fatal(f"{loss.reason}; {_WAYS_OUT}")
        if loss.to == position:
            return Retry(Pace.SLOW, hint=loss.reason)
        return Skip(loss.to, loss.reason)

    def _sure(self, remedy: Remedy, partition: Partition, position: Position) -> bool:
        now = asyncio.get_running_loop().time()
        doubt = self._doubts.get(partition)
        if doubt is None or (doubt.remedy, doubt.position) != (remedy, position):
            doubt = self._doubts[partition] = _Doubt(remedy, position, now)
        if now - doubt.counted_at >= self._intervals.loss_checks_apart:
            doubt.times += 1
            doubt.counted_at = now
        since = now - doubt.since
        return doubt.times >= _SURE_TIMES and since >= self._intervals.loss_confirmed_after

    async def _look(self, remedy: Remedy, partition: Partition, position: Position) -> _Loss | None:
        """Ask the cluster; None where nothing is lost."""
        if remedy is Remedy.FIND_TOPIC:
            return await self._look_for_topic(partition)
        if not isinstance(position, Cursor):
            return None  # it names no offset, so none can be lost
        return await self._look_for_offset(partition, position.sequence + 1)

    async def _look_for_topic(self, partition: Partition) -> _Loss | None:
        told = (await self._transport.describe([partition.topic]))[partition.topic]
        match told:
            case UnknownTopicOrPartitionError():
                reason = f"the topic {partition.topic!r} is gone: somebody has deleted it"
            case Exception() as error:
                raise error
            case numbers if partition.number in numbers:
                return None
            case _:
                reason = (
                    f"{partition} is gone: the topic was deleted, and created anew with fewer "
                    f"partitions"
                )
        # A topic that comes back begins anew.
        return self._lost(reason, partition, start=0, end=0)

    async def _look_for_offset(self, partition: Partition, offset: int) -> _Loss | None:
        start = await self._edge(partition, OffsetSpec.EARLIEST)
        end = await self._edge(partition, OffsetSpec.LATEST)
        if start <= offset <= end:
            return None
        if offset < start:
            reason = (
                f"the records of {partition} from offset {offset} to {start - 1} have expired, or "
                f"were deleted, before they were read"
            )
        else:
            reason = (
                f"{partition} ends at offset {end}, before offset {offset}, with which its reader "
                f"goes on: the topic was deleted and created anew, or an unclean leader election "
                f"has cut it off, or it never had that offset"
            )
        return self._lost(reason, partition, start=start, end=end)

    async def _edge(self, partition: Partition, edge: OffsetSpec) -> int:
        offset = (await self._transport.offsets({partition: edge}))[partition]
        assert offset is not None, "a partition has two ends"
        return offset

    def _lost(self, reason: str, partition: Partition, *, start: int, end: int) -> _Loss:
        # What a bounded read has to wait for may never come. Where it stops is beyond the end, so
        # the next one finds the same loss, and begins with what is left.
        stop = self._stops.get(partition)
        to = start if stop is None or stop <= end else stop
        return _Loss(reason, Cursor(to - 1))
