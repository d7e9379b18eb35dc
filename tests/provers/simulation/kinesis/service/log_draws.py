"""Make what a simulated stream holds from random numbers: its shards and their reshards."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from fanout.kinesis.aws.api import HashRange
from tests.provers.simulation.kinesis.faults import KinesisFaultKind
from tests.provers.simulation.kinesis.service.record_draws import RecordDraws
from tests.provers.simulation.kinesis.service.stream_log import SourceLog, SourceShard, shard_id_of
from tests.provers.simulation.randomness import happens
from tests.provers.simulation.service_clock import EPOCH_MILLIS, millis

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from tests.provers.simulation.kinesis.faults import KinesisFault

__all__ = ("make_log",)

_HASH_KEYS: Final = 1 << 128
_STORM: Final = (2, 4)


def make_log(
    random: Random,
    *,
    shards: int,
    records: int,
    reshards: int,
    seconds: float,
    large: bool = False,
    faults: Sequence[KinesisFault] = (),
    generation: int = 0,
) -> SourceLog:
    """Make a log.

    Args:
        random: Where chance comes from.
        shards: How many shards there are at first.
        records: About how many records come into each shard.
        reshards: How many splits and merges there are.
        seconds: When the last record comes, in virtual seconds; the first came up to an hour
            before the run.
        large: Whether there may be records of up to 10 MiB.
        faults: What goes wrong with the log itself: storms of reshards, and damaged records.
        generation: Which of the streams of this name it is, from 0.
    """
    return _LogMaker(random, seconds, records, faults, generation, large=large).make(
        shards, reshards
    )


@dataclass
class _Open:
    """A shard that has not been closed yet."""

    index: int
    parents: tuple[str, ...]
    hash_range: HashRange
    opened: int


class _LogMaker:
    def __init__(
        self,
        random: Random,
        seconds: float,
        records: int,
        faults: Sequence[KinesisFault],
        generation: int,
        *,
        large: bool,
    ) -> None:
        self._random = random
        self._end = millis(seconds)
        self._begin = EPOCH_MILLIS - random.choice((0, 1, 60, 3600)) * 1000
        self._storms = [fault for fault in faults if fault.kind is KinesisFaultKind.RESHARD_STORM]
        damaged = [millis(f.at) for f in faults if f.kind is KinesisFaultKind.AGGREGATE_DAMAGED]
        self._filling = RecordDraws(random, records, damaged, large=large)
        self._generation = generation
        self._count = 0
        self._done: dict[str, SourceShard] = {}

    def make(self, shards: int, reshards: int) -> SourceLog:
        bounds = [_HASH_KEYS * i // shards for i in range(shards + 1)]
        ranges = [HashRange(a, b - 1) for a, b in pairwise(bounds)]
        live = [self._open((), hash_range, self._begin) for hash_range in ranges]
        for moment in self._moments(reshards):
            self._reshard(live, moment)
        for shard in live:
            self._close(shard, None)
        return SourceLog(dict(sorted(self._done.items())))

    def _moments(self, reshards: int) -> list[int]:
        """Return when the stream is resharded; each shard exists for a millisecond at least."""
        moments = {self._random.randint(self._begin + 1, self._end) for _ in range(reshards)}
        for storm in self._storms:
            for _ in range(self._random.randint(*_STORM)):
                at = millis(storm.at + self._random.uniform(0, storm.seconds))
                moments.add(max(self._begin + 1, at))
        return sorted(moments)

    def _open(self, parents: Sequence[_Open], hash_range: HashRange, moment: int) -> _Open:
        ids = tuple(shard_id_of(parent.index) for parent in parents)
        self._count += 1
        return _Open(self._count - 1, ids, hash_range, moment)

    def _reshard(self, live: list[_Open], moment: int) -> None:
        """Split a shard, or merge two neighbours."""
        place = self._random.randrange(len(live))
        if len(live) > 1 and happens(self._random, 0.5):
            place = min(place, len(live) - 2)
            left, right = live[place : place + 2]
            whole = HashRange(left.hash_range.start, right.hash_range.end)
            live[place : place + 2] = [self._open((left, right), whole, moment)]
            self._close(left, moment)
            self._close(right, moment)
        else:
            parent = live[place]
            start, end = parent.hash_range.start, parent.hash_range.end
            middle = (start + end) // 2
            halves = (HashRange(start, middle), HashRange(middle + 1, end))
            live[place : place + 1] = [self._open((parent,), half, moment) for half in halves]
            self._close(parent, moment)

    def _close(self, opened: _Open, moment: int | None) -> None:
        shard = SourceShard(
            opened.index,
            opened.parents,
            opened.hash_range,
            opened.opened,
            moment,
            (),
            self._generation,
        )
        self._done[shard.shard_id] = self._filling.fill(shard, self._end)
