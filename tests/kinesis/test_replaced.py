"""A stream that is deleted, and created again by its name, while it is being opened."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from fanout.errors import ServiceError
from fanout.kinesis import KinesisSource
from fanout.kinesis.aws.api import ConsumerDescription, StreamDescription
from fanout.kinesis.opening import open_kinesis_connection
from fanout.testing.virtual_time.loop import simulate
from tests.support.kinesis.client_errors import client_error

if TYPE_CHECKING:
    from collections.abc import Mapping

CREATED = datetime(2026, 11, 20, tzinfo=UTC)
ARN = "arn:aws:kinesis:eu-central-1:123456789012:stream/orders"
STREAM = StreamDescription("orders", ARN, "ACTIVE", CREATED, CREATED, 24, 1, 0, None)


class Service:
    """A service whose stream is another one from the registration of its consumer on."""

    def __init__(self, *, replaced: bool, registered: bool) -> None:
        self.described = 0
        self._replaced = replaced
        self._registered = registered

    async def renew_credentials(self) -> None:
        raise AssertionError("nothing was refused")

    async def describe_stream(self) -> StreamDescription:
        self.described += 1
        again = self.described > 1 and self._replaced
        return replace(STREAM, created=CREATED + timedelta(hours=again))

    async def describe_consumer(self, **_: Any) -> ConsumerDescription:
        if not self._registered:
            raise client_error("ResourceNotFoundException", "DescribeStreamConsumer")
        return ConsumerDescription("etl", f"{ARN}/consumer/etl:1", "ACTIVE", CREATED)

    async def register_consumer(
        self, stream_arn: str, name: str, tags: Mapping[str, str]
    ) -> ConsumerDescription:
        del stream_arn, name, tags
        self._registered = True
        return await self.describe_consumer()


async def opened(service: Service) -> None:
    kinesis: Any = service
    source = KinesisSource(stream="orders", consumer="etl")
    async with open_kinesis_connection(source, kinesis, Random(7)):
        pass


def test_a_consumer_that_was_registered_on_another_stream_is_not_read_with() -> None:
    with pytest.raises(ServiceError, match=r"another one was created by its name.* open it again"):
        simulate(opened, Service(replaced=True, registered=False))


@pytest.mark.parametrize(("registered", "described"), [(False, 2), (True, 1)])
def test_a_stream_is_described_again_only_where_its_consumer_is_new(
    registered: bool,  # noqa: FBT001
    described: int,
) -> None:
    service = Service(replaced=False, registered=registered)
    simulate(opened, service)
    assert service.described == described
