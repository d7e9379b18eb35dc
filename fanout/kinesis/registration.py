"""Find or register an enhanced fan-out consumer, wait until it can subscribe, and deregister it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, final

from fanout.core.backoff import retrying
from fanout.core.sentence import Sentence, Suggestion
from fanout.errors import FanOutError, ServiceError
from fanout.kinesis.aws.error_hints import code_of, explain
from fanout.kinesis.policy import passes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.core.backoff import FullJitter
    from fanout.kinesis.aws.api import ConsumerDescription, KinesisClient

# The service creates a consumer within seconds; Flink and Redpanda wait for a minute as well.
ACTIVATION_TIMEOUT: Final = 60.0
# The limit that a consumer adds to closing a stream; Flink's is the same.
DEREGISTRATION_TIMEOUT: Final = 10.0

# 20 consumers, or 50 in the mode On-demand Advantage (AWS API reference, RegisterStreamConsumer).
_QUOTA = Sentence(
    "; the stream may have its maximum number of consumers: deregister an unused one (fanout "
    "consumers list), or read without a consumer",
    Suggestion.of(", with {mode='polling'}"),
)

log = logging.getLogger(__name__)


class _NotActiveError(FanOutError):
    """The consumer exists but cannot subscribe yet."""

    retryable = True


@final
class ConsumerRegistration:
    """Own the consumer of one stream, given by its name, or by the ARN of one that must exist.

    The tags are those of a consumer that is registered here; one that exists keeps its own.
    """

    def __init__(
        self,
        client: KinesisClient,
        stream_arn: str,
        consumer: str,
        *,
        jitter: FullJitter,
        tags: Mapping[str, str],
    ) -> None:
        self._client = client
        self._stream_arn = stream_arn
        self._consumer = consumer
        self._jitter = jitter
        self._tags = tags
        self._arn = consumer if consumer.startswith("arn:") else ""
        self._registered: str | None = None

    @property
    def name(self) -> str:
        """The name of the consumer, also where its ARN was given."""
        return self._consumer.rpartition("/")[2].partition(":")[0]

    @property
    def arn(self) -> str:
        """The ARN of the consumer that `ensure` found or registered last."""
        return self._arn

    @property
    def renewable(self) -> bool:
        """Whether a consumer that is gone can be registered again: it has a name, not an ARN."""
        return not self._is_arn

    @property
    def registered(self) -> str | None:
        """The ARN of the consumer that was registered here; None if one was adopted."""
        return self._registered

    async def ensure(self) -> str:
        """Return the ARN of an ACTIVE consumer; one that is given by name is registered if missing.

        An existing consumer of that name is adopted, and so is one that another process registers
        at the same moment. If it is being deleted, it is registered again after that. One that is
        not ACTIVE within a minute is a ServiceError.

        Cancellation: a registration that was sent stays; the next call adopts it, and `undo` takes
        it back if the service has answered.
        """
        doing = f"the consumer {self._consumer!r} cannot be used"
        limit = asyncio.timeout(ACTIVATION_TIMEOUT)
        reason: BaseException | None = None

        def may_pass(error: BaseException) -> bool:
            nonlocal reason
            passes = _may_pass(error)
            if passes:
                reason = error
            return passes

        try:
            async with limit:
                self._arn = await retrying(self._active_consumer, self._jitter, may_pass)
        except FanOutError:
            raise
        except Exception as error:
            if limit.expired():
                full = reason is not None and code_of(reason) == "LimitExceededException"
                raise ServiceError(
                    f"{doing}: it did not become ACTIVE within {ACTIVATION_TIMEOUT:g} s "
                    f"({reason or 'the service did not answer'})",
                    _QUOTA if full else "",
                ) from (reason or error)
            raise explain(error, doing) from error
        return self._arn

    async def exists(self) -> bool:
        """Return whether the consumer that `ensure` returned is still registered, by one call."""
        try:
            description = await self._client.describe_consumer(arn=self._arn)
        except Exception as error:
            if code_of(error) == "ResourceNotFoundException":
                return False
            raise
        return description.status != "DELETING"

    async def undo(self) -> None:
        """Deregister the consumer if it was registered here; that ends all its subscriptions.

        It takes 10 seconds at most and raises nothing, because it runs while a stream closes. A
        consumer that stays is logged; after a cancellation it may stay.
        """
        if self._registered is None:
            return
        try:
            await deregister_consumer(self._client, self._registered, jitter=self._jitter)
        except asyncio.CancelledError:
            self._log_leak("the task was cancelled meanwhile")
            raise
        except FanOutError as error:
            self._log_leak(error)

    def _log_leak(self, reason: object) -> None:
        log.warning(
            "the consumer %s may stay registered, and cost money: %s",
            self._registered,
            reason,
        )

    async def _active_consumer(self) -> str:
        """Describe the consumer once, register it if it is missing, and return its ARN."""
        description = await self._describe_or_register()
        if description.status == "DELETING" and self._is_arn:
            # An ARN holds the time of creation: a new consumer of that name has another one.
            raise ServiceError(
                f"the consumer {self._consumer} is being deleted; use another one, or give its "
                f"name to have it registered again"
            )
        if description.status != "ACTIVE":
            raise _NotActiveError(f"it is {description.status}")
        return description.arn

    async def _describe_or_register(self) -> ConsumerDescription:
        if self._is_arn:
            return await self._client.describe_consumer(arn=self._consumer)
        try:
            return await self._client.describe_consumer(
                stream_arn=self._stream_arn, name=self._consumer
            )
        except Exception as error:
            if code_of(error) != "ResourceNotFoundException":
                raise
        description = await self._client.register_consumer(
            self._stream_arn, self._consumer, self._tags
        )
        self._registered = description.arn
        return description

    @property
    def _is_arn(self) -> bool:
        return self._consumer.startswith("arn:")


async def deregister_consumer(client: KinesisClient, arn: str, *, jitter: FullJitter) -> None:
    """Deregister a consumer, if it exists; retry for 10 seconds while the service throttles."""
    doing = f"the consumer {arn} cannot be deregistered"
    limit = asyncio.timeout(DEREGISTRATION_TIMEOUT)
    try:
        async with limit:
            await retrying(lambda: client.deregister_consumer(arn), jitter, _may_pass)
    except Exception as error:
        if limit.expired():
            raise ServiceError(f"{doing} within {DEREGISTRATION_TIMEOUT:g} s") from error
        if code_of(error) != "ResourceNotFoundException":
            raise explain(error, doing) from error


def _may_pass(error: BaseException) -> bool:
    # Five consumers at a time may be CREATING, and five calls a second may register one (AWS API
    # reference, RegisterStreamConsumer); a consumer that was just registered may not be found at
    # once.
    return isinstance(error, _NotActiveError) or passes(error)
