"""Serve SubscribeToShard: admit the caller, then stream frames until the subscription ends."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Literal, assert_never

from fanout.testing.faults import (
    CorruptFrame,
    CutConnection,
    EndEarly,
    GoAway,
    HalfAnEnd,
    RaiseInStream,
    Stall,
)
from fanout.testing.kinesis import consumers
from fanout.testing.kinesis.consumers import Refusal, RefusedError
from fanout.testing.kinesis.frames import encode_event, encode_exception, payload_of
from fanout.testing.kinesis.server_state import now_in_millis
from fanout.testing.kinesis.shard import PositionRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.testing.caller import Caller
    from fanout.testing.kinesis.consumers import Consumer, ServedSubscription
    from fanout.testing.kinesis.moto_stream import EmbeddedStream
    from fanout.testing.kinesis.rules import KinesisRules
    from fanout.testing.kinesis.server_state import ServerState
    from fanout.testing.kinesis.shard import Page, Shard

# Offsets of a byte of either checksum in a frame.
_PRELUDE_CHECKSUM = 11
_MESSAGE_CHECKSUM = -1


def open_subscription(
    rules: KinesisRules,
    stream: EmbeddedStream,
    consumer: Consumer,
    shard: Shard,
    position: dict[str, Any],
    *,
    caller: Caller,
) -> ServedSubscription:
    """Begin a subscription if every rule allows it. The caller has counted the call."""
    with stream.lock:
        consumer.check_admission(shard.shard_id, rules)
        try:
            cursor = shard.cursor_at(position, now_in_millis())
        except PositionRefusedError as error:
            refusal = Refusal("InvalidArgumentException", str(error))
            raise RefusedError("invalid_position", refusal) from error
        return consumer.admit(shard, cursor, caller)


def stream_frames(
    state: ServerState,
    stream: EmbeddedStream,
    consumer: Consumer,
    subscription: ServedSubscription,
) -> Iterator[bytes]:
    """Yield the frames of a subscription until it ends or its client leaves."""
    caller = subscription.caller
    deadline = time.monotonic() + state.rules.subscription_life

    def end() -> None:
        with stream.lock:
            subscription.end()

    try:
        caller.on_gone(end)
        caller.send_until(deadline + consumers.GRACE)
        # Without that frame an empty chunk still sends the response's headers at once.
        yield encode_event("initial-response", b"{}") if state.rules.initial_response else b""
        for number, frame in enumerate(_frames(state, stream, subscription, deadline), 1):
            match state.faults.at_event(subscription.shard.shard_id, number):
                case None:
                    yield frame
                case EndEarly():
                    return
                case RaiseInStream(code=code, message=message):
                    yield encode_exception(code, message)
                    return
                case CorruptFrame(checksum=checksum):
                    yield _corrupt(frame, checksum)
                case HalfAnEnd(sign=sign):
                    yield _half_an_end(frame, sign, subscription.shard)
                case CutConnection() | GoAway() as fault:
                    yield from _break_off(fault, frame, caller)
                    return
                case Stall(seconds=seconds):
                    caller.wait_for_hang_up(seconds)
                    yield frame
                case fault:
                    assert_never(fault)
    finally:
        with stream.lock:
            consumer.discard(subscription)
        caller.on_gone(None)
        caller.send_until(None)


def _frames(
    state: ServerState,
    stream: EmbeddedStream,
    subscription: ServedSubscription,
    deadline: float,
) -> Iterator[bytes]:
    rules = state.rules
    shard = subscription.shard

    def due() -> bool:
        ending = subscription.ended or state.closing
        return ending or shard.has_news(subscription.cursor)

    while (remaining := deadline - time.monotonic()) > 0:
        with stream.lock:
            shard.changed.wait_for(due, timeout=min(rules.heartbeat, remaining))
            if subscription.ended or state.closing:
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
        yield encode_event("SubscribeToShardEvent", _encode_page(shard, page))
        if page.continuation is None:
            return
    if subscription.refusal is not None:
        yield encode_exception(subscription.refusal.code, subscription.refusal.message)


def _break_off(fault: CutConnection | GoAway, frame: bytes, caller: Caller) -> Iterator[bytes]:
    if isinstance(fault, GoAway):
        yield frame
        caller.leave()
    else:
        yield frame[: len(frame) // 2]
        if fault.clean:
            return
        caller.cut()
    raise ConnectionAbortedError("injected fault: the connection is cut")


def _encode_page(shard: Shard, page: Page) -> bytes:
    if page.continuation is None:
        children = json.dumps([child.as_child() for child in shard.children])
        position = f'"ChildShards":{children}'
    else:
        position = f'"ContinuationSequenceNumber":"{page.continuation}"'
    tail = f'],{position},"MillisBehindLatest":{page.millis_behind}}}'
    return b"".join((b'{"Records":[', b",".join(page.records), tail.encode()))


def _corrupt(frame: bytes, checksum: Literal["prelude", "message"]) -> bytes:
    damaged = bytearray(frame)
    damaged[_PRELUDE_CHECKSUM if checksum == "prelude" else _MESSAGE_CHECKSUM] ^= 0xFF
    return bytes(damaged)


def _half_an_end(frame: bytes, sign: Literal["no_continuation", "children"], shard: Shard) -> bytes:
    event = json.loads(payload_of(frame))
    children = event.pop("ChildShards", [shard.as_child()])
    continuation = event.pop("ContinuationSequenceNumber", str(shard.last_number))
    if sign == "children":
        event |= {"ChildShards": children, "ContinuationSequenceNumber": continuation}
    return encode_event("SubscribeToShardEvent", json.dumps(event).encode())
