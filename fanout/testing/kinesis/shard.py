"""One shard of the embedded Kinesis server: its records in order, and its place in the lineage.

All methods expect the caller to hold the stream's lock, on which `changed` is built.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fanout.testing.kinesis.frames import child_shard, encode_record, hash_key_range

if TYPE_CHECKING:
    from collections.abc import Sequence

# The service's sequence numbers have 56 decimal digits, and neighbours lie 2**80 apart. The shard
# index goes above 60 bits of ticks, so that a child's numbers exceed all of its parents'.
_ORIGIN = 49680412602923508161381989364352061050721676279901323266
_TICK = 1 << 80
_SHARD_STRIDE = 1 << 140
# The numbers of a stream exceed those of every stream before it: its own places never fit.
_STREAM_STRIDE = 1 << 160
# A continuation inside a backlog lies between the last record sent and the next one.
_HALF_TICK = _TICK // 2


class PositionRefusedError(ValueError):
    """A starting position cannot be served; the text is the service's answer."""


@dataclass(frozen=True, slots=True)
class Page:
    """The content of one event: encoded records, and where the next event goes on."""

    records: Sequence[bytes]
    size: int  # the bytes of data and partition keys
    continuation: int | None  # None when the shard has ended and all of its records are in pages
    millis_behind: int


