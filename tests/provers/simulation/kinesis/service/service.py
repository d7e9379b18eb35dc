"""A model of the Kinesis service: what it answers at each moment, and which rules it insists on."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, final

from fanout.kinesis.aws.api import ShardDescription, StreamDescription
from fanout.testing.kinesis.rules import KinesisRules
from tests.provers.simulation.kinesis.faults import KinesisFaultKind
from tests.provers.simulation.kinesis.service.consumers import KinesisConsumers
from tests.provers.simulation.kinesis.service.damaged_records import DamagedRecords
from tests.provers.simulation.kinesis.service.outages import Outages
from tests.provers.simulation.kinesis.service.pages import ShardPage, read_page
from tests.provers.simulation.kinesis.service.rate_limits import RateLimits
from tests.provers.simulation.kinesis.service.retention import Retention
from tests.provers.simulation.kinesis.service.service_state import EPOCH, ServiceState
from tests.provers.simulation.randomness import happens
from tests.provers.simulation.service_clock import millis
from tests.support.kinesis.client_errors import client_error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from tests.provers.simulation.armed_faults import ArmedFaults
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kinesis.faults import KinesisFault
    from tests.provers.simulation.kinesis.oracle.subscribe_attempts import SubscribeAttempt
    from tests.provers.simulation.kinesis.plan import KinesisPlan
    from tests.provers.simulation.kinesis.service.consumers import LiveSubscription
    from tests.provers.simulation.kinesis.service.stream_log import SourceLog, SourceShard

__all__ = ("CONSUMER", "CONSUMER_ARN", "STREAM", "STREAM_ARN", "KinesisSimService")

STREAM: Final = "simulated"
STREAM_ARN: Final = f"arn:aws:kinesis:eu-central-1:123456789012:stream/{STREAM}"
CONSUMER: Final = "reader"
CONSUMER_ARN: Final = f"{STREAM_ARN}/consumer/{CONSUMER}:1"
# What a reader takes for damage that is there for good.
_DAMAGE_LIMIT: Final = 3


@final
class KinesisSimService:
    """Answer calls about one stream, at the moment of the running loop.

    `violations` lists the rules of the service a reader has broken, each with its moment; `doom`
    why no reader can go on any more, empty while one can.

    Args:
        plan: What is wanted of it.
        log: What the stream holds.
        random: Where the service's own chance comes from: latencies, the lag of its listings.
        armed: What goes wrong.
    """

    def __init__(
        self, plan: KinesisPlan, log: SourceLog, random: Random, armed: ArmedFaults[KinesisFault]
    ) -> None:
        self.log = log
        self.armed = armed
        event_records = random.choice((1, 3, 10_000))
        consumer_creating = random.choice((0.0, 3.0, 20.0))
        self._listing_lag = random.choice((0.0, 0.0, 2.0, 15.0))
        rules = KinesisRules(
            heartbeat=plan.heartbeat,
            max_event_records=event_records,
            max_poll_records=random.choice((1, 3, 10_000)),
            consumer_creating=consumer_creating,
        )
        self.state = ServiceState(rules, random)
        self.calls: Counter[str] = Counter()
        self.doom = ""
        self.retention = Retention(log)
        self.outages = Outages(self.state)
        self.damage = DamagedRecords()
        self.rates = RateLimits(self.state)
        self._plan = plan
        self._sent_damage: Counter[tuple[int, str, str, int]] = Counter()
        self._between = happens(random, 0.5)
        self._created = EPOCH - timedelta(days=1)
        self._back_at = 0.0
        self._consumers = KinesisConsumers(self.state, STREAM_ARN)
        if plan.consumer == "arn":
            self._consumers.add(CONSUMER, self._created)

    @property
    def gone(self) -> bool:
        """Whether no reader can go on any more."""
        return bool(self.doom)

    @property
    def consumers(self) -> KinesisConsumers:
        """The stream's consumers.

        Raises:
            ClientError: The stream is gone.
        """
        self._check_stream("a call of a consumer")
        return self._consumers

    @property
    def rules(self) -> KinesisRules:
        """The rules of the service."""
        return self.state.rules

    @property
    def random(self) -> Random:
        """The source of randomness of the service."""
        return self.state.random

    @property
    def violations(self) -> list[str]:
        """The rules that a reader has broken, each with its moment."""
        return self.state.violations

    @property
    def now(self) -> float:
        """The virtual seconds."""
        return self.state.now

    def describe_stream(self) -> StreamDescription:
        """Answer DescribeStreamSummary."""
        self._check_stream("DescribeStreamSummary")
        moment = millis(self.now)
        return StreamDescription(
            name=STREAM,
            arn=STREAM_ARN,
            status="ACTIVE",
            created=self._created,
            server_time=self.state.clock.replace(microsecond=0),
            retention_hours=24,
            open_shards=sum(
                shard.opened <= moment and not shard.closed_at(moment)
                for shard in self.log.shards.values()
            ),
            consumers=len(self._consumers),
            key_id=None,
        )

    def list_shards(self, late: float = 0.0, children_late: float = 0.0) -> list[ShardDescription]:
        """Answer ListShards.

        Args:
            late: By how many seconds the listing is old.
            children_late: For how many seconds a shard is missing that continues another.
        """
        self._check_stream("ListShards")
        moment = millis(self.now - self._listing_lag - late)
        newest = moment - round(children_late * 1000)
        return [
            ShardDescription(
                shard_id=shard.shard_id,
                parents=shard.parents,
                first=shard.first,
                last=shard.last if shard.closed_at(moment) else None,
                hash_range=shard.hash_range,
            )
            for shard in self.log.shards.values()
            if (shard.opened <= newest or not shard.parents)
            and shard.shard_id not in self.retention.expired
        ]

    def strike_service(self, fault: KinesisFault) -> bool:
        """Let something happen to the stream, its shards or its consumers.

        Args:
            fault: What happens.

        Returns:
            Whether there was anything that it could happen to.
        """
        if self.gone:
            return False
        match fault.kind:
            case KinesisFaultKind.STREAM_GONE:
                self.delete()
            case KinesisFaultKind.STREAM_REPLACED:
                self.replace(fault.seconds)
            case KinesisFaultKind.TAKEN_OVER | KinesisFaultKind.TAKEN_OVER_STALE:
                stale = fault.kind is KinesisFaultKind.TAKEN_OVER_STALE
                return self.consumers.take_over(fault.shard, stale=stale)
            case KinesisFaultKind.CONSUMER_GONE | KinesisFaultKind.CONSUMER_DELETING:
                self.doom_of(fault.kind)
                return self.consumers.remove_all(fault.seconds)
            case KinesisFaultKind.TRIMMED:
                return self.retention.trim(fault.shard, millis(self.now), self.random)
            case KinesisFaultKind.SHARDS_EXPIRED:
                expired = self.retention.expire(millis(self.now - fault.seconds))
                for shard_id in expired:
                    self.consumers.end_all("ResourceNotFoundException", shard_id)
                return bool(expired)
            case _:
                self._strike_every_call(fault)
        return True

    def _strike_every_call(self, fault: KinesisFault) -> None:
        match fault.kind:
            case KinesisFaultKind.RESHARD_STORM:
                pass  # the log was made with it
            case KinesisFaultKind.OUTAGE:
                self.outages.go_down(fault.seconds)
                self.consumers.end_all(None)
            case KinesisFaultKind.THROTTLED:
                self.outages.throttle(fault.code, fault.seconds)
            case KinesisFaultKind.CLOCK_AHEAD:
                self.state.skew = fault.seconds
            case KinesisFaultKind.CLOCK_BEHIND:
                self.state.skew = -fault.seconds
            case KinesisFaultKind.ROTATED:
                self.outages.rotate()
            case kind:
                raise AssertionError(f"{kind} does not happen to a stream")

    def live_of(self, run: ProcessRun) -> list[str]:
        """Return the shards to which a process has a connection."""
        return self._consumers.live_of(run)

    def discard(self, subscription: LiveSubscription) -> None:
        """Forget a subscription whose connection is closed."""
        self._consumers.discard(subscription)

    def existing(self, shard_id: str, action: str) -> SourceShard:
        """Return a shard.

        Args:
            shard_id: Its id.
            action: The call that names it.

        Raises:
            ClientError: There is none, or no longer.
        """
        self._check_stream(action)
        shard = self.log.shards.get(shard_id)
        if shard is None or shard.opened > millis(self.now):
            self._blame(f"{shard_id} does not exist, and was read")
            raise client_error("ResourceNotFoundException", action)
        if shard_id in self.retention.expired:
            raise client_error("ResourceNotFoundException", action)
        return shard

    def shard_at(
        self, run: ProcessRun, shard_id: str, position: Mapping[str, Any], action: str
    ) -> tuple[SourceShard, int]:
        """Return a shard, and the number after which a starting position of a process begins.

        Args:
            run: The process that calls.
            shard_id: The id of the shard.
            position: The position, as the API writes it.
            action: The call that names them.

        Raises:
            ClientError: There is no such shard or position.
        """
        shard = self.existing(shard_id, action)
        clock = millis(self.now + self.state.skew)
        try:
            return shard, self.retention.cursor(run, shard, position, millis(self.now), clock)
        except ValueError as error:
            self._blame(str(error))
            raise client_error("InvalidArgumentException", action) from error

    def page(self, shard: SourceShard, cursor: int, at: float, limit: int, room: int) -> ShardPage:
        """Return what a shard has after a number at a moment.

        Args:
            shard: The shard.
            cursor: The number.
            at: The moment, in virtual seconds.
            limit: The most records.
            room: The most bytes, except for a single record.
        """
        page = read_page(shard, cursor, millis(at), limit=limit, room=room, between=self._between)
        return self.damage.clip(shard.shard_id, page)

    @property
    def fails_of_aggregates(self) -> bool:
        """Whether a reader has to fail of an aggregated record that it cannot read."""
        return KinesisFaultKind.AGGREGATE_DAMAGED in self._plan.fatal_kinds

    def is_broken(self, shard: SourceShard, page: ShardPage) -> bool:
        """Say whether a page has an aggregated record that cannot be read.

        Args:
            shard: Of which shard.
            page: The page.
        """
        return bool(shard.broken) and any(r.sequence in shard.broken for r in page.records)

    def sends(
        self, run: ProcessRun, attempt: SubscribeAttempt, shard: SourceShard, page: ShardPage
    ) -> None:
        """Record records on their way to a reader that it cannot read.

        Args:
            run: The process that gets them.
            attempt: The subscribe call of the reader.
            shard: Of which shard.
            page: The records.
        """
        if self.is_broken(shard, page):
            self.sends_damage(run, attempt, KinesisFaultKind.AGGREGATE_DAMAGED)

    def sends_damage(
        self, run: ProcessRun, attempt: SubscribeAttempt, kind: KinesisFaultKind
    ) -> None:
        """Record what is damaged for good, on its way to a reader.

        Args:
            run: The process that gets it.
            attempt: The subscribe call of the reader.
            kind: Which damage it is.
        """
        self.armed.strikes_again(kind)
        place = run.number, attempt.shard_id, *attempt.place
        self._sent_damage[place] += 1
        if kind in self._plan.fatal_kinds and self._sent_damage[place] >= _DAMAGE_LIMIT:
            self.doom = self.doom or f"{kind} in {attempt.shard_id}"

    def delete(self) -> None:
        """Delete the stream with its consumers."""
        self._consumers.remove_all()
        self.doom, self._back_at = "the stream was deleted", float("inf")

    def replace(self, seconds: float) -> None:
        """Delete the stream, and create another one under its name some seconds later."""
        self.delete()
        self._back_at = self.now + seconds
        self.log = self._plan.log(generation=1)
        self.retention = Retention(self.log)
        self._created = self.state.clock + timedelta(seconds=seconds)

    def doom_of(self, kind: KinesisFaultKind) -> None:
        """Record that no reader can go on after a fault of a kind, where the plan says so."""
        if kind in self._plan.fatal_kinds:
            self.doom = self.doom or str(kind)

    def _blame(self, rule: str) -> None:
        """Record a rule that was broken, except by who cannot know of a new stream."""
        if not self.gone:
            self.state.violated(rule)

    def _check_stream(self, action: str) -> None:
        if self.now < self._back_at:
            raise client_error("ResourceNotFoundException", action)
