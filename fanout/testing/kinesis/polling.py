"""Serve GetShardIterator and GetRecords: iterators that expire, a shard's rates, and its end."""

from __future__ import annotations

import base64
import json
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from fanout.core.stored_json import MALFORMED_JSON
from fanout.testing.kinesis.consumers import Refusal, RefusedError
from fanout.testing.kinesis.server_state import now_in_millis

if TYPE_CHECKING:
    from fanout.testing.kinesis.rules import KinesisRules
    from fanout.testing.kinesis.shard import Page, Shard

_Operation = Literal["GetRecords", "GetShardIterator"]

_SECOND = 1.0


@dataclass(frozen=True, slots=True)
class ShardIterator:
    """A place in a shard, as the service hands it out."""

    stream: str
    shard: str
    cursor: int  # the number after which to read
    issued: float  # by the monotonic clock

    @classmethod
    def now(cls, stream: str, shard: str, cursor: int) -> ShardIterator:
        """Hand one out."""
        return cls(stream, shard, cursor, time.monotonic())

    @classmethod
    def decode(cls, token: str) -> ShardIterator:
        """Read what `encode` wrote; anything else is a ValueError."""
        try:
            fields = base64.b64decode(token, validate=True)
            return cls(*msgspec.json.decode(fields, type=tuple[str, str, int, float]))
        except (*MALFORMED_JSON, ValueError) as error:
            raise ValueError(f"ShardIterator {token} is invalid.") from error

    def encode(self) -> str:
        """Return the token that a client sees."""
        fields = [self.stream, self.shard, self.cursor, self.issued]
        return base64.b64encode(json.dumps(fields).encode()).decode()

    def check_age(self, rules: KinesisRules) -> None:
        """Check that the iterator has not expired."""
        if time.monotonic() - self.issued >= rules.iterator_life:
            message = f"Iterator expired. It is older than {rules.iterator_life:g} seconds."
            raise RefusedError("expired_iterator", Refusal("ExpiredIteratorException", message))


class PollMeter:
    """The recent calls about one shard and the bytes that it returned; all pollers share it."""

    # The stream's lock guards it.

    def __init__(self) -> None:
        self._calls: defaultdict[_Operation, deque[float]] = defaultdict(deque)
        self._returned: deque[tuple[float, int]] = deque()
        self._free_at = 0.0

    def note_call(self, operation: _Operation, shard_id: str, rules: KinesisRules) -> None:
        """Count a call towards the rates, unless one of them refuses it."""
        # There may be too many calls, or too many bytes in the last answers.
        now = time.monotonic()
        calls = self._calls[operation]
        while calls and now - calls[0] >= _SECOND:
            calls.popleft()
        refusal = Refusal(
            "ProvisionedThroughputExceededException", f"Rate exceeded for shard {shard_id}."
        )
        if 0 < rules.polls_per_second <= len(calls):
            raise RefusedError("polled_too_often", refusal)
        if operation == "GetRecords" and now < self._free_at:
            raise RefusedError("polled_too_much", refusal)
        calls.append(now)

    def note_answer(self, size: int, rules: KinesisRules) -> None:
        """Count what is returned; more than a second's bytes block the shard for as long."""
        now = time.monotonic()
        while self._returned and now - self._returned[0][0] >= _SECOND:
            self._returned.popleft()
        self._returned.append((now, size))
        recently = sum(size for _, size in self._returned)
        if 0 < rules.polled_bytes_per_second < recently:
            self._free_at = now + recently / rules.polled_bytes_per_second


def read_page(shard: Shard, cursor: int, meter: PollMeter, limit: int, rules: KinesisRules) -> Page:
    """Read on from a cursor, and count what is read."""
    page = shard.read(
        cursor, min(limit, rules.max_poll_records), rules.max_poll_bytes, now_in_millis()
    )
    meter.note_answer(page.size, rules)
    return page


def encode_answer(stream: str, shard: Shard, page: Page) -> bytes:
    """Write a page as the answer of GetRecords; the last one of a shard names its children."""
    following: dict[str, Any] = {"MillisBehindLatest": page.millis_behind}
    if page.continuation is None:
        following |= {
            "NextShardIterator": None,
            "ChildShards": [child.as_child() for child in shard.children],
        }
    else:
        iterator = ShardIterator.now(stream, shard.shard_id, page.continuation)
        following["NextShardIterator"] = iterator.encode()
    tail = json.dumps(following).removeprefix("{")
    return b"".join((b'{"Records":[', b",".join(page.records), b"],", tail.encode()))
