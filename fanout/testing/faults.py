"""Faults that the embedded Kinesis server produces on request.

A fault is a value: it can be printed, compared, stored as JSON and replayed. It names where it
strikes (a shard, and the n-th event of a subscription, the n-th subscribe call or the n-th poll; or
the n-th call of any action, the n-th put) and how often.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import msgspec

from fanout.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class _StreamFault:
    """Strike at an event of a live subscription.

    Args:
        shard: the shard id; None means any shard.
        event: which event of a subscription it strikes at, counted from 1, empty events included;
            None means the next one, whichever it is.
        times: how many subscriptions it strikes before it is used up.
    """

    shard: str | None = None
    event: int | None = 1
    times: int = 1

    def __post_init__(self) -> None:
        _require_positive(times=self.times)
        if self.event is not None:
            _require_positive(event=self.event)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CallFault:
    """Strike at a call.

    Args:
        call: which matching call it strikes first, counted from 1 since the injection.
        times: how many calls in a row it strikes before it is used up.
    """

    call: int = 1
    times: int = 1

    def __post_init__(self) -> None:
        _require_positive(call=self.call, times=self.times)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SubscribeFault(_CallFault):
    """Strike at a subscribe call.

    Args:
        shard: the shard id; None means any shard.
    """

    shard: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _PollFault(_CallFault):
    """Strike at a GetRecords call that no rule refuses.

    Args:
        shard: the shard id; None means any shard.
    """

    shard: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ActionFault(_CallFault):
    """Strike at a call of the API.

    Args:
        action: the call, such as ListShards.
    """

    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CutConnection(_StreamFault):
    """Send the first half of the frame, then close the connection.

    Args:
        clean: end the response as if it were whole, instead of breaking off its transfer encoding.
    """

    clean: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GoAway(_StreamFault):
    """Send the event, then close the connection with all that it carries; HTTP/2 has a GOAWAY."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEarly(_StreamFault):
    """End the response cleanly in place of the event, although the shard goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall(_StreamFault):
    """Hold the event back: silence, heartbeats included.

    Args:
        seconds: how long; None means until the client leaves.
    """

    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptFrame(_StreamFault):
    """Send the frame with a wrong checksum.

    Args:
        checksum: which of the two, over the prelude or over the whole message.
    """

    checksum: Literal["prelude", "message"] = "message"


@dataclass(frozen=True, slots=True, kw_only=True)
class RaiseInStream(_StreamFault):
    """Send an exception frame in place of the event, and end the response.

    Args:
        code: the exception, such as InternalFailureException or KMSThrottlingException.
        message: the text for people.
    """

    code: str = "InternalFailureException"
    message: str = "injected fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfAnEnd(_StreamFault):
    """Send the event with one sign of the shard's end only, whether or not it has ended.

    Args:
        sign: `no_continuation` sends neither a continuation nor child shards; `children` sends
            both.
    """

    sign: Literal["no_continuation", "children"] = "no_continuation"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseSubscribe(_SubscribeFault):
    """Answer the subscribe call with an HTTP error.

    Args:
        status: the HTTP status.
        code: the error, such as LimitExceededException.
        message: the text for people.
        html: send an HTML page, as a load balancer in front of the service does, not JSON.
    """

    status: int = 500
    code: str = "InternalFailure"
    message: str = "injected fault"
    html: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoreSubscribe(_SubscribeFault):
    """Never answer the subscribe call: the connection stays open and silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseCall(_ActionFault):
    """Answer a call of the API with an HTTP error.

    Args:
        status: the HTTP status.
        code: the error, such as ResourceNotFoundException.
        message: the text for people.
        html: send an HTML page, as a load balancer in front of the service does, not JSON.
    """

    status: int = 400
    code: str = "AccessDeniedException"
    message: str = "injected fault"
    html: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoreCall(_ActionFault):
    """Never answer a call of the API: the connection stays open and silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoAwayAtCall(_ActionFault):
    """Close the connection with all that it carries instead of a call; HTTP/2 has a GOAWAY."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeKey:
    """Refuse every call from now on that is signed with an access key, as after a rotation.

    Args:
        access_key: the id of the key.
        code: the error, such as ExpiredTokenException.
        message: the text for people.
    """

    access_key: str
    code: str = "UnrecognizedClientException"
    message: str = "injected fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPoll(_PollFault):
    """Send the first half of the answer, then close the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyPoll(_PollFault):
    """Answer without records, and behind the tip, although there may be records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseRecords(_CallFault):
    """Refuse some records of a PutRecords call, or a PutRecord, and store the others.

    Args:
        shard: the shard whose records are refused; None means any shard.
        every: refuse each so many-th of them, beginning with the first.
        code: the error of a refused record.
    """

    shard: str | None = None
    every: int = 1
    code: str = "InternalFailure"

    def __post_init__(self) -> None:
        _require_positive(call=self.call, times=self.times, every=self.every)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPut(_CallFault):
    """Store what a PutRecords or PutRecord call puts, and close the connection, not answering."""


StreamFault = CutConnection | GoAway | EndEarly | Stall | CorruptFrame | RaiseInStream | HalfAnEnd
SubscribeFault = RefuseSubscribe | IgnoreSubscribe
PollFault = CutPoll | EmptyPoll
CallFault = RefuseCall | IgnoreCall | GoAwayAtCall
PutFault = RefuseRecords | CutPut
Fault = StreamFault | SubscribeFault | PollFault | CallFault | PutFault | RevokeKey
"""What `inject` takes: a fault of a subscription, a poll, a call or a put, or a revoked key."""

_KINDS: dict[str, type[Fault]] = {kind.__name__: kind for kind in get_args(Fault)}


def fault_to_json(fault: Fault) -> dict[str, Any]:
    """Return the fault as a JSON object, its class name under `kind`."""
    return {"kind": type(fault).__name__, **asdict(fault)}


def fault_from_json(document: dict[str, Any]) -> Fault:
    """Make the fault that `fault_to_json` wrote down.

    Raises:
        OptionError: the kind or a field is unknown, or a value has the wrong type or range.
    """
    values = dict(document)
    named = values.pop("kind", "")
    kind = _KINDS.get(named) if isinstance(named, str) else None
    if kind is None:
        raise OptionError(f"a fault's kind must be one of {', '.join(_KINDS)}")
    unknown = values.keys() - {field.name for field in fields(kind)}
    if unknown:
        raise OptionError(f"{kind.__name__} has no field {', '.join(sorted(unknown))}")
    try:
        return msgspec.convert(values, type=kind)
    except msgspec.ValidationError as error:
        raise OptionError(f"{kind.__name__}: {error}") from error


def _require_positive(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise OptionError(f"{name} must be at least 1, not {value}")
