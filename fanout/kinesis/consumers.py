"""List, register and deregister the consumers of a stream, and estimate their price."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, final

from botocore.exceptions import ClientError

from fanout.core.backoff import Backoff, FullJitter
from fanout.errors import FanOutError, ServiceError
from fanout.kinesis.aws.api import stream_of_consumer
from fanout.kinesis.aws.client import open_kinesis_client
from fanout.kinesis.aws.error_hints import code_of, explained
from fanout.kinesis.control_calls import until_answered
from fanout.kinesis.registration import ConsumerRegistration, deregister_consumer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from datetime import timedelta

    from fanout.kinesis.aws.api import ConsumerDescription, KinesisClient, StreamDescription
    from fanout.kinesis.options import KinesisOptions

# A twelfth of 8,760 hours, as in AWS's own price lists.
HOURS_PER_MONTH: Final = 730

# List prices of us-east-1, of a stream in on-demand mode: nothing for a consumer on a shard, and so
# much for a GB that a consumer retrieves.
_ON_DEMAND_SHARD_HOUR: Final = 0.0
_ON_DEMAND_GB: Final = 0.05

_POLLING: Final = Backoff(base=1.0, cap=5.0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPrice:
    """The monthly price of a stream's consumers in US dollars.

    The defaults are list prices of us-east-1, those of a stream with provisioned shards.
    """

    consumers: int  # those that are registered and not being deleted
    shards: int  # the open ones
    shard_hour_price: float = 0.015  # of one consumer on one shard for an hour
    gb_price: float = 0.013  # of one GB that one consumer retrieves
    gb_per_month: float = 0.0  # written to the stream; each consumer retrieves them all

    @property
    def per_consumer(self) -> float:
        """The price of one consumer for a month, in US dollars, whether it reads or not."""
        hours = self.shards * HOURS_PER_MONTH * self.shard_hour_price
        return hours + self.gb_per_month * self.gb_price

    @property
    def total(self) -> float:
        """The price of all consumers for a month, in US dollars."""
        return self.consumers * self.per_consumer


@final
class StreamConsumers:
    """Manage the consumers of one stream, which was described just now."""

    def __init__(
        self, client: KinesisClient, stream: StreamDescription, jitter: FullJitter
    ) -> None:
        self._client = client
        self._jitter = jitter
        self.stream = stream

    async def describe_all(self) -> list[ConsumerDescription]:
        """Return the consumers, the oldest first."""
        with explained(f"the consumers of {self.stream.name!r} cannot be listed"):
            call = partial(self._client.list_consumers, self.stream.arn)
            found = await until_answered(call, self._jitter)
        return sorted(found, key=lambda consumer: consumer.created)

    async def older_than(self, age: timedelta) -> list[ConsumerDescription]:
        """Return the consumers of at least this age, by the service's own clock."""
        # Those that are being deleted are left out.
        return [
            consumer
            for consumer in await self.describe_all()
            if consumer.status != "DELETING" and self.stream.server_time - consumer.created > age
        ]

    async def find(self, consumer: str) -> ConsumerDescription:
        """Return one consumer by its name or ARN."""
        if consumer.startswith("arn:"):
            if stream_of_consumer(consumer) != self.stream.arn:
                raise ServiceError(
                    f"{consumer} is no consumer of {self.stream.arn}; `fanout consumers list` "
                    f"lists those that it has"
                )
            named = {"arn": consumer}
        else:
            named = {"stream_arn": self.stream.arn, "name": consumer}
        call = partial(self._client.describe_consumer, **named)
        with explained(f"the consumer {consumer!r} cannot be described"):
            try:
                return await until_answered(call, self._jitter)
            except ClientError as error:
                if code_of(error) != "ResourceNotFoundException":
                    raise
                raise ServiceError(
                    f"{self.stream.name} has no consumer {consumer!r}; `fanout consumers list` "
                    f"lists those that it has"
                ) from error

    async def register(self, name: str) -> tuple[ConsumerDescription, bool]:
        """Register a consumer if it is missing; return it once ACTIVE, and whether it is new.

        One that is not ACTIVE within a minute is a ServiceError. Cancellation: a consumer whose
        registration was sent stays.
        """
        registration = ConsumerRegistration(
            self._client, self.stream.arn, name, jitter=self._jitter, tags={}
        )
        await registration.ensure()
        return await self.find(name), registration.registered is not None

    async def deregister(self, consumers: Iterable[ConsumerDescription]) -> dict[str, FanOutError]:
        """Deregister consumers, one after the other; return the errors, by consumer name."""
        failed = {}
        for consumer in consumers:
            try:
                await deregister_consumer(self._client, consumer.arn, jitter=self._jitter)
            except FanOutError as error:
                failed[consumer.name] = error
        return failed

    async def price(
        self, *, shard_hour_price: float | None, gb_price: float | None, gb_per_month: float
    ) -> ConsumerPrice:
        """Estimate the monthly price; None is the list price of us-east-1 for the stream's mode."""
        with explained(f"the shards of {self.stream.name!r} cannot be listed"):
            shards = await until_answered(self._client.list_shards, self._jitter)
        closed = {parent for shard in shards for parent in shard.parents}
        listed = list_price(self.stream)
        return replace(
            listed,
            consumers=sum(consumer.status != "DELETING" for consumer in await self.describe_all()),
            shards=sum(shard.shard_id not in closed for shard in shards),
            shard_hour_price=(
                listed.shard_hour_price if shard_hour_price is None else shard_hour_price
            ),
            gb_price=listed.gb_price if gb_price is None else gb_price,
            gb_per_month=gb_per_month,
        )


def list_price(stream: StreamDescription) -> ConsumerPrice:
    """Return the list price of one consumer in us-east-1, by the mode of its stream."""
    one = ConsumerPrice(consumers=1, shards=stream.open_shards)
    if not stream.on_demand:
        return one
    return replace(one, shard_hour_price=_ON_DEMAND_SHARD_HOUR, gb_price=_ON_DEMAND_GB)


@asynccontextmanager
async def open_consumers(options: KinesisOptions) -> AsyncIterator[StreamConsumers]:
    """Connect to Kinesis and describe the stream; nothing is registered."""
    opening = open_kinesis_client(
        stream=options.only_stream,
        region=options.resolved_region,
        endpoint_url=options.endpoint_url,
        session=options.session,
        role=options.role,
        insecure=options.insecure,
    )
    jitter = FullJitter(_POLLING, Random())  # noqa: S311 - jitter, no secret
    async with AsyncExitStack() as stack:
        with explained("Kinesis cannot be called"):
            client = await stack.enter_async_context(opening)
        with explained(f"the stream {options.only_stream!r} cannot be described"):
            stream = await until_answered(client.describe_stream, jitter)
        yield StreamConsumers(client, stream, jitter)
