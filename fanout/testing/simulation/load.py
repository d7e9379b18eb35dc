"""Make what a simulated stream holds from random numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from fanout.kinesis.hash_keys import HashRange
from fanout.testing.simulation.log import (
    EPOCH_MILLIS,
    RECORD_STRIDE,
    SourceLog,
    SourceRecord,
    SourceShard,
    millis,
    number_of,
    shard_id_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

__all__ = ("make_log",)

_LARGEST: Final = 10 << 20
_HASH_KEYS: Final = 1 << 128


def make_log(
    random: Random,
    *,
    shards: int,
    records: int,
    reshards: int,
    seconds: float,
    large: bool = False,
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
    """
    return _LogMaker(random, seconds, records, large=large).make(shards, reshards)


@dataclass
class _Open:
    """A shard that has not been closed yet."""

    index: int
    parents: tuple[str, ...]
    hash_range: HashRange
    opened: int


class _LogMaker:
    def __init__(self, random: Random, seconds: float, records: int, *, large: bool) -> None:
        self._random = random
        self._end = millis(seconds)
        self._begin = EPOCH_MILLIS - random.choice((0, 1, 60, 3600)) * 1000
        self._records = records
        self._large = large
        self._count = 0
        self._done: dict[str, SourceShard] = {}

    def make(self, shards: int, reshards: int) -> SourceLog:
        bounds = [_HASH_KEYS * i // shards for i in range(shards + 1)]
        ranges = [HashRange(a, b - 1) for a, b in pairwise(bounds)]
        live = [self._open((), hash_range, self._begin) for hash_range in ranges]
        for moment in sorted(
            self._random.randint(self._begin + 1, self._end) for _ in range(reshards)
        ):
            self._reshard(live, moment)
        for shard in live:
            self._close(shard, None)
        return SourceLog(dict(sorted(self._done.items())))

    def _open(self, parents: Sequence[_Open], hash_range: HashRange, moment: int) -> _Open:
        ids = tuple(shard_id_of(parent.index) for parent in parents)
        self._count += 1
        return _Open(self._count - 1, ids, hash_range, moment)

    def _reshard(self, live: list[_Open], moment: int) -> None:
        """Split a shard, or merge two neighbours."""
        place = self._random.randrange(len(live))
        if len(live) > 1 and self._random.random() < 0.5:  # noqa: PLR2004 - as often as not
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

    def _close(self, shard: _Open, moment: int | None) -> None:
        closed = SourceShard(
            shard.index,
            shard.parents,
            shard.hash_range,
            shard.opened,
            moment,
            self._fill(shard, self._end if moment is None else moment - 1),
        )
        self._done[closed.shard_id] = closed

    def _fill(self, shard: _Open, until: int) -> tuple[SourceRecord, ...]:
        """Put records into a shard: some evenly, some in bursts, and in some shards none."""
        random = self._random
        if random.random() < 0.1 or until <= shard.opened:  # noqa: PLR2004 - one of ten is idle
            return ()
        arrivals: list[int] = []
        count = random.randint(1, 2 * self._records)
        while len(arrivals) < count:
            burst = random.choice((1, 1, 1, 5, 20))
            arrivals += [random.randint(shard.opened, until)] * min(burst, count - len(arrivals))
        return tuple(
            self._record(shard, number, arrival) for number, arrival in enumerate(sorted(arrivals))
        )

    def _record(self, shard: _Open, number: int, arrival: int) -> SourceRecord:
        random = self._random
        aggregated = random.random() < 0.1  # noqa: PLR2004 - one of ten
        parts = tuple(
            (f"key-{random.randrange(9)}", random.randbytes(self._size()))
            for _ in range(random.randint(1, 5) if aggregated else 1)
        )
        return SourceRecord(
            number_of(shard.index, arrival) + (number + 1) * RECORD_STRIDE,
            arrival,
            "a" if aggregated else parts[0][0],
            parts,
            shard.hash_range.start,
        )

    def _size(self) -> int:
        """Return a size: mostly small, sometimes nothing, rarely the largest there is."""
        random = self._random
        if self._large and random.random() < 0.01:  # noqa: PLR2004 - one of a hundred
            return random.choice((1 << 20, _LARGEST))
        return 0 if random.random() < 0.05 else int(2 ** random.uniform(0, 9))  # noqa: PLR2004
