"""The life of a stream consumer."""

from __future__ import annotations

import asyncio
import uuid
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from fanout.core.backoff import Backoff, FullJitter
from fanout.kinesis.aws.error_hints import code_of
from fanout.kinesis.registration import ConsumerRegistration
from tests.conformance.service import deregistering

if TYPE_CHECKING:
    from fanout.kinesis.aws.api import KinesisClient
    from tests.conformance.service import Service


async def test_a_consumer_is_registered_described_listed_and_deregistered(
    service: Service, kinesis: KinesisClient
) -> None:
    name = f"{service.prefix}-{uuid.uuid4().hex}"
    with deregistering(service.client, service.arn, name):
        registered = await kinesis.register_consumer(service.arn, name, {"purpose": "test"})
        assert (registered.name, registered.status in {"CREATING", "ACTIVE"}) == (name, True)
        with pytest.raises(ClientError) as error:
            await kinesis.register_consumer(service.arn, name)
        assert code_of(error.value) == "ResourceInUseException"

        arn = await adopt(kinesis, service, name)
        described = await kinesis.describe_consumer(arn=arn)
        assert (described.arn, described.name) == (registered.arn, name)
        assert described == await kinesis.describe_consumer(stream_arn=service.arn, name=name)
        assert described in await kinesis.list_consumers(service.arn)
        assert await tags_of(service, arn) == {"purpose": "test"}

        await kinesis.deregister_consumer(arn)
        assert await until_gone(kinesis, arn) == "ResourceNotFoundException"


async def adopt(kinesis: KinesisClient, service: Service, name: str) -> str:
    jitter = FullJitter(Backoff(base=1.0, cap=5.0), Random(7))
    registration = ConsumerRegistration(kinesis, service.arn, name, jitter=jitter, tags={})
    arn = await registration.ensure()
    assert registration.registered is None
    return arn


async def tags_of(service: Service, arn: str) -> dict[str, str]:
    answer: Any = await asyncio.to_thread(service.client.list_tags_for_resource, ResourceARN=arn)
    return {tag["Key"]: tag["Value"] for tag in answer["Tags"]}


async def until_gone(kinesis: KinesisClient, arn: str) -> str | None:
    async with asyncio.timeout(60):
        while True:
            try:
                described = await kinesis.describe_consumer(arn=arn)
            except ClientError as error:
                return code_of(error)
            assert described.status == "DELETING"
            await asyncio.sleep(1)
