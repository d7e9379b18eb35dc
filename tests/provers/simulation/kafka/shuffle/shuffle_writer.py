"""Write what the producers of a simulated shuffle send to one partition.

They do what docs/shuffle.md asks of them: a hello before anything else, no record at or below their
own watermark, the present watermark before the next record where they were idle. What they have
said in a transaction that was aborted they have not said.
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
from tests.provers.record_batches import BatchRow
from tests.provers.simulation.kafka.log_builder import BatchContent
from tests.provers.simulation.kafka.partition_log import KafkaRecord, ProducerFrames
from tests.provers.simulation.kafka.topic_writer import HELD
from tests.provers.simulation.randomness import happens
from tests.provers.simulation.service_clock import millis

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
    """What a producer has told of itself, for as long as it knows."""

    hello: bool = False
    watermark: int | None = None
    idle: bool = False
    ended: bool = False


@final
@dataclass(slots=True)
class _Producer:
    """One producer in this partition.

    `before` is what it had told before its open transaction, and `last` what it has written last.
    """

    generation: ProducerGeneration
    number: int
    id: int
    told: _Announced = _Announced()
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
        self._voices = [
            [
                _Producer(generation, number, _FIRST_ID * place + number)
                for number in range(len(generation.members))
            ]
            for place, generation in enumerate(generations, 1)
        ]

    def write(self, at: float) -> None:
        """Let a producer write, or end its transaction, if there is one at that moment."""
        speaking = [
            voice
            for voices in self._voices
            for voice in voices
            if voice.member.first <= at < voice.member.last and not voice.told.ended
        ]
        if not speaking:
            return
        voice = self._random.choice(speaking)
        if voice.before is not None and voice.id not in self._builder.open:
            voice.before = None  # it was cut off with the log, and what was told holds all the same
        if voice.before is not None and happens(self._random, 0.5):
            self._finish(at, voice)
        elif voice.last is not None and voice.before is None and self._repeats(voice):
            assert voice.last.said is not None, "a producer has written it"
            again = replace(voice.last, said=replace(voice.last.said, repeated=True))
            self._builder.append(at, None, again)
        else:
            self._say(at, voice, self._frames(at, voice))

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
        for voice in (voice for voices in self._voices for voice in voices):
            if voice.id in self._builder.open:
                self._finish(at, voice)
        self._builder.finish(at, HELD)
        ends, speaks = happens(self._random, 0.15), happens(self._random, 0.75)
        for voice in self._voices[-1]:
            lives = voice.member.first <= at < voice.member.last
            if ends:
                self._say(at, voice, [voice.hello, EndFrame(voice.number, voice.generation.number)])
            elif speaks and lives and not voice.told.ended:
                self._say(at, voice, self._last_words(at, voice))
            self._finish(at, voice)

    def _go_on(self, at: float) -> None:
        """Let live producers repeat their watermark, where another one is silent."""
        left = [voice for voice in self._voices[-1] if not voice.told.ended]
        living = [voice for voice in left if voice.member.first <= at < voice.member.last]
        for voice in living if len(living) < len(left) else []:
            words: list[_Frame] = [voice.hello, self._watermark(at, voice, voice.told)]
            self._builder.append(at, None, self._page(at, words, voice))
            for word in words:
                voice.told = _after(voice.told, word)

    def _last_words(self, at: float, voice: _Producer) -> list[_Frame]:
        """Draw where a producer stands: at a watermark, which it may repeat, or idle."""
        random, number, generation = self._random, voice.number, voice.generation.number
        watermark = self._watermark(at, voice, voice.told)
        words: list[_Frame] = [voice.hello, watermark]
        if happens(random, 0.3):
            words.append(
                WatermarkFrame(number, generation, watermark.millis - random.randint(0, _OLD))
            )
        if happens(random, 0.3):
            words.append(IdleFrame(number, generation))
        return words

    def _repeats(self, voice: _Producer) -> bool:
        return not voice.generation.transactional and happens(self._random, 0.06)

    def _finish(self, at: float, voice: _Producer) -> None:
        transaction = self._builder.finish(at, voice.id)
        if transaction is not None and transaction.aborted and voice.before is not None:
            voice.told = voice.before
        voice.before = None

    def _say(self, at: float, voice: _Producer, frames: Sequence[_Frame]) -> None:
        producer = voice.id if voice.generation.transactional else None
        if producer is not None and voice.before is None:
            voice.before = voice.told
        for frame in frames:
            voice.told = _after(voice.told, frame)
        voice.last = self._page(at, frames, voice)
        self._builder.append(at, producer, voice.last)

    def _frames(self, at: float, voice: _Producer) -> list[_Frame]:
        """Draw what a producer writes in one batch."""
        random, told, generation = self._random, voice.told, voice.generation.number
        frames: list[_Frame] = []
        if told.idle and told.watermark is not None:
            frames.append(WatermarkFrame(voice.number, generation, told.watermark))
        if not told.hello or told.idle > bool(frames) or happens(random, 0.1):
            frames.append(voice.hello)
        share = random.choice((0.6, 0.95))
        for _ in range(random.choice((1, 1, 2, 3, 6, 10))):
            record = happens(random, share)
            frames.append(self._text(at, told) if record else self._watermark(at, voice, told))
            told = _after(told, frames[-1])
        if happens(random, 0.3):
            frames.append(self._watermark(at, voice, told))
        others = [each for each in self._voices_of(voice) if each is not voice]
        if happens(random, 0.12):
            frames.append(IdleFrame(voice.number, generation))
        elif happens(random, 0.05) and not all(each.told.ended for each in others):
            frames.append(EndFrame(voice.number, generation))
        return frames

    def _voices_of(self, voice: _Producer) -> list[_Producer]:
        return next(voices for voices in self._voices if voice in voices)

    def _text(self, at: float, told: _Announced) -> _DataFrame:
        random, low = self._random, told.watermark
        value = random.randbytes(random.choice((0, 1, 10, 100)))
        if happens(random, 0.1):
            return _DataFrame(None, value)
        time = millis(at) - random.randint(0, _REPEATED if low is None else _OLD)
        if low is not None and (time <= low or happens(random, 0.3)):
            time = low + random.choice((1, 1, random.randint(1, _OLD)))
        return _DataFrame(time, value)

    def _watermark(self, at: float, voice: _Producer, told: _Announced) -> WatermarkFrame:
        """Draw a watermark, that may be one that was told already."""
        random, low = self._random, told.watermark
        time = millis(at) - random.randint(0, _OLD)
        if low is not None and happens(random, 0.15):
            time = low - random.choice((0, 1, 1000))
        elif low is not None and (time <= low or happens(random, 0.3)):
            time = low + random.randint(1, _OLD)
        return WatermarkFrame(voice.number, voice.generation.number, time)

    def _page(self, at: float, frames: Sequence[_Frame], voice: _Producer | None) -> BatchContent:
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
        said = None
        if voice is not None:
            said = ProducerFrames(voice.generation.number, voice.number, tuple(controls))
        return BatchContent(rows, records, len(rows), said)


def _after(told: _Announced, frame: _Frame) -> _Announced:
    """Return what a producer has told with one frame more."""
    match frame:
        case HelloFrame():
            return replace(told, hello=True, idle=False)
        case WatermarkFrame(millis=time):
            highest = time if told.watermark is None else max(time, told.watermark)
            return replace(told, watermark=highest, idle=False)
        case IdleFrame():
            return replace(told, idle=True)
        case EndFrame():
            return replace(told, ended=True)
        case _:
            return told
