"""The enhanced fan-out consumer: find it, register it, wait until it can subscribe."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tenacity import AsyncRetrying, retry_if_exception

from fanout.errors import FanOutError, ServiceError
from fanout.kinesis.policy import code_of, explain

if TYPE_CHECKING:
    from fanout.core.backoff import FullJitter
    from fanout.kinesis.transport import ConsumerDescription, Transport

__all__ = ("ensure_consumer",)

# The service takes seconds to create a consumer; Flink and Redpanda give it a minute as well.
ACTIVATION_TIMEOUT: Final = 60.0

# Five consumers at a time may be CREATING, and five calls a second may register one (AWS API
# reference, RegisterStreamConsumer); a consumer that was just registered may not be found at once.
_NOT_YET = frozenset({"LimitExceededException", "ThrottlingException", "ResourceInUseException"})


class _NotActiveError(FanOutError):
    """The consumer exists but cannot subscribe yet."""

    retryable = True


async def ensure_consumer(
    transport: Transport, stream_arn: str, consumer: str, *, jitter: FullJitter
) -> str:
    """Return the ARN of an ACTIVE consumer, registering it first where a name is given.

    An existing consumer of that name is adopted, and so is one that somebody else registers at
    the same moment.

    Args:
        transport: The service.
        stream_arn: The stream's ARN.
        consumer: A consumer's name, or the ARN of one that must exist.
        jitter: How long to wait between two looks at it.

    Raises:
        ServiceError: If the consumer does not exist, is being deleted, is not ACTIVE within a
            minute, or may not be registered.

    Cancellation: a registration that was sent stays; the next call adopts it.
    """
    doing = f"the consumer {consumer!r} cannot be used"
    limit = asyncio.timeout(ACTIVATION_TIMEOUT)
    reason: BaseException | None = None
    try:
        async with limit:
            async for attempt in AsyncRetrying(
                wait=jitter, retry=retry_if_exception(_may_pass), reraise=True
            ):
                with attempt:
                    return await _active_consumer(transport, stream_arn, consumer)
                if (outcome := attempt.retry_state.outcome) is not None:
                    reason = outcome.exception()
    except FanOutError:
        raise
    except Exception as error:
        if limit.expired():
            raise ServiceError(
                f"{doing}: it did not become ACTIVE within {ACTIVATION_TIMEOUT:g} s ({reason})"
            ) from reason
        raise explain(error, doing) from error
    raise AssertionError("retrying ends by returning or by raising")


async def _active_consumer(transport: Transport, stream_arn: str, consumer: str) -> str:
    """Look at the consumer once, registering it where it is missing; return its ARN."""
    description = await _describe_or_register(transport, stream_arn, consumer)
    if description.status == "DELETING":
        raise ServiceError(
            f"the consumer {consumer!r} is being deleted; wait until it is gone, or name another"
        )
    if description.status != "ACTIVE":
        raise _NotActiveError(f"it is {description.status}")
    return description.arn


async def _describe_or_register(
    transport: Transport, stream_arn: str, consumer: str
) -> ConsumerDescription:
    if consumer.startswith("arn:"):
        return await transport.describe_consumer(arn=consumer)
    try:
        return await transport.describe_consumer(stream_arn=stream_arn, name=consumer)
    except Exception as error:
        if code_of(error) != "ResourceNotFoundException":
            raise
    return await transport.register_consumer(stream_arn, consumer)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, _NotActiveError) or code_of(error) in _NOT_YET
