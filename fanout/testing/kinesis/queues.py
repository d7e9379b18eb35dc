"""Queues of the embedded Kinesis: lend each record of a stream, until it is acknowledged.

Times are of the monotonic clock. The stream's lock guards a queue.
"""

from __future__ import annotations

import heapq
import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from fanout.testing.kinesis.server_state import now_in_millis

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.testing.kinesis.moto_stream import EmbeddedStream
    from fanout.testing.kinesis.shard import Shard

Settling = Literal["acknowledge", "restore"] | int
"""What is done to a received record; a number is the new visibility timeout, in seconds."""

_ATTRIBUTES: Final[dict[str, Any]] = {
    "VisibilityTimeoutSeconds": 30,
    "DeadLetterConfiguration": {"TargetType": "BUILT_IN", "MaxReceiveCount": 6},
}
_UNKNOWN: Final = "InvalidArgumentException"


@dataclass(slots=True, eq=False)
class _LentRecord:
    """A record that the queue has read from its shard, and that nobody has acknowledged."""

    shard: Shard
    number: int
    record_id: str
    encoded: bytes
    receive_count: int = 0
    first_received: float = 0.0
    dead: bool = False
    receipt: str = ""  # empty while it is visible
    visible_at: float = 0.0

    @property
    def is_gone(self) -> bool:
        """Whether its retention period is over."""
        return self.shard.has_expired(self.number)

    def describe(self) -> dict[str, Any]:
        """Return the record as it is received."""
        stored = msgspec.json.decode(self.encoded)
        kept = ("Data", "PartitionKey", "ApproximateArrivalTimestamp")
        return {name: stored[name] for name in kept if name in stored} | {
            "ReceiptHandle": self.receipt,
            "RecordId": self.record_id,
            "FirstReceiveTimestamp": round(self.first_received, 3),
            "ReceiveCount": self.receive_count,
        }


class EmbeddedQueue:
    """Lend the records of one stream, from where each of its shards is now."""

    def __init__(
        self,
        name: str,
        stream: EmbeddedStream,
        start: Mapping[str, Any],
        attributes: Mapping[str, Any],
        tags: Mapping[str, str],
        *,
        cursors: Mapping[str, int],
        creating: float,
    ) -> None:
        self.name = name
        self.stream = stream
        self.start = dict(start)
        self.attributes = _ATTRIBUTES | dict(attributes)
        self.tags = dict(tags)
        self.created = datetime.now(UTC)
        self.arn = f"{stream.arn.rpartition(':')[0]}:queue/{secrets.token_hex(16)}"
        self.changed = threading.Condition(stream.lock)
        self.deleted = False
        self._active_at = time.monotonic() + creating
        self._cursors = dict(cursors)
        # The visible records, and the visible dead letters.
        self._visible: dict[bool, deque[_LentRecord]] = {False: deque(), True: deque()}
        self._in_flight: list[tuple[float, int, _LentRecord]] = []
        self._by_receipt: dict[str, _LentRecord] = {}
        self._serial = count(1)

    @property
    def status(self) -> str:
        """CREATING for a while, then ACTIVE."""
        return "ACTIVE" if time.monotonic() >= self._active_at else "CREATING"

    def update(self, attributes: Mapping[str, Any]) -> None:
        """Change what is named, and leave the rest."""
        self.attributes |= dict(attributes)

    def receive(self, limit: int, visible_after: int | None, *, dead: bool) -> list[dict[str, Any]]:
        """Lend up to so many records that are visible now."""
        now = time.monotonic()
        seconds = self.attributes["VisibilityTimeoutSeconds"]
        until = now + (seconds if visible_after is None else visible_after)
        self._return_expired(now)
        records = self._take(limit, dead=dead)
        for record in records:
            record.receipt = secrets.token_urlsafe(48)
            record.receive_count += 1
            record.first_received = record.first_received or now_in_millis() / 1000
            self._by_receipt[record.receipt] = record
            self._hide(record, until)
        return [record.describe() for record in records]

    def settle(self, receipt: str, how: Settling, *, dead: bool) -> tuple[str, str] | None:
        """Settle a record; return a code and a message where its receipt handle is not valid."""
        now = time.monotonic()
        self._return_expired(now)
        record = self._by_receipt.get(receipt)
        if record is None or record.dead is not dead:
            kind = "dead-letter record" if dead else "record"
            return _UNKNOWN, f"The receipt handle is not that of a {kind} of the queue."
        if how == "acknowledge":
            self._forget(record)
        elif how == "restore":
            record.dead, record.receive_count, record.visible_at = False, 0, now
            del self._by_receipt[receipt]
            self._show(record)
        else:
            assert isinstance(how, int)
            self._hide(record, now + how)
            self.changed.notify_all()
        return None

    def next_visible(self) -> float | None:
        """Return when the next record becomes visible again; None while none is in flight."""
        return self._in_flight[0][0] if self._in_flight else None

    def to_json(self) -> dict[str, Any]:
        """Describe the queue as DescribeQueue does."""
        start = dict(self.start)
        if self.status == "ACTIVE":
            start.setdefault("Timestamp", self.created)
        return self._names() | {
            "StreamConfigurationList": [{"StreamARN": self.stream.arn, "StartingPosition": start}],
            "QueueAttributes": self.attributes,
        }

    def to_summary(self) -> dict[str, Any]:
        """Describe the queue as ListQueues does."""
        created = self.stream.created
        stream = {"StreamARN": self.stream.arn, "StreamCreationTimestamp": created}
        return self._names() | {"Streams": [stream]}

    def _names(self) -> dict[str, Any]:
        return {
            "QueueName": self.name,
            "QueueARN": self.arn,
            "QueueStatus": self.status,
            "QueueCreationTimestamp": self.created,
        }

    def _take(self, limit: int, *, dead: bool) -> list[_LentRecord]:
        visible = self._visible[dead]
        taken: list[_LentRecord] = []
        while len(taken) < limit and (visible or (not dead and self._read(limit))):
            record = visible.popleft()
            if not record.is_gone:
                taken.append(record)
        return taken

    def _read(self, limit: int) -> bool:
        """Read on in each shard; return whether there was a record."""
        visible = self._visible[False]
        for shard in self.stream.shards.values():
            cursor = self._cursors.get(shard.shard_id, shard.first_number)
            for number, encoded in shard.records_after(cursor, limit):
                record_id = f"{number:x}"
                visible.append(_LentRecord(shard, number, record_id, encoded))
                self._cursors[shard.shard_id] = number
        return bool(visible)

    def _hide(self, record: _LentRecord, until: float) -> None:
        record.visible_at = until
        heapq.heappush(self._in_flight, (until, next(self._serial), record))

    def _return_expired(self, now: float) -> None:
        """Make visible what was not acknowledged in time; what came too often is a dead letter."""
        while self._in_flight and self._in_flight[0][0] <= now:
            until, _, record = heapq.heappop(self._in_flight)
            if not record.receipt or record.visible_at != until:
                continue  # it is acknowledged, or hidden for longer
            del self._by_receipt[record.receipt]
            dead = self.attributes["DeadLetterConfiguration"]
            most = dead.get("MaxReceiveCount")
            if dead["TargetType"] == "BUILT_IN" and record.receive_count >= most:
                record.dead = True
            self._show(record)

    def _show(self, record: _LentRecord) -> None:
        record.receipt = ""
        self._visible[record.dead].append(record)
        self.changed.notify_all()

    def _forget(self, record: _LentRecord) -> None:
        del self._by_receipt[record.receipt]
        record.receipt = ""