class Shard:
    """Keep the records of one hash key range."""

    # moto reads `_shard_id`, `starting_hash`, `ending_hash`, `is_open` and `to_json`.

    def __init__(
        self,
        index: int,
        hash_range: tuple[int, int],
        lock: threading.RLock,
        parents: Sequence[Shard],
        now: int,
        *,
        generation: int = 0,
    ) -> None:
        self._shard_id = index
        self.shard_id = f"shardId-{index:012}"
        self.starting_hash, self.ending_hash = hash_range
        self.parents = tuple(parents)
        self.children: tuple[Shard, ...] = ()
        self.opened_at = now
        self.closed_at: int | None = None
        self.changed = threading.Condition(lock)
        self.first_number = _ORIGIN + generation * _STREAM_STRIDE + index * _SHARD_STRIDE
        self._newest = self.first_number
        self._expired = self.first_number
        self._numbers: list[int] = []
        self._arrivals: list[int] = []
        self._records: list[bytes] = []
        self._bytes_up_to: list[int] = []

    @property
    def is_open(self) -> bool:
        """Whether the shard takes records."""
        return self.closed_at is None

    @property
    def last_number(self) -> int:
        """The newest number that was issued; that of its end once the shard is closed."""
        return self._newest

    def closed_before(self, millis: int) -> bool:
        """Say whether the shard was closed by then."""
        return self.closed_at is not None and self.closed_at < millis

    def append(
        self,
        partition_key: str | None,
        data: bytes,
        size: int,
        now: int,
        *,
        encryption: str = "NONE",
    ) -> int:
        """Store a record and return its sequence number; the caller notifies `changed`."""
        # The data is in base64; `size` are the bytes of data and key. `now` is the wall clock in
        # milliseconds; a clock that goes back is not followed. The encryption is NONE or KMS.
        number = self.advance()
        arrival = max(now, self._arrivals[-1]) if self._arrivals else now
        self._numbers.append(number)
        self._arrivals.append(arrival)
        self._bytes_up_to.append(size + (self._bytes_up_to[-1] if self._bytes_up_to else 0))
        self._records.append(encode_record(arrival, data, partition_key, number, encryption))
        return number

    def advance(self) -> int:
        """Issue a number above every number issued so far."""
        self._newest += _TICK
        return self._newest

    def close(self, children: Sequence[Shard], now: int) -> None:
        """End the shard: its children take what comes from now on."""
        self.closed_at = now
        self.children = tuple(children)
        self.advance()
        self.changed.notify_all()

    def expire(self) -> None:
        """Drop every record, as if its retention period had passed."""
        if self._numbers:
            self._expired = self._numbers[-1]
        for stored in (self._numbers, self._arrivals, self._records, self._bytes_up_to):
            stored.clear()

    def has_expired(self, number: int) -> bool:
        """Say whether the retention period of a number is over."""
        return number <= self._expired

    def records_after(self, cursor: int, most: int) -> list[tuple[int, bytes]]:
        """Return up to so many records after the cursor: number, and as `encode_record` wrote."""
        start = bisect_right(self._numbers, cursor)
        stop = start + most
        return list(zip(self._numbers[start:stop], self._records[start:stop], strict=True))

    def has_news(self, cursor: int) -> bool:
        """Say whether a reader at the cursor has anything to be told."""
        return not self.is_open or bool(self._numbers and self._numbers[-1] > cursor)

    def read(self, cursor: int, max_records: int, max_bytes: int, now: int) -> Page:
        """Return the records after the cursor, as many as the limits allow and at least one."""
        start = bisect_right(self._numbers, cursor)
        sent = self._bytes_up_to[start - 1] if start else 0
        within_bytes = bisect_right(self._bytes_up_to, sent + max_bytes, lo=start)
        stop = min(max(within_bytes, start + 1), start + max_records, len(self._numbers))
        records = self._records[start:stop]
        size = self._bytes_up_to[stop - 1] - sent if records else 0
        if stop < len(self._numbers):
            behind = max(1, now - self._arrivals[stop - 1])
            return Page(records, size, self._numbers[stop - 1] + _HALF_TICK, behind)
        return Page(records, size, self.advance() if self.is_open else None, 0)

    def cursor_at(self, position: dict[str, Any], now: int) -> int:
        """Turn a StartingPosition into the number after which to read."""
        # Refused are an unknown type, a missing or bad value, a number or a time that this shard
        # has not reached, and a number that has expired.
        kind = position.get("Type")
        match kind:
            case "TRIM_HORIZON":
                return self.first_number
            case "LATEST":
                return self._newest
            case "AT_TIMESTAMP":
                return self._cursor_at_time(position.get("Timestamp"), now)
            case "AT_SEQUENCE_NUMBER":
                return self._checked_number(position.get("SequenceNumber"), at=True) - 1
            case "AFTER_SEQUENCE_NUMBER":
                return self._checked_number(position.get("SequenceNumber"))
            case _:
                raise PositionRefusedError(f"StartingPosition has the unknown type {kind!r}.")

    def _cursor_at_time(self, seconds: object, now: int) -> int:
        if not isinstance(seconds, int | float):
            raise PositionRefusedError("StartingPosition AT_TIMESTAMP needs a Timestamp.")
        millis = round(seconds * 1000)
        if millis > now:
            raise PositionRefusedError(
                "The timestampInMillis parameter cannot be greater than the "
                f"currentTimestampInMillis. timestampInMillis: {millis}, "
                f"currentTimestampInMillis: {now}"
            )
        index = bisect_left(self._arrivals, millis)
        return self._numbers[index] - 1 if index < len(self._numbers) else self._newest

    def _checked_number(self, text: object, *, at: bool = False) -> int:
        if isinstance(text, str) and text.isascii() and text.isdigit():
            number = int(text)
            # What comes after the last record that has expired is all there.
            oldest = self._expired + (at and self._expired > self.first_number)
            if oldest <= number <= self._newest:
                return number
        raise PositionRefusedError(
            f"StartingSequenceNumber {text} used in SubscribeToShard on shard {self.shard_id} "
            "is invalid."
        )

    def to_json(self) -> dict[str, Any]:
        """Describe the shard as ListShards does."""
        numbers = {"StartingSequenceNumber": str(self.first_number)}
        if not self.is_open:
            numbers["EndingSequenceNumber"] = str(self._newest)
        description: dict[str, Any] = {
            "ShardId": self.shard_id,
            "HashKeyRange": hash_key_range(self.starting_hash, self.ending_hash),
            "SequenceNumberRange": numbers,
        }
        names = ("ParentShardId", "AdjacentParentShardId")
        description.update(zip(names, (parent.shard_id for parent in self.parents), strict=False))
        return description

    def as_child(self) -> dict[str, Any]:
        """Describe the shard as the last event of its parents does."""
        parents = [parent.shard_id for parent in self.parents]
        return child_shard(self.shard_id, parents, self.starting_hash, self.ending_hash)
