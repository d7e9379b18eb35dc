"""What clients did to an embedded server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("KinesisStatistics",)


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisStatistics:
    """Say what clients did to the server.

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
