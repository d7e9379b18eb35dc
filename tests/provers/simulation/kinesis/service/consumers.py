"""The stream consumers of the simulated service, and which of them reads what."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, final

from fanout.kinesis.aws.api import ConsumerDescription
from tests.support.kinesis.client_errors import client_error

if TYPE_CHECKING:
    from datetime import datetime

    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kinesis.service.service_state import ServiceState
    from tests.provers.simulation.kinesis.service.stream_log import SourceShard

__all__ = ("KinesisConsumers", "LiveSubscription")

_SUBSCRIBE = "SubscribeToShard"
_STRANGER = 0


class LiveSubscription(Protocol):
    """A subscription whose connection is open."""

    @property
    def run(self) -> ProcessRun:
        """The process that has it."""

    @property
    def shard(self) -> SourceShard:
        """Its shard."""

    def end(self, code: str | None, *, stale: bool = False) -> None:
        """End it behind what is written already; see `SubscriptionFrames.end`."""


@dataclass(slots=True)
class _ShardState:
    """The state of the service for one consumer and shard; callers are numbers of runs."""

    called_at: float = -1e9
    caller: int = _STRANGER
    succeeded_at: float = -1e9
    succeeder: int = _STRANGER
    live: LiveSubscription | None = None


@dataclass(slots=True)
class _Consumer:
    name: str
    arn: str
    created: datetime
    active_at: float
    gone_at: float = math.inf
    shards: dict[str, _ShardState] = field(default_factory=dict)

    def end_all(self, code: str | None, shard_id: str | None = None) -> bool:
        live = [
            state.live
            for id_, state in self.shards.items()
            if state.live is not None and shard_id in {None, id_}
        ]
        for body in live:
            body.end(code)
        return bool(live)


@final
class KinesisConsumers:
    """Register consumers, and let each have one subscription to a shard.

    Args:
        state: The state of the service.
        stream_arn: Its stream.
    """

    def __init__(self, state: ServiceState, stream_arn: str) -> None:
        self._state = state
        self._stream_arn = stream_arn
        self._consumers: dict[str, _Consumer] = {}
        self._registrations = 0
        self._open: dict[LiveSubscription, None] = {}

    def __len__(self) -> int:
        self._forget_deleted()
        return len(self._consumers)

    def register(self, name: str) -> ConsumerDescription:
        """Answer RegisterStreamConsumer."""
        self._forget_deleted()
        if any(consumer.name == name for consumer in self._consumers.values()):
            raise client_error("ResourceInUseException", "RegisterStreamConsumer")
        arn = self.add(name, self._state.clock)
        self._consumers[arn].active_at += self._state.now + self._state.rules.consumer_creating
        return self._description(self._consumers[arn])

    def add(self, name: str, created: datetime) -> str:
        """Let there be an ACTIVE consumer; return its ARN.

        Args:
            name: Its name.
            created: When it was registered.
        """
        self._registrations += 1
        arn = f"{self._stream_arn}/consumer/{name}:{self._registrations}"
        self._consumers[arn] = _Consumer(name, arn, created, 0.0)
        return arn

    def describe(self, arn: str | None, name: str | None) -> ConsumerDescription:
        """Answer DescribeStreamConsumer.

        Args:
            arn: Its ARN, where that is known.
            name: Its name, where that is known.
        """
        self._forget_deleted()
        for consumer in self._consumers.values():
            if arn == consumer.arn or name == consumer.name:
                return self._description(consumer)
        raise client_error("ResourceNotFoundException", "DescribeStreamConsumer")

    def deregister(self, arn: str) -> None:
        """Answer DeregisterStreamConsumer: its subscriptions end."""
        consumer = self._consumers.pop(arn, None)
        if consumer is None:
            raise client_error("ResourceNotFoundException", "DeregisterStreamConsumer")
        consumer.end_all("ResourceNotFoundException")

    def remove_all(self, seconds: float = 0.0) -> bool:
        """Deregister every consumer, as another user may do; return whether there was any.

        Args:
            seconds: For how long they are DELETING.
        """
        self._forget_deleted()
        for consumer in self._consumers.values():
            consumer.gone_at = min(consumer.gone_at, self._state.now + seconds)
            consumer.end_all("ResourceNotFoundException")
        found = bool(self._consumers)
        self._forget_deleted()
        return found

    def end_all(self, code: str | None, shard_id: str | None = None) -> bool:
        """End the subscriptions to a shard, or to all; return whether there was any.

        Args:
            code: With which error; None to cut their connections.
            shard_id: The shard; None for all.
        """
        ended = [consumer.end_all(code, shard_id) for consumer in self._consumers.values()]
        return any(ended)

    def call(self, run: ProcessRun, arn: str, shard_id: str) -> None:
        """Count a subscribe call towards the rate limit.

        Args:
            run: The process that calls.
            arn: With which consumer.
            shard_id: To which shard.

        Raises:
            ClientError: It comes less than a second after the one before.
        """
        state, now = self._shard_state(arn, shard_id), self._state.now
        if now - state.called_at < self._state.rules.call_interval:
            if state.caller == run.number:
                self._state.violated(f"{shard_id} was subscribed to twice within a second")
            raise client_error("LimitExceededException", _SUBSCRIBE)
        state.called_at, state.caller = now, run.number

    def admit(self, run: ProcessRun, arn: str, shard_id: str) -> None:
        """Check that a subscription may begin.

        Args:
            run: The process that calls.
            arn: With which consumer.
            shard_id: To which shard.

        Raises:
            ClientError: A rule forbids it.
        """
        state, now = self._shard_state(arn, shard_id), self._state.now
        if now < self._consumers[arn].active_at:
            self._state.violated(f"{shard_id} was subscribed to before its consumer was ACTIVE")
            raise client_error("ResourceInUseException", _SUBSCRIBE)
        if state.live is not None and state.live.run is run:
            self._state.violated(f"{shard_id} has two live subscriptions")
        if now - state.succeeded_at < self._state.rules.takeover_after:
            # A process that gave up before the answer does not know that the call succeeded.
            if run.attempts.answered_at[shard_id] >= state.succeeded_at:
                self._state.violated(f"{shard_id} was subscribed to again within five seconds")
            raise client_error("ResourceInUseException", _SUBSCRIBE)

    def begin(self, arn: str, body: LiveSubscription) -> None:
        """Let a subscription be the live one; it takes over from the one before.

        Args:
            arn: With which consumer.
            body: The subscription.
        """
        state = self._shard_state(arn, body.shard.shard_id)
        if state.live is not None:
            state.live.end("ResourceInUseException")
        state.live, state.succeeded_at = body, self._state.now
        state.succeeder = body.run.number
        self._open[body] = None

    def discard(self, body: LiveSubscription) -> None:
        """Forget a subscription whose connection is closed."""
        self._open.pop(body, None)
        for consumer in self._consumers.values():
            state = consumer.shards.get(body.shard.shard_id)
            if state is not None and state.live is body:
                state.live = None

    def take_over(self, shard_id: str | None, *, stale: bool) -> bool:
        """Let a stranger subscribe with our consumer, and leave again.

        Args:
            shard_id: To which shard; None for all.
            stale: Whether the old connections repeat themselves before they end.

        Returns:
            Whether there was a subscription to take over.
        """
        taken = False
        for consumer in self._consumers.values():
            for id_, state in consumer.shards.items():
                if shard_id not in {None, id_}:
                    continue
                if state.live is not None:
                    state.live.end("ResourceInUseException", stale=stale)
                    taken = True
                state.live, state.succeeder = None, _STRANGER
                state.succeeded_at = self._state.now
        return taken

    def live_of(self, run: ProcessRun) -> list[str]:
        """Return the shards to which a process has a connection."""
        return [body.shard.shard_id for body in self._open if body.run is run]

    def _shard_state(self, arn: str, shard_id: str) -> _ShardState:
        self._forget_deleted()
        consumer = self._consumers.get(arn)
        if consumer is None or consumer.gone_at < math.inf:
            raise client_error("ResourceNotFoundException", _SUBSCRIBE)
        return self._consumers[arn].shards.setdefault(shard_id, _ShardState())

    def _description(self, consumer: _Consumer) -> ConsumerDescription:
        status = "ACTIVE" if self._state.now >= consumer.active_at else "CREATING"
        if consumer.gone_at < math.inf:
            status = "DELETING"
        return ConsumerDescription(consumer.name, consumer.arn, status, consumer.created)

    def _forget_deleted(self) -> None:
        now = self._state.now
        for arn in [arn for arn, each in self._consumers.items() if each.gone_at <= now]:
            del self._consumers[arn]
