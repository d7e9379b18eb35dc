"""Write what the producers of a simulated shuffle send to one partition.

They do what docs/shuffle.md asks of them: a hello before anything else, no record at or below their
own watermark, the present watermark before the next record where they were idle. The
frames of an aborted transaction do not count.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias, final

from fanout.kafka.shuffle.frames import (
    EndFrame,
    HelloFrame,
    IdleFrame,
    WatermarkFrame,
    encode_control,
)
from tests.provers.simulation.kafka.log_builder import BatchContent
from tests.provers.simulation.kafka.partition_log import KafkaRecord, ProducerFrames
from tests.provers.simulation.kafka.topic_writer import HELD
from tests.provers.simulation.randomness import happens
from tests.provers.simulation.service_clock import millis
from tests.support.kafka.record_batches import BatchRow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from fanout.kafka.shuffle.frames import ControlFrame
    from tests.provers.simulation.kafka.log_builder import LogBuilder
    from tests.provers.simulation.kafka.shuffle.generations import (
        GenerationMember,
        ProducerGeneration,
    )

__all__ = ("ShuffleLogWriter",)

_FIRST_ID: Final = 1000
# How old records are, in milliseconds: usually, and those of a producer that repeats what the one
# before it has written.
_OLD: Final = 20_000
_REPEATED: Final = 60_000


@final
@dataclass(frozen=True, slots=True)
class _DataFrame:
    """A record to be written; its event time in milliseconds, or none."""

    event_time: int | None
    value: bytes

    def frame(self) -> bytes:
        if self.event_time is None:
            return b"\x01\x01" + self.value
        return b"\x01\x00" + self.event_time.to_bytes(8, "big", signed=True) + self.value


_Frame: TypeAlias = "_DataFrame | ControlFrame"


@final
@dataclass(frozen=True, slots=True)
class _Announced:
    """The last announcements of a producer, as far as it knows them."""

    hello: bool = False
    watermark: int | None = None
    idle: bool = False
    ended: bool = False


@final
@dataclass(slots=True)
class _Producer:
    """One producer in this partition.

    `before` holds its announcements before its open transaction, and `last` its last batch.
    """

    generation: ProducerGeneration
    number: int
    id: int
    announced: _Announced = _Announced()
    before: _Announced | None = None
    last: BatchContent | None = None

    @property
    def member(self) -> GenerationMember:
        return self.generation.members[self.number]

    @property
    def hello(self) -> HelloFrame:
        of = self.generation
        return HelloFrame(self.number, of.number, len(of.members), of.partitions)


@final
class ShuffleLogWriter:
    """Let the producers of a shuffle write, one of them at a time.

    Args:
        sheet: Where they write.
        random: Where chance comes from.
        generations: The producers.
    """

    def __init__(
        self, builder: LogBuilder, random: Random, generations: Sequence[ProducerGeneration]
    ) -> None:
        self._builder = builder
        self._random = random
        self._settled = False
        self._producers = [
            [
                _Producer(generation, number, _FIRST_ID * place + number)
                for number in range(len(generation.members))
            ]
            for place, generation in enumerate(generations, 1)
        ]

    def write(self, at: float) -> None:
        """Let a producer write, or end its transaction, if there is one at that moment."""
        sending = [
            producer
            for producers in self._producers
            for producer in producers
            if producer.member.first <= at < producer.member.last and not producer.announced.ended
        ]
        if not sending:
            return
        producer = self._random.choice(sending)
        if producer.before is not None and producer.id not in self._builder.open:
            # It was cut off with the log, and what was announced still holds.
            producer.before = None
        if producer.before is not None and happens(self._random, 0.5):
            self._finish(at, producer)
        elif producer.last is not None and producer.before is None and self._repeats(producer):
            assert producer.last.frames is not None, "a producer has written it"
            again = replace(producer.last, frames=replace(producer.last.frames, repeated=True))
            self._builder.append(at, None, again)
        else:
            self._send(at, producer, self._frames(at, producer))

    def hold(self, at: float) -> None:
        """Write records of no producer into a transaction that stays open."""
        if self._settled:
            return
        self._builder.append(at, HELD, self._page(at, [_DataFrame(None, b"held")], None))

    def let_go(self, at: float) -> None:
        """End that transaction."""
        self._builder.finish(at, HELD)

    def settle(self, at: float) -> None:
        """End all transactions; let the newest generation say where it stands, or its end.

        From then on, let those who live say where they stand.
        """
        if self._settled:
            self._go_on(at)
            return
        self._settled = True
        for producer in (producer for producers in self._producers for producer in producers):
            if producer.id in self._builder.open:
                self._finish(at, producer)
        self._builder.finish(at, HELD)
        ends, sends = happens(self._random, 0.15), happens(self._random, 0.75)
        for producer in self._producers[-1]:
            alive = producer.member.first <= at < producer.member.last
            if ends:
                self._send(
                    at,
                    producer,
                    [producer.hello, EndFrame(producer.number, producer.generation.number)],
                )
            elif sends and alive and not producer.announced.ended:
                self._send(at, producer, self._last_frames(at, producer))
            self._finish(at, producer)

    def _go_on(self, at: float) -> None:
        """Let live producers repeat their watermark, where another one is silent."""
        left = [producer for producer in self._producers[-1] if not producer.announced.ended]
        living = [
            producer for producer in left if producer.member.first <= at < producer.member.last
        ]
        for producer in living if len(living) < len(left) else []:
            frames: list[_Frame] = [
                producer.hello,
                self._watermark(at, producer, producer.announced),
            ]
            self._builder.append(at, None, self._page(at, frames, producer))
            for frame in frames:
                producer.announced = _after(producer.announced, frame)

    def _last_frames(self, at: float, producer: _Producer) -> list[_Frame]:
        """Draw where a producer stands: at a watermark, which it may repeat, or idle."""
        random, number, generation = self._random, producer.number, producer.generation.number
        watermark = self._watermark(at, producer, producer.announced)
        frames: list[_Frame] = [producer.hello, watermark]
        if happens(random, 0.3):
            frames.append(
                WatermarkFrame(number, generation, watermark.millis - random.randint(0, _OLD))
            )
        if happens(random, 0.3):
            frames.append(IdleFrame(number, generation))
        return frames

    def _repeats(self, producer: _Producer) -> bool:
        return not producer.generation.transactional and happens(self._random, 0.06)

    def _finish(self, at: float, producer: _Producer) -> None:
        transaction = self._builder.finish(at, producer.id)
        if transaction is not None and transaction.aborted and producer.before is not None:
            producer.announced = producer.before
        producer.before = None

    def _send(self, at: float, producer: _Producer, frames: Sequence[_Frame]) -> None:
        producer_id = producer.id if producer.generation.transactional else None
        if producer_id is not None and producer.before is None:
            producer.before = producer.announced
        for frame in frames:
            producer.announced = _after(producer.announced, frame)
        producer.last = self._page(at, frames, producer)
        self._builder.append(at, producer_id, producer.last)

    def _frames(self, at: float, producer: _Producer) -> list[_Frame]:
        """Draw what a producer writes in one batch."""
        random, announced, generation = self._random, producer.announced, producer.generation.number
        frames: list[_Frame] = []
        if announced.idle and announced.watermark is not None:
            frames.append(WatermarkFrame(producer.number, generation, announced.watermark))
        if not announced.hello or announced.idle > bool(frames) or happens(random, 0.1):
            frames.append(producer.hello)
        share = random.choice((0.6, 0.95))
        for _ in range(random.choice((1, 1, 2, 3, 6, 10))):
            record = happens(random, share)
            frames.append(
                self._text(at, announced) if record else self._watermark(at, producer, announced)
            )
            announced = _after(announced, frames[-1])
        if happens(random, 0.3):
            frames.append(self._watermark(at, producer, announced))
        others = [each for each in self._producers_of(producer) if each is not producer]
        if happens(random, 0.12):
            frames.append(IdleFrame(producer.number, generation))
        elif happens(random, 0.05) and not all(each.announced.ended for each in others):
            frames.append(EndFrame(producer.number, generation))
        return frames

    def _producers_of(self, producer: _Producer) -> list[_Producer]:
        return next(producers for producers in self._producers if producer in producers)

    def _text(self, at: float, announced: _Announced) -> _DataFrame:
        random, low = self._random, announced.watermark
        value = random.randbytes(random.choice((0, 1, 10, 100)))
        if happens(random, 0.1):
            return _DataFrame(None, value)
        time = millis(at) - random.randint(0, _REPEATED if low is None else _OLD)
        if low is not None and (time <= low or happens(random, 0.3)):
            time = low + random.choice((1, 1, random.randint(1, _OLD)))
        return _DataFrame(time, value)

    def _watermark(self, at: float, producer: _Producer, announced: _Announced) -> WatermarkFrame:
        """Draw a watermark, which may be one that was sent already."""
        random, low = self._random, announced.watermark
        time = millis(at) - random.randint(0, _OLD)
        if low is not None and happens(random, 0.15):
            time = low - random.choice((0, 1, 1000))
        elif low is not None and (time <= low or happens(random, 0.3)):
            time = low + random.randint(1, _OLD)
        return WatermarkFrame(producer.number, producer.generation.number, time)

    def _page(
        self, at: float, frames: Sequence[_Frame], producer: _Producer | None
    ) -> BatchContent:
        rows: list[BatchRow] = []
        records: list[KafkaRecord] = []
        controls: list[tuple[int, ControlFrame]] = []
        for offset, frame in enumerate(frames):
            if not isinstance(frame, _DataFrame):
                controls.append((offset, frame))
                rows.append(BatchRow(offset, millis(at), None, encode_control(frame)))
                continue
            key = self._random.randbytes(2)
            rows.append(BatchRow(offset, millis(at), key, frame.frame()))
            records.append(
                KafkaRecord(offset, millis(at), key, frame.value, event_time=frame.event_time)
            )
        sent = None
        if producer is not None:
            sent = ProducerFrames(producer.generation.number, producer.number, tuple(controls))
        return BatchContent(rows, records, len(rows), sent)


def _after(announced: _Announced, frame: _Frame) -> _Announced:
    """Return the announcements of a producer after one more frame."""
    match frame:
        case HelloFrame():
            return replace(announced, hello=True, idle=False)
        case WatermarkFrame(millis=time):
            highest = time if announced.watermark is None else max(time, announced.watermark)
            return replace(announced, watermark=highest, idle=False)
        case IdleFrame():
            return replace(announced, idle=True)
        case EndFrame():
            return replace(announced, ended=True)
        case _:
            return announced
