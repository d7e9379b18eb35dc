"""Serve SubscribeToShard: admit the caller, then stream frames until the subscription ends."""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Lock
from typing import TYPE_CHECKING, Any, assert_never

from fanout.testing._consumers import Refusal, RefusedError
from fanout.testing._fault_plan import FaultPlan
from fanout.testing._shard import PositionRefusedError
from fanout.testing.faults import CorruptFrame, CutConnection, EndEarly, RaiseInStream, Stall
from fanout.testing.frames import encode_event, encode_exception

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.testing._consumers import Consumer, Subscription
    from fanout.testing._moto_kinesis import Stream
    from fanout.testing._shard import Page, Shard
    from fanout.testing.rules import KinesisRules

__all__ = ("Service", "now_in_millis", "open_subscription", "stream_frames", "wait_for_hang_up")

_PRELUDE_CRC = 11


@dataclass(slots=True)
class Service:
    """What all requests to one server share."""

    rules: KinesisRules
    faults: FaultPlan = field(default_factory=FaultPlan)
    subscribe_calls: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    lock: Lock = field(default_factory=Lock)

    def count_call(self, shard_id: str) -> None:
        """Count a subscribe call."""
        with self.lock:
            self.subscribe_calls[shard_id] += 1

    def count_violation(self, violation: str) -> None:
        """Count a broken rule."""
        with self.lock:
            self.violations[violation] += 1


def now_in_millis() -> int:
    """Return the wall clock, which arrival times and AT_TIMESTAMP are about."""
    return int(datetime.now(UTC).timestamp() * 1000)


def open_subscription(
    service: Service,
    stream: Stream,
    consumer: Consumer,
    shard: Shard,
    position: dict[str, Any],
) -> Subscription:
    """Begin a subscription if every rule allows it. The caller has counted the call.

    Raises:
        RefusedError: a rule is broken.
    """
    with stream.lock:
        consumer.check_admission(shard.shard_id, service.rules)
        try:
            cursor = shard.cursor_at(position, now_in_millis())
        except PositionRefusedError as error:
            refusal = Refusal("InvalidArgumentException", str(error))
            raise RefusedError("invalid_position", refusal) from error
        return consumer.admit(shard, cursor)


def stream_frames(
    service: Service,
    stream: Stream,
    consumer: Consumer,
    subscription: Subscription,
    connection: socket.socket,
) -> Iterator[bytes]:
    """Yield the frames of a subscription until it ends or its client leaves."""
    try:
        if service.rules.initial_response:
            yield encode_event("initial-response", b"{}")
        for number, frame in enumerate(_frames(service.rules, stream, subscription, connection), 1):
            match service.faults.at_event(subscription.shard.shard_id, number):
                case None:
                    yield frame
                case EndEarly():
                    return
                case RaiseInStream(code=code, message=message):
                    yield encode_exception(code, message)
                    return
                case CorruptFrame(checksum=checksum):
                    yield _corrupt(frame, _PRELUDE_CRC if checksum == "prelude" else -1)
                case CutConnection():
                    yield frame[: len(frame) // 2]
                    connection.shutdown(socket.SHUT_RDWR)
                    raise ConnectionAbortedError("injected fault: the connection is cut")
                case Stall(seconds=seconds):
                    wait_for_hang_up(connection, seconds)
                    yield frame
                case fault:
                    assert_never(fault)
    finally:
        with stream.lock:
            consumer.discard(subscription)


def _frames(
    rules: KinesisRules, stream: Stream, subscription: Subscription, connection: socket.socket
) -> Iterator[bytes]:
    deadline = time.monotonic() + rules.subscription_life
    shard = subscription.shard

    def due() -> bool:
        return subscription.ended or shard.has_news(subscription.cursor)

    while (remaining := deadline - time.monotonic()) > 0:
        with stream.lock:
            shard.changed.wait_for(due, timeout=min(rules.heartbeat, remaining))
            if subscription.ended:
                break
            if not due() and remaining <= rules.heartbeat:
                return
            page = shard.read(
                subscription.cursor,
                rules.max_event_records,
                rules.max_event_bytes,
                now_in_millis(),
            )
            if page.continuation is not None:
                subscription.cursor = page.continuation
        if wait_for_hang_up(connection, 0):
            return
        yield encode_event("SubscribeToShardEvent", _encode_page(shard, page))
        if page.continuation is None:
            return
    if subscription.refusal is not None:
        yield encode_exception(subscription.refusal.code, subscription.refusal.message)


def _encode_page(shard: Shard, page: Page) -> bytes:
    if page.continuation is None:
        children = json.dumps([child.as_child() for child in shard.children])
        position = f'"ChildShards":{children}'
    else:
        position = f'"ContinuationSequenceNumber":"{page.continuation}"'
    tail = f'],{position},"MillisBehindLatest":{page.millis_behind}}}'
    return b"".join((b'{"Records":[', b",".join(page.records), tail.encode()))


def _corrupt(frame: bytes, index: int) -> bytes:
    damaged = bytearray(frame)
    damaged[index] ^= 0xFF
    return bytes(damaged)


def wait_for_hang_up(connection: socket.socket, seconds: float | None) -> bool:
    """Wait until the client closes its end, for at most so many seconds (None: for ever).

    A client sends nothing after its request, so that a readable socket means a closed one.

    Returns:
        Whether the client is gone.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        return bool(selector.select(seconds))
