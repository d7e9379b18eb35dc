"""Stream consumers of the embedded Kinesis server, and the rules of subscribing."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from fanout.testing.caller import Caller
    from fanout.testing.kinesis.rules import KinesisRules
    from fanout.testing.kinesis.shard import Shard

# How long a client may take for the rest of a subscription that is over, in seconds.
GRACE = 5.0

Violation = Literal[
    "subscribed_too_often",
    "subscribed_too_soon",
    "subscribed_before_active",
    "unknown_consumer",
    "unknown_shard",
    "invalid_position",
    "expired_iterator",
    "polled_too_often",
    "polled_too_much",
]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error of the service: its code and its text."""

    code: str
    message: str


class RefusedError(Exception):
    """A subscribe call or a poll broke a rule."""

    def __init__(self, violation: Violation, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.violation = violation
        self.refusal = refusal


@dataclass(slots=True, eq=False)
class ServedSubscription:
    """One live subscription: how far it has read, and whether it was told to end."""

    # The stream's lock guards every field.

    shard: Shard
    cursor: int
    caller: Caller
    ended: bool = False
    # What it tells its client when it is ended from outside; None ends it cleanly.
    refusal: Refusal | None = None

    def end(self, refusal: Refusal | None = None) -> None:
        """End the subscription and wake its thread; the first reason stays."""
        if not self.ended:
            self.ended, self.refusal = True, refusal
            self.caller.send_until(time.monotonic() + GRACE)
            self.shard.changed.notify_all()


@dataclass(slots=True)
class _Slot:
    """The state of a consumer for one shard; times are of the monotonic clock."""

    called_at: float | None = None
    succeeded_at: float | None = None
    live: ServedSubscription | None = None


class Consumer:
    """A registered stream consumer. The stream's lock guards its subscriptions."""

    # moto reads `consumer_name`, `consumer_arn` and `to_json`.

    def __init__(
        self,
        name: str,
        stream_arn: str,
        created: datetime,
        *,
        creating: float,
        tags: Mapping[str, str],
    ) -> None:
        self.consumer_name = name
        self.tags = dict(tags)
        self.stream_arn = stream_arn
        self.created = created
        self.consumer_arn = f"{stream_arn}/consumer/{name}:{int(created.timestamp())}"
        self._active_at = time.monotonic() + creating
        self._slots: dict[str, _Slot] = {}

    @property
    def status(self) -> str:
        """CREATING for the configured time, then ACTIVE."""
        return "ACTIVE" if time.monotonic() >= self._active_at else "CREATING"

    def to_json(self, include_stream_arn: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 (moto's signature)
        """Describe the consumer as the API does."""
        description = {
            "ConsumerName": self.consumer_name,
            "ConsumerARN": self.consumer_arn,
            "ConsumerStatus": self.status,
            "ConsumerCreationTimestamp": self.created,
        }
        return description | ({"StreamARN": self.stream_arn} if include_stream_arn else {})

    def note_call(self, shard_id: str, rules: KinesisRules) -> None:
        """Count a subscribe call towards the rate limit, unless the limit refuses it."""
        slot = self._slots.setdefault(shard_id, _Slot())
        now = time.monotonic()
        if slot.called_at is not None and now - slot.called_at < rules.call_interval:
            message = f"Rate exceeded for consumer {self.consumer_arn} and shard {shard_id}."
            raise RefusedError("subscribed_too_often", Refusal("LimitExceededException", message))
        slot.called_at = now

    def check_admission(self, shard_id: str, rules: KinesisRules) -> None:
        """Check that the consumer is active, and has not subscribed to the shard too recently."""
        if self.status != "ACTIVE":
            message = f"Consumer {self.consumer_arn} is not in the ACTIVE state."
            raise RefusedError(
                "subscribed_before_active", Refusal("ResourceInUseException", message)
            )
        succeeded_at = self._slots[shard_id].succeeded_at
        if succeeded_at is not None and time.monotonic() - succeeded_at < rules.takeover_after:
            raise RefusedError("subscribed_too_soon", self._in_use())

    def admit(self, shard: Shard, cursor: int, caller: Caller) -> ServedSubscription:
        """Begin a subscription, which takes over from the one before."""
        slot = self._slots[shard.shard_id]
        if slot.live is not None:
            slot.live.end(self._in_use())
        slot.live = ServedSubscription(shard, cursor, caller)
        slot.succeeded_at = time.monotonic()
        return slot.live

    def discard(self, subscription: ServedSubscription) -> None:
        """Forget a subscription whose response is over."""
        subscription.ended = True
        slot = self._slots[subscription.shard.shard_id]
        if slot.live is subscription:
            slot.live = None

    def end_all(self, refusal: Refusal | None) -> None:
        """End every live subscription."""
        for slot in self._slots.values():
            if slot.live is not None:
                slot.live.end(refusal)

    def live_count(self) -> int:
        """Return the number of live subscriptions."""
        return sum(slot.live is not None for slot in self._slots.values())

    def _in_use(self) -> Refusal:
        message = f"Another active subscription exists for this consumer: {self.consumer_arn}"
        return Refusal("ResourceInUseException", message)
