"""Detect data loss: a partition that was deleted, cut off, or has lost the offset of its reader.

Both may be a false alarm: a broker that has just started, or has just become the leader, may lack
metadata. So a loss counts only when the cluster reports it several times, some seconds apart, and
the reader got the same error each time and nothing else in between.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, final

from aiokafka.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError

from fanout.core.cancellation import prefer_cancellation
from fanout.core.error_text import text_of
from fanout.core.policy import Fatal, Pace, Retry, Skip
from fanout.core.positions import Cursor, Horizon
from fanout.core.sentence import Sentence
from fanout.kafka.intervals import KAFKA_INTERVALS
from fanout.kafka.reading.offsets import (
    NO_EPOCH,
    cursor_before,
    epoch_at,
    next_offset,
    topic_id_at,
)
from fanout.kafka.reading.policy import Remedy, judge
from fanout.kafka.reading.transport import (
    FetchRefused,
    LogDivergedError,
    OffsetSpec,
    PartitionFetch,
    is_replaced,
)

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from fanout.core.policy import Verdict
    from fanout.core.positions import Position
    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.transport import KafkaTransport

_CONFIRMATIONS: Final = 4
# How often an error is tried again that the cluster contradicts: about ten minutes.
_CONTRADICTIONS: Final = 40

_HELP: Final = Sentence.of(
    "{on_data_loss='earliest'} goes on with the oldest record that is left; or start anew, without "
    "the stored position"
)

log = logging.getLogger(__name__)


@final
@dataclass(slots=True)
class _Suspicion:
    """A possible loss at the position of a reader, and since when it is reported.

    `times` counts the checks that were some seconds apart; the last of them was at `counted_at`.
    """

    remedy: Remedy
    position: Position
    since: float
    times: int = 0
    counted_at: float = -math.inf


@final
@dataclass(frozen=True, slots=True)
class _Loss:
    """The reason of a loss, where a reader that may skip it goes on, and where it stops then."""

    reason: str
    to: Cursor
    stop: int | None = None  # None where it was before


@final
class DataLossCheck:
    """Decide how a reader goes on whose partition or offset may be lost.

    `stops` has the first offset not to deliver, of each partition that has one.
    """

    def __init__(
        self,
        transport: KafkaTransport,
        *,
        on_data_loss: Literal["fail", "earliest"],
        stops: MutableMapping[Partition, int],
    ) -> None:
        self._transport = transport
        self._may_lose = on_data_loss == "earliest"
        self._stops = stops
        self._intervals = KAFKA_INTERVALS.current
        self._suspicions: dict[Partition, _Suspicion] = {}

    def forget(self, partition: Partition) -> None:
        """Drop a suspicion: the partition was read, or had another error.

        A cluster whose brokers restart repeatedly reports topics as unknown now and then.
        """
        self._suspicions.pop(partition, None)

    async def verdict(self, remedy: Remedy, partition: Partition, position: Position) -> Verdict:
        """Find out whether a partition or the records at a position are lost; it raises nothing."""
        try:
            loss = await self._check(remedy, partition, position)
        except Exception as error:  # noqa: BLE001 - the policy table decides
            prefer_cancellation(error)
            log.warning(
                "it is not known whether %s has lost records: %s", partition, text_of(error)
            )
            verdict = judge(error, first=False)
            return Retry() if isinstance(verdict, Remedy) else verdict
        if loss is None:
            self._suspicions.pop(partition, None)
            return Retry(hint="the partition has this offset", limit=_CONTRADICTIONS)
        if not self._confirmed(remedy, partition, position):
            return Retry(hint=f"tried again, as it may be a false alarm: {loss.reason}")
        if not self._may_lose:
            return Fatal(Sentence(loss.reason, "; ", _HELP))
        if loss.stop is not None:
            self._stops[partition] = loss.stop
        if loss.to == position and _log_at(loss.to) == _log_at(position):
            return Retry(Pace.SLOW, hint=loss.reason)
        return Skip(loss.to, loss.reason)

    def _confirmed(self, remedy: Remedy, partition: Partition, position: Position) -> bool:
        now = asyncio.get_running_loop().time()
        suspicion = self._suspicions.get(partition)
        if suspicion is None or (suspicion.remedy, suspicion.position) != (remedy, position):
            suspicion = self._suspicions[partition] = _Suspicion(remedy, position, now)
        if now - suspicion.counted_at >= self._intervals.loss_checks_apart:
            suspicion.times += 1
            suspicion.counted_at = now
        since = now - suspicion.since
        return suspicion.times >= _CONFIRMATIONS and since >= self._intervals.loss_confirmed_after

    async def _check(
        self, remedy: Remedy, partition: Partition, position: Position
    ) -> _Loss | None:
        """Ask the cluster for the loss; None where nothing is lost."""
        if remedy is Remedy.FIND_TOPIC:
            return await self._check_topic(partition)
        if not isinstance(position, Cursor):
            return None  # it names no offset, so none can be lost
        return await self._check_offset(partition, position)

    async def _check_topic(self, partition: Partition) -> _Loss | None:
        described = (await self._transport.describe([partition.topic]))[partition.topic]
        match described:
            case UnknownTopicOrPartitionError():
                reason = f"the topic {partition.topic!r} was deleted"
            case Exception() as error:
                raise error
            case numbers if partition.number in numbers:
                return None
            case _:
                reason = (
                    f"{partition} is gone: the topic was deleted, and created anew with fewer "
                    f"partitions"
                )
        # A topic that comes back begins anew, with another id.
        return self._lost(reason, partition, Horizon(), start=0, end=0)

    async def _check_offset(self, partition: Partition, position: Cursor) -> _Loss | None:
        offset = next_offset(position)
        start = await self._look_up(partition, OffsetSpec.EARLIEST)
        end = await self._look_up(partition, OffsetSpec.LATEST)
        if is_replaced(self._transport, partition, topic_id_at(position)):
            reason = (
                f"the topic {partition.topic!r} was deleted and created anew: what it had from "
                f"offset {offset} on is lost, and the records of {partition} are others"
            )
            to = cursor_before(start, topic_id=self._transport.topic_id(partition.topic))
            stop = self._stops.get(partition)
            return _Loss(reason, to, None if stop is None else max(start, min(stop, end)))
        cut = await self._check_epoch(partition, position, start=start, end=end)
        if cut is not None or start <= offset <= end:
            return cut
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
        return self._lost(reason, partition, position, start=start, end=end)

    async def _check_epoch(
        self, partition: Partition, position: Cursor, *, start: int, end: int
    ) -> _Loss | None:
        """Ask the leader whether it still has the record before a position."""
        offset, epoch = next_offset(position), epoch_at(position)
        leader = self._transport.leader(partition)
        if epoch == NO_EPOCH or leader is None or offset < start:
            return None
        fetch = {partition: PartitionFetch(offset, 1, epoch)}
        match (await self._transport.fetch(leader, fetch, max_wait=0.0)).get(partition):
            case FetchRefused(LogDivergedError() as error):
                # A topic that is created anew begins with epoch 0 again, so that nobody can tell
                # which of its records the reader has had.
                where = f"at offset {error.end}" if error.epoch == epoch else f"before {offset}"
                reason = (
                    f"{partition} was cut off {where} by an unclean leader election, or its topic "
                    f"was deleted and created anew: records that were read, up to offset "
                    f"{offset - 1}, are lost at the brokers, and others may have their offsets"
                )
            case FetchRefused(OffsetOutOfRangeError()):
                if offset > end:
                    return None
                reason = (
                    f"{partition} has never had the leader epoch {epoch}, in which the record "
                    f"before offset {offset} was read: the topic was deleted and created anew"
                )
            case FetchRefused(error):
                raise error
            case _:
                return None
        return self._lost(reason, partition, position, start=start, end=end)

    async def _look_up(self, partition: Partition, spec: OffsetSpec) -> int:
        offset = (await self._transport.offsets({partition: spec}))[partition]
        assert offset is not None, "a partition has two ends"
        return offset

    def _lost(
        self, reason: str, partition: Partition, position: Position, *, start: int, end: int
    ) -> _Loss:
        # The records that a bounded read waits for may never come. Its position becomes the stop,
        # beyond the end, so the next read finds the same loss and begins with what is left.
        stop = self._stops.get(partition)
        to = start if stop is None or stop <= end else stop
        return _Loss(reason, cursor_before(to, topic_id=topic_id_at(position)))


def _log_at(position: Position) -> tuple[int, str]:
    """Return what tells the log of a position from another one of the same partition."""
    return epoch_at(position), topic_id_at(position)
