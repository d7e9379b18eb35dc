"""Make the records of a simulated shard from random numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, final

from fanout.kinesis.aws.api import hash_key_of
from tests.provers.simulation.kinesis.service.stream_log import (
    RECORD_STRIDE,
    SourceRecord,
    SubRecord,
)
from tests.provers.simulation.randomness import happens

if TYPE_CHECKING:
    from random import Random
    from typing import Literal

    from tests.provers.simulation.kinesis.service.stream_log import SourceShard

__all__ = ("RecordDraws",)

_LARGEST: Final = 10 << 20
_SHORT_LIVED: Final = 10_000
_LAST_HASH_KEY: Final = (1 << 128) - 1
# The partition key of every aggregated record of the Kinesis Producer Library, and of no other one.
_KPL_KEY: Final = "a"
# The service takes keys of up to 256 characters, of any script (API reference of PutRecord).
_LEFT_OUT: Final = "key-0"
_STRANGE_KEYS: Final = ("ключ", "鍵", "🔑" * 256, "k" * 256, '"\\', "\x00", "é" * 255)


@final
class RecordDraws:
    """Put records into shards.

    Args:
        random: Where chance comes from.
        records: About how many records come into each shard.
        damaged: When records come that are aggregated and cannot be read, in milliseconds since the
            Unix epoch.
        large: Whether there may be records of up to 10 MiB.
    """

    def __init__(self, random: Random, records: int, damaged: list[int], *, large: bool) -> None:
        self._random = random
        self._records = records
        self._damaged = damaged
        self._large = large

    def fill(self, shard: SourceShard, end: int) -> SourceShard:
        """Return a shard with records: some evenly, some in bursts, and in some shards none.

        Args:
            shard: The shard.
            end: When the last record may come, in milliseconds since the Unix epoch.
        """
        arrivals = self._arrivals(shard, end if shard.closed is None else shard.closed - 1)
        damaged = self._damaged_of(arrivals)
        records = tuple(
            self._record(shard, number, arrival, broken=number in damaged)
            for number, arrival in enumerate(arrivals)
        )
        return replace(shard, records=records)

    def _arrivals(self, shard: SourceShard, until: int) -> list[int]:
        random = self._random
        idle = 0.5 if until - shard.opened < _SHORT_LIVED else 0.1
        if happens(random, idle) or until <= shard.opened:
            return []
        arrivals: list[int] = []
        count = random.randint(1, 2 * self._records)
        while len(arrivals) < count:
            burst = random.choice((1, 1, 1, 5, 20))
            arrivals += [random.randint(shard.opened, until)] * min(burst, count - len(arrivals))
        return sorted(arrivals)

    def _damaged_of(self, arrivals: list[int]) -> set[int]:
        """Take the first record after each moment; where there is none, another shard may have."""
        places = {}
        for moment in self._damaged:
            after = [place for place, arrival in enumerate(arrivals) if arrival >= moment]
            if after and arrivals[0] < moment:
                places[moment] = after[0]
        self._damaged = [moment for moment in self._damaged if moment not in places]
        return set(places.values())

    def _record(
        self, shard: SourceShard, number: int, arrival: int, *, broken: bool
    ) -> SourceRecord:
        random = self._random
        sequence = shard.number_at(arrival) + (number + 1) * RECORD_STRIDE
        form: Literal["plain", "aggregated", "wrong checksum", "broken"] = "plain"
        if broken:
            form = "broken"
        elif happens(random, 0.1):
            form = "aggregated" if happens(random, 0.95) else "wrong checksum"
        if form == "plain":
            part = SubRecord(self._key(), random.randbytes(self._size()))
            return SourceRecord(sequence, arrival, _sent(part.key), (part,), form)
        key = _KPL_KEY if happens(random, 0.9) else self._key()  # another library
        parts = tuple(self._part(shard, key) for _ in range(random.randint(1, 5)))
        return SourceRecord(sequence, arrival, _sent(key), parts, form)

    def _part(self, shard: SourceShard, outer_key: str) -> SubRecord:
        """Put a record into an aggregated one; after a reshard it may be of another shard."""
        random = self._random
        key, data = self._key(), random.randbytes(self._size(largest=1 << 20))
        owned = shard.hash_range
        hash_key = random.choice((owned.start, owned.end, None, random.randint(0, _LAST_HASH_KEY)))
        if happens(random, 0.5):
            hash_key = owned.start
        outside = (hash_key_of(key) if hash_key is None else hash_key) not in owned
        foreign = outside and bool(shard.parents) and outer_key == _KPL_KEY
        return SubRecord(key, data, hash_key, foreign)

    def _key(self) -> str:
        random = self._random
        if happens(random, 0.02):
            return random.choice(_STRANGE_KEYS)
        return f"key-{random.randrange(9)}"

    def _size(self, largest: int = _LARGEST) -> int:
        """Return a size: mostly small, sometimes nothing, rarely the largest there is."""
        random = self._random
        if self._large and happens(random, 0.01):
            return random.choice((1 << 20, largest))
        return 0 if happens(random, 0.05) else int(2 ** random.uniform(0, 9))


def _sent(key: str) -> str | None:
    """Return the key that a record is sent with; some producers leave it to the service."""
    return None if key == _LEFT_OUT else key
