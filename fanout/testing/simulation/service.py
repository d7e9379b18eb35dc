"""A model of the Kinesis service: what it answers at each moment, and which rules it insists on."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, final

from fanout.kinesis.transport import ShardDescription, StreamDescription
from fanout.testing.rules import KinesisRules
from fanout.testing.simulation.consumers import SimConsumers
from fanout.testing.simulation.faults import Kind
from fanout.testing.simulation.log import EPOCH_MILLIS, millis
from fanout.testing.simulation.refusals import client_error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from fanout.testing.simulation.body import SubscriptionBody
    from fanout.testing.simulation.faults import Fault
    from fanout.testing.simulation.life import Life
    from fanout.testing.simulation.log import SourceLog, SourceRecord, SourceShard

__all__ = ("STREAM", "STREAM_ARN", "Page", "SimService")

STREAM: Final = "simulated"
STREAM_ARN: Final = f"arn:aws:kinesis:eu-central-1:123456789012:stream/{STREAM}"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=EPOCH_MILLIS)


@final
@dataclass(frozen=True, slots=True)
class Page:
    """What one event or answer carries.

    Args:
        records: The records.
        continuation: After which number the next one begins; None at the end of the shard.
        millis_behind: How far the last record is behind the newest one.
    """

    records: tuple[SourceRecord, ...]
    continuation: int | None
    millis_behind: int


@final
class SimService:
    """Answer calls about one stream, at the moment of the running loop.

    `violations` tells which rules of the service a reader has broken, each with its moment;
    `trimmed` the newest number of each shard that has expired.

    Args:
        log: What the stream holds.
        random: Where the service's own chance comes from: latencies, the lag of its listings.
        heartbeat: The longest silence of a subscription, in seconds.
    """

    def __init__(self, log: SourceLog, random: Random, *, heartbeat: float) -> None:
        self.log = log
        self.random = random
        self.rules = KinesisRules(
            heartbeat=heartbeat,
            max_event_records=random.choice((1, 3, 10_000)),
            consumer_creating=random.choice((0.0, 3.0, 20.0)),
        )
        self.violations: list[str] = []
        self.calls: Counter[str] = Counter()
        self.gone = False
        self.trimmed: dict[str, int] = {}
        self._listing_lag = random.choice((0.0, 0.0, 2.0, 15.0))
        self._consumers = SimConsumers(self, STREAM_ARN)

    @property
    def consumers(self) -> SimConsumers:
        """The stream's consumers.

        Raises:
            ClientError: The stream is gone.
        """
        self._check_stream("a call of a consumer")
        return self._consumers

    @property
    def now(self) -> float:
        """The virtual seconds."""
        return asyncio.get_running_loop().time()

    @property
    def clock(self) -> datetime:
        """The service's own clock."""
        return _EPOCH + timedelta(seconds=self.now)

    def violated(self, rule: str) -> None:
        """Take note of a rule that the reader has broken."""
        self.violations.append(f"{self.now:.3f}: {rule}")

    def describe_stream(self) -> StreamDescription:
        """Answer DescribeStreamSummary."""
        self._check_stream("DescribeStreamSummary")
        moment = millis(self.now)
        return StreamDescription(
            name=STREAM,
            arn=STREAM_ARN,
            status="ACTIVE",
            created=_EPOCH - timedelta(days=1),
            server_time=self.clock.replace(microsecond=0),
            retention_hours=24,
            open_shards=sum(not s.closed_at(moment) for s in self.log.shards.values()),
            consumers=len(self._consumers),
            key_id=None,
        )

    def list_shards(self, late: float = 0.0) -> list[ShardDescription]:
        """Answer ListShards, as things were some seconds ago."""
        self._check_stream("ListShards")
        moment = millis(self.now - self._listing_lag - late)
        return [
            ShardDescription(
                shard_id=shard.shard_id,
                parents=shard.parents,
                first=shard.first,
                last=shard.last if shard.closed_at(moment) else None,
                hash_range=shard.hash_range,
            )
            for shard in self.log.shards.values()
            if shard.opened <= moment or not shard.parents
        ]

    def befall(self, fault: Fault) -> None:
        """Let something happen to the stream."""
        match fault.kind:
            case Kind.TAKEN_OVER:
                self._consumers.take_over(fault.shard)
            case Kind.CONSUMER_GONE:
                self._consumers.remove_all()
            case Kind.STREAM_GONE:
                self._consumers.remove_all()
                self.gone = True
            case Kind.TRIMMED:
                self._trim(fault.shard)
            case _:
                raise AssertionError(f"{fault.kind} does not happen to a stream")

    def live_of(self, life: Life) -> list[str]:
        """Return the shards to which a process has a connection."""
        return self._consumers.live_of(life)

    def discard(self, body: SubscriptionBody) -> None:
        """Forget a subscription whose connection is closed."""
        self._consumers.discard(body)

    def shard_at(
        self, life: Life, shard_id: str, position: Mapping[str, Any]
    ) -> tuple[SourceShard, int]:
        """Return a shard, and the number after which a starting position of a process begins.

        Raises:
            ClientError: There is no such shard or position.
        """
        shard = self.log.shards.get(shard_id)
        if shard is None or shard.opened > millis(self.now):
            self.violated(f"{shard_id} does not exist, and was read")
            raise client_error("ResourceNotFoundException", "SubscribeToShard")
        return shard, self._cursor(life, shard, position)

    def page(self, shard: SourceShard, cursor: int, at: float, limit: int, room: int) -> Page:
        """Return what a shard has after a number at a moment.

        Args:
            shard: The shard.
            cursor: The number.
            at: The moment, in virtual seconds.
            limit: The most records.
            room: The most bytes, except for a single record.
        """
        moment = millis(at)
        first, arrived = shard.after(cursor), shard.arrived(moment)
        stop, size = first, 0
        while stop < min(arrived, first + limit):
            size += shard.records[stop].size
            if size > room and stop > first:
                break
            stop += 1
        records = shard.records[first:stop]
        if stop < arrived:
            behind = max(1, moment - records[-1].arrival)
            return Page(records, records[-1].sequence, behind)
        tip = None if shard.closed_at(moment) else max(cursor, shard.number_at(moment) - 1)
        return Page(records, tip, 0)

    def _cursor(self, life: Life, shard: SourceShard, position: Mapping[str, Any]) -> int:
        trimmed = self.trimmed.get(shard.shard_id, shard.first)
        moment = millis(self.now)
        match position["Type"]:
            case "TRIM_HORIZON":
                life.passed_over[shard.shard_id] = trimmed
                return trimmed
            case "AT_TIMESTAMP":
                asked = round(position["Timestamp"] * 1000)
                if asked > moment:
                    raise client_error("InvalidArgumentException", "SubscribeToShard")
                place = shard.arrived(asked)
                before: int = shard.numbers[place - 1] if place else shard.first
                life.passed_over[shard.shard_id] = trimmed
                return max(trimmed, before)
            case kind:
                number = int(position["SequenceNumber"]) - int(kind == "AT_SEQUENCE_NUMBER")
                newest = shard.number_at(moment) if shard.last is None else shard.last
                if number > newest or number < shard.first - 1:
                    self.violated(f"{shard.shard_id} was asked for a number that it never had")
                if not trimmed <= number <= newest:
                    raise client_error("InvalidArgumentException", "SubscribeToShard")
                return number

    def _trim(self, shard_id: str | None) -> None:
        """Let records of some shards expire, the older half of what has arrived or all of it."""
        for shard in self.log.shards.values():
            arrived = shard.arrived(millis(self.now))
            if arrived and shard_id in {None, shard.shard_id}:
                number = shard.numbers[self.random.choice((arrived // 2, arrived - 1))]
                self.trimmed[shard.shard_id] = max(number, self.trimmed.get(shard.shard_id, 0))

    def _check_stream(self, action: str) -> None:
        if self.gone:
            raise client_error("ResourceNotFoundException", action)
