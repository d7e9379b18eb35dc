"""The stream consumers of the simulated service, and which of them reads what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from fanout.kinesis.transport import ConsumerDescription
from fanout.testing.simulation.refusals import client_error

if TYPE_CHECKING:
    from datetime import datetime

    from fanout.testing.simulation.body import SubscriptionBody
    from fanout.testing.simulation.life import Life
    from fanout.testing.simulation.service import SimService

__all__ = ("SimConsumers",)

_SUBSCRIBE = "SubscribeToShard"
_STRANGER = 0


@dataclass(slots=True)
class _Desk:
    """What the service remembers of one consumer and shard; callers are numbers of lives."""

    called_at: float = -1e9
    caller: int = _STRANGER
    succeeded_at: float = -1e9
    succeeder: int = _STRANGER
    live: SubscriptionBody | None = None


@dataclass(slots=True)
class _Consumer:
    name: str
    arn: str
    created: datetime
    active_at: float
    desks: dict[str, _Desk] = field(default_factory=dict)


@final
class SimConsumers:
    """Register consumers, and let each have one subscription to a shard.

    Args:
        service: The service that they belong to.
        stream_arn: Its stream.
    """

    def __init__(self, service: SimService, stream_arn: str) -> None:
        self._service = service
        self._stream_arn = stream_arn
        self._consumers: dict[str, _Consumer] = {}
        self._registrations = 0

    def __len__(self) -> int:
        return len(self._consumers)

    def register(self, name: str) -> ConsumerDescription:
        """Answer RegisterStreamConsumer."""
        if any(consumer.name == name for consumer in self._consumers.values()):
            raise client_error("ResourceInUseException", "RegisterStreamConsumer")
        self._registrations += 1
        arn = f"{self._stream_arn}/consumer/{name}:{self._registrations}"
        active_at = self._service.now + self._service.rules.consumer_creating
        self._consumers[arn] = _Consumer(name, arn, self._service.clock, active_at)
        return self._description(self._consumers[arn])

    def describe(self, arn: str | None, name: str | None) -> ConsumerDescription:
        """Answer DescribeStreamConsumer."""
        for consumer in self._consumers.values():
            if arn == consumer.arn or name == consumer.name:
                return self._description(consumer)
        raise client_error("ResourceNotFoundException", "DescribeStreamConsumer")

    def deregister(self, arn: str) -> None:
        """Answer DeregisterStreamConsumer: its subscriptions end."""
        consumer = self._consumers.pop(arn, None)
        if consumer is None:
            raise client_error("ResourceNotFoundException", "DeregisterStreamConsumer")
        for desk in consumer.desks.values():
            if desk.live is not None:
                desk.live.end("ResourceNotFoundException")

    def remove_all(self) -> None:
        """Deregister every consumer, as somebody else may do."""
        for arn in list(self._consumers):
            self.deregister(arn)

    def call(self, life: Life, arn: str, shard_id: str) -> None:
        """Count a subscribe call towards the rate limit.

        Raises:
            ClientError: It comes less than a second after the one before.
        """
        desk, now = self._desk(arn, shard_id), self._service.now
        if now - desk.called_at < self._service.rules.call_interval:
            if desk.caller == life.number:
                self._service.violated(f"{shard_id} was subscribed to twice within a second")
            raise client_error("LimitExceededException", _SUBSCRIBE)
        desk.called_at, desk.caller = now, life.number

    def admit(self, life: Life, arn: str, shard_id: str) -> None:
        """Check that a subscription may begin.

        Raises:
            ClientError: A rule forbids it.
        """
        desk, now = self._desk(arn, shard_id), self._service.now
        if now < self._consumers[arn].active_at:
            self._service.violated(f"{shard_id} was subscribed to before its consumer was ACTIVE")
            raise client_error("ResourceInUseException", _SUBSCRIBE)
        if desk.live is not None and desk.live.life is life:
            self._service.violated(f"{shard_id} has two live subscriptions")
        if now - desk.succeeded_at < self._service.rules.takeover_after:
            if desk.succeeder == life.number:
                self._service.violated(f"{shard_id} was subscribed to again within five seconds")
            raise client_error("ResourceInUseException", _SUBSCRIBE)

    def begin(self, arn: str, body: SubscriptionBody) -> None:
        """Let a subscription be the live one; it takes over from the one before."""
        desk = self._desk(arn, body.shard.shard_id)
        if desk.live is not None:
            desk.live.end("ResourceInUseException")
        desk.live, desk.succeeded_at = body, self._service.now
        desk.succeeder = body.life.number

    def discard(self, body: SubscriptionBody) -> None:
        """Forget a subscription whose connection is closed."""
        for consumer in self._consumers.values():
            desk = consumer.desks.get(body.shard.shard_id)
            if desk is not None and desk.live is body:
                desk.live = None

    def take_over(self, shard_id: str | None) -> None:
        """Let a stranger subscribe with our consumer, and leave again."""
        for consumer in self._consumers.values():
            for id_, desk in consumer.desks.items():
                if shard_id not in {None, id_}:
                    continue
                if desk.live is not None:
                    desk.live.end("ResourceInUseException")
                desk.live, desk.succeeder = None, _STRANGER
                desk.succeeded_at = self._service.now

    def live_of(self, life: Life) -> list[str]:
        """Return the shards to which a process has a connection."""
        return [
            shard_id
            for consumer in self._consumers.values()
            for shard_id, desk in consumer.desks.items()
            if desk.live is not None and desk.live.life is life
        ]

    def _desk(self, arn: str, shard_id: str) -> _Desk:
        if arn not in self._consumers:
            raise client_error("ResourceNotFoundException", _SUBSCRIBE)
        return self._consumers[arn].desks.setdefault(shard_id, _Desk())

    def _description(self, consumer: _Consumer) -> ConsumerDescription:
        status = "ACTIVE" if self._service.now >= consumer.active_at else "CREATING"
        return ConsumerDescription(consumer.name, consumer.arn, status, consumer.created)
