"""The watermark that a reader of a partition has to have, from the frames that it has received.

What is promised (docs/shuffle.md), and what a run fails of:

- **Late.** A producer writes no record whose event time is at or below its own watermark. So where
  a reader reports a watermark, it has excluded the records at or below it of every producer that
  takes part at that place of the log: one of the newest generation
  that was announced, with or without a frame of its own so far, whose last frame is neither IDLE
  nor END, and which has not been silent for `producer_timeout`. If such a record comes behind
  that place, the watermark was too high.
- It binds no other producer. A generation that comes later may repeat what its predecessor wrote,
  and one that was superseded may not know it. A producer that was away when the watermark went on
  may have older records. Without transactions a producer may write twice what it does not know to
  have arrived. And a reader has not received what it lost, because that expired or was cut off.
- **Back.** The watermark never goes back, also where a process goes on from stored positions.
- **Stuck.** As soon as all announced producers have sent a frame, the watermark is at least the
  least one of those that take part; and where silent ones are left out, that of those that go on
  sending.
- **Ended.** A partition ends where all that were announced have ended. That is final: what is
  written behind it, or in its place where a log is cut off, is not read.
- The watermark of a stream is the least of its partitions', also as it goes on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, final

from fanout.kafka.shuffle.frames import EndFrame, HelloFrame, IdleFrame, WatermarkFrame
from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.kafka.moments import KafkaSometimes

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable

    from fanout.kafka.partitions import Partition
    from fanout.kafka.shuffle.frames import ControlFrame
    from tests.provers.simulation.kafka.partition_log import (
        KafkaRecord,
        ProducerFrames,
        StoredBatch,
    )

__all__ = ("ExpectedWatermark",)


@final
@dataclass(frozen=True, slots=True)
class _LastFrame:
    """The last control frame of a producer, and its highest watermark so far."""

    at: float
    watermark: int | None = None
    away: bool = False
    ended: bool = False


@final
@dataclass(slots=True)
class ExpectedWatermark:
    """The frames that the reader of one partition has received up to an offset.

    Args:
        partition: The partition.
        offset: The first offset that it has not received.
        era: In which era of the partition that is.
        moments: The count of each coincidence.
        timeout: After how many seconds a producer is silent.
        since: When the process has begun that reads it.
        watermark: The watermark that it has reported last.
        blind: Whether it is unknown what it has received; then nothing is checked any more.
    """

    partition: Partition
    offset: int
    era: int
    moments: Counter[str]
    timeout: float = math.inf
    since: float = 0.0
    watermark: int | None = None
    blind: bool = False
    _generation: int = -1
    _began: float = -math.inf
    _announced: int | None = None
    _last_frames: dict[int, _LastFrame] = field(default_factory=dict)
    # The watermark that binds the producers of the generation, and those that it binds less, as
    # they were away when it was reported.
    _excluded: int | None = None
    _spared: dict[int, int | None] = field(default_factory=dict)
    # The producers that were away since the watermark was checked; all in a new generation.
    _away: set[int] = field(default_factory=set)
    # The producers that the reader may have left out, and has received no frame of since.
    _silent: set[int] = field(default_factory=set)
    _begins: bool = True

    def copy(self) -> ExpectedWatermark:
        """Return the same once more."""
        return replace(
            self,
            _last_frames=dict(self._last_frames),
            _spared=dict(self._spared),
            _away=set(self._away),
            _silent=set(self._silent),
        )

    def resume(self, now: float) -> None:
        """Continue in another process, which knows the producers that the one before left out."""
        self.since = 0.0
        self._note_silent(now)
        self.since = now

    @property
    def has_producers(self) -> bool:
        """Whether a producer has sent a control frame."""
        return bool(self._last_frames)

    def forget(self, offset: int, era: int) -> None:
        """Begin anew in a log that has taken the place of another one."""
        self.offset, self.era = offset, era
        self._supersede(-1, -math.inf)

    def receive(
        self, batches: Iterable[tuple[StoredBatch, ProducerFrames]], end: int, now: float
    ) -> None:
        """Receive the frames up to an offset.

        Args:
            batches: The batches that producers have written there.
            end: The offset.
            now: The virtual seconds.

        Raises:
            OracleError: If there is a record that was excluded.
        """
        for stored, frames in batches:
            controls = [(stored.base + offset, each) for offset, each in frames.controls]
            for offset, each in sorted([*controls, *((r.offset, r) for r in stored.records)]):
                if not self.offset <= offset < end:
                    continue
                if isinstance(each, HelloFrame | WatermarkFrame | IdleFrame | EndFrame):
                    self._receive_control(each, stored.at, now)
                elif not frames.repeated:
                    self._check(each, frames)
        self.offset = end

    def report(self, watermark: int | None, now: float) -> None:
        """Check and record the watermark that a reader reports here.

        Args:
            watermark: The watermark.
            now: The virtual seconds.

        Raises:
            OracleError: If it goes back.
        """
        self._note_silent(now)
        before = self.watermark
        if before is not None and (watermark is None or watermark < before):
            raise OracleError(
                f"watermark went back: that of {self.partition} was {before}, and is {watermark} "
                f"at {self.offset}"
            )
        if watermark != before:
            self.watermark = watermark
            beyond = watermark is not None and (self.due is None or watermark > self.due)
            self.moments[KafkaSometimes.WITHOUT_SILENT] += beyond and bool(self._silent)
            if not self._begins:
                spared = {number: self._bound(number) for number in self._away}
                self._excluded, self._spared = watermark, spared
        self._begins = False
        self._away = {number for number, last in self._last_frames.items() if last.away}

    @property
    def due(self) -> int | None:
        """The least that the watermark has to be here; None for anything."""
        if self._announced is None or len(self._last_frames) < self._announced:
            return None
        return _least(last for last in self._last_frames.values() if not last.away)

    @property
    def ended(self) -> bool:
        """Whether all producers that were announced have ended, or it is unknown."""
        ended = sum(last.ended for last in self._last_frames.values())
        return self.blind or ended == self._announced

    def due_without(self, silent_since: float) -> int | None:
        """Return the least that the watermark has to be without the silent producers.

        Args:
            silent_since: Producers without a frame from then on are silent, and stay so.
        """
        if self._announced is None:
            return None
        last_frames = self._last_frames.values()
        return _least(last for last in last_frames if not last.away and last.at > silent_since)

    def silent(self, now: float) -> set[int]:
        """Return the producers that may be silent, of those that were announced."""
        numbers = range(self._announced or 0)
        return {
            number
            for number in numbers
            if now - max(self._last_sent_at(number), self.since) >= self.timeout
        }

    def _last_sent_at(self, producer: int) -> float:
        last = self._last_frames.get(producer)
        return self._began if last is None else last.at

    def _note_silent(self, now: float) -> None:
        self._silent |= self.silent(now)
        self._away |= self._silent

    def _bound(self, producer: int) -> int | None:
        return self._spared.get(producer, self._excluded)

    def _check(self, record: KafkaRecord, frames: ProducerFrames) -> None:
        if record.event_time is None or self.watermark is None:
            return
        bound = self._bound(frames.producer) if frames.generation == self._generation else None
        if bound is not None and record.event_time <= bound:
            raise OracleError(
                f"late: producer {frames.producer} of generation {frames.generation} of "
                f"{self.partition} has a record of {record.event_time} at {record.offset}, but the "
                f"watermark was {bound} before"
            )
        self.moments[KafkaSometimes.NOT_BOUND] += record.event_time <= self.watermark

    def _receive_control(self, control: ControlFrame, at: float, now: float) -> None:
        if control.generation < self._generation:
            self.moments[KafkaSometimes.OUTDATED] += 1
            return
        if control.generation > self._generation:
            self.moments[KafkaSometimes.SUPERSEDED] += self.has_producers
            self._supersede(control.generation, at)
        self._note_silent(now)  # until its frame is received
        self._silent.discard(control.producer)
        before = self._last_frames.get(control.producer, _LastFrame(at))
        match control:
            case HelloFrame(producers=announced):
                self._announced = announced
                last = _LastFrame(at, before.watermark)
            case WatermarkFrame(millis=millis):
                highest = millis if before.watermark is None else max(millis, before.watermark)
                last = _LastFrame(at, highest)
            case IdleFrame() | EndFrame():
                last = _LastFrame(
                    at, before.watermark, away=True, ended=isinstance(control, EndFrame)
                )
                self._away.add(control.producer)
        self.moments[KafkaSometimes.BACK_FROM_IDLE] += before.away and not last.away
        self._last_frames[control.producer] = last

    def _supersede(self, generation: int, at: float) -> None:
        self._generation, self._began = generation, at
        self._announced, self._begins = None, True
        self._last_frames, self._away, self._silent = {}, set(), set()
        self._excluded, self._spared = None, {}


def _least(last_frames: Iterable[_LastFrame]) -> int | None:
    """Return the least watermark of some producers; None where one has none, or there are none."""
    watermarks = [last.watermark for last in last_frames]
    known = [watermark for watermark in watermarks if watermark is not None]
    return min(known) if known and len(known) == len(watermarks) else None
