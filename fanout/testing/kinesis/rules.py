"""The limits and times that the embedded Kinesis keeps to, and its counts of client calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

_POSITIVE = (
    "heartbeat",
    "subscription_life",
    "max_event_records",
    "max_event_bytes",
    "iterator_life",
    "token_life",
    "max_poll_records",
    "max_poll_bytes",
)

_NOT_NEGATIVE = (
    "takeover_after",
    "call_interval",
    "consumer_creating",
    "polls_per_second",
    "polled_bytes_per_second",
    "put_records_per_second",
    "put_bytes_per_second",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisRules:
    """The limits and times of an embedded server.

    The defaults are the service's own figures (API reference of SubscribeToShard, GetRecords,
    GetShardIterator and RegisterStreamConsumer); `KinesisRules.fast()` has the ones for offline
    tests.

    Args:
        heartbeat: longest silence of a subscription, in seconds; then an empty event is sent.
        subscription_life: seconds after which the server ends a subscription.
        takeover_after: seconds after a successful subscribe during which another one for the same
            consumer and shard gets ResourceInUseException; later it takes the subscription over.
        call_interval: seconds between two subscribe calls for one consumer and shard; a call that
            comes sooner gets LimitExceededException. 0 allows any rate.
        consumer_creating: seconds for which a new consumer is CREATING before it is ACTIVE.
        max_event_records: records in one event at most.
        max_event_bytes: bytes of data and partition keys in one event at most, except that an
            event may always carry one record.
        polls_per_second: GetRecords calls, and as many GetShardIterator calls, that a shard takes
            in any second; one more gets ProvisionedThroughputExceededException. 0 allows any rate.
        polled_bytes_per_second: bytes of data and partition keys that a shard returns to polls in
            a second; after more, polls are refused until the average is back. 0 allows any rate.
        put_records_per_second: records that a shard takes from puts in a second; one more is
            refused with ProvisionedThroughputExceededException. 0, the default, allows any rate;
            the service allows 1,000.
        put_bytes_per_second: bytes of data and partition keys that a shard takes from puts in a
            second, likewise; the service allows 1 MiB.
        iterator_life: seconds after which a shard iterator has expired.
        token_life: seconds after which the NextToken of a listing has expired.
        max_poll_records: records in one answer to a poll at most.
        max_poll_bytes: bytes of data and partition keys in one answer to a poll at most, except
            that it may always carry one record.
        initial_response: send an `initial-response` frame first, as the service does.

    Raises:
        OptionError: a value is out of its range.
    """

    heartbeat: float = 5.0
    subscription_life: float = 300.0
    takeover_after: float = 5.0
    call_interval: float = 1.0
    consumer_creating: float = 0.0
    max_event_records: int = 10_000
    max_event_bytes: int = 1 << 20
    polls_per_second: int = 5
    polled_bytes_per_second: int = 2 << 20
    put_records_per_second: int = 0
    put_bytes_per_second: int = 0
    iterator_life: float = 300.0
    token_life: float = 300.0
    max_poll_records: int = 10_000
    max_poll_bytes: int = 10 << 20
    initial_response: bool = True

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise OptionError(f"{name} must be greater than 0, not {getattr(self, name)}")
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise OptionError(f"{name} must not be negative, not {getattr(self, name)}")

    @classmethod
    def fast(cls) -> KinesisRules:
        """Return rules for quick tests: short heartbeats, and no pause between calls."""
        return cls(heartbeat=0.05, takeover_after=0.0, call_interval=0.0, polls_per_second=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisStatistics:
    """Counts of what clients did to a server.

    Args:
        subscribe_calls: SubscribeToShard calls per shard id, refused ones included.
        poll_calls: GetRecords calls per shard id, those that a rule refused included.
        violations: broken rules by kind: subscribed_too_often, subscribed_too_soon,
            subscribed_before_active, unknown_consumer, unknown_shard, invalid_position,
            expired_iterator, polled_too_often, polled_too_much.
        faults: injected faults that struck, by kind.
        open_subscriptions: subscriptions that are live now.
    """

    subscribe_calls: Mapping[str, int]
    poll_calls: Mapping[str, int]
    violations: Mapping[str, int]
    faults: Mapping[str, int]
    open_subscriptions: int
