"""What happens to a simulated stream, its shards and its consumers while it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.provers.simulation.kinesis.faults import KinesisFaultKind
from tests.provers.simulation.service_clock import millis

if TYPE_CHECKING:
    from tests.provers.simulation.kinesis.faults import KinesisFault
    from tests.provers.simulation.kinesis.service.service import KinesisSimService

__all__ = ("strike_service",)


def strike_service(service: KinesisSimService, fault: KinesisFault) -> bool:
    """Let something happen to the stream.

    Args:
        service: The service.
        fault: What happens.

    Returns:
        Whether there was anything that it could happen to.
    """
    if (
        fault.kind in {KinesisFaultKind.STREAM_GONE, KinesisFaultKind.STREAM_REPLACED}
        or service.gone
    ):
        return _end(service, fault)
    match fault.kind:
        case KinesisFaultKind.TAKEN_OVER | KinesisFaultKind.TAKEN_OVER_STALE:
            stale = fault.kind is KinesisFaultKind.TAKEN_OVER_STALE
            return service.consumers.take_over(fault.shard, stale=stale)
        case KinesisFaultKind.CONSUMER_GONE | KinesisFaultKind.CONSUMER_DELETING:
            service.doom_of(fault.kind)
            return service.consumers.remove_all(fault.seconds)
        case KinesisFaultKind.TRIMMED:
            return service.retention.trim(fault.shard, millis(service.now), service.random)
        case KinesisFaultKind.SHARDS_EXPIRED:
            expired = service.retention.expire(millis(service.now - fault.seconds))
            for shard_id in expired:
                service.consumers.end_all("ResourceNotFoundException", shard_id)
            return bool(expired)
        case _:
            return _suffer(service, fault)


def _end(service: KinesisSimService, fault: KinesisFault) -> bool:
    """Delete the stream; what would happen to one that is gone happens to nobody."""
    if service.gone:
        return False
    if fault.kind is KinesisFaultKind.STREAM_REPLACED:
        service.replace(fault.seconds)
    else:
        service.delete()
    return True


def _suffer(service: KinesisSimService, fault: KinesisFault) -> bool:
    """Let every call meet something."""
    match fault.kind:
        case KinesisFaultKind.RESHARD_STORM:
            pass  # the log was made with it
        case KinesisFaultKind.OUTAGE:
            service.conditions.go_down(fault.seconds)
            service.consumers.end_all(None)
        case KinesisFaultKind.THROTTLED:
            service.conditions.throttle(fault.code, fault.seconds)
        case KinesisFaultKind.CLOCK_AHEAD:
            service.conditions.skew = fault.seconds
        case KinesisFaultKind.CLOCK_BEHIND:
            service.conditions.skew = -fault.seconds
        case KinesisFaultKind.ROTATED:
            service.conditions.rotate()
        case kind:
            raise AssertionError(f"{kind} does not happen to a stream")
    return True
