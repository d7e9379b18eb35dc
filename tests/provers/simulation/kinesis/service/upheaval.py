"""What happens to a simulated stream, its shards and its consumers while it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.provers.simulation.kinesis.faults.faults import Kind
from tests.provers.simulation.kinesis.stream import millis

if TYPE_CHECKING:
    from tests.provers.simulation.kinesis.faults.faults import Fault
    from tests.provers.simulation.kinesis.service.service import SimService

__all__ = ("befall",)


def befall(service: SimService, fault: Fault) -> bool:
    """Let something happen to the stream.

    Args:
        service: The service.
        fault: What happens.

    Returns:
        Whether there was anything that it could happen to.
    """
    if fault.kind in {Kind.STREAM_GONE, Kind.STREAM_REPLACED} or service.gone:
        return _end(service, fault)
    match fault.kind:
        case Kind.TAKEN_OVER | Kind.TAKEN_OVER_STALE:
            stale = fault.kind is Kind.TAKEN_OVER_STALE
            return service.consumers.take_over(fault.shard, stale=stale)
        case Kind.CONSUMER_GONE | Kind.CONSUMER_DELETING:
            service.doom_of(fault.kind)
            return service.consumers.remove_all(fault.seconds)
        case Kind.TRIMMED:
            return service.retention.trim(fault.shard, millis(service.now), service.random)
        case Kind.SHARDS_EXPIRED:
            expired = service.retention.expire(millis(service.now - fault.seconds))
            for shard_id in expired:
                service.consumers.end_all("ResourceNotFoundException", shard_id)
            return bool(expired)
        case _:
            return _suffer(service, fault)


def _end(service: SimService, fault: Fault) -> bool:
    """Delete the stream; what would happen to one that is gone happens to nobody."""
    if service.gone:
        return False
    if fault.kind is Kind.STREAM_REPLACED:
        service.replace(fault.seconds)
    else:
        service.delete()
    return True


def _suffer(service: SimService, fault: Fault) -> bool:
    """Let every call meet something."""
    match fault.kind:
        case Kind.RESHARD_STORM:
            pass  # the log was made with it
        case Kind.OUTAGE:
            service.conditions.go_down(fault.seconds)
            service.consumers.end_all(None)
        case Kind.THROTTLED:
            service.conditions.throttle(fault.code, fault.seconds)
        case Kind.CLOCK_AHEAD:
            service.conditions.skew = fault.seconds
        case Kind.CLOCK_BEHIND:
            service.conditions.skew = -fault.seconds
        case Kind.ROTATED:
            service.conditions.rotate()
        case kind:
            raise AssertionError(f"{kind} does not happen to a stream")
    return True
