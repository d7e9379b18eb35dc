"""Test how a subscription begins, sends events and ends.

Sources: API reference of SubscribeToShard; the heartbeat is documented nowhere, and every connector
relies on it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from fanout.kinesis.aws.error_hints import code_of
from fanout.testing.kinesis.rules import KinesisRules
from tests.conformance.service import PATIENCE

if TYPE_CHECKING:
    from fanout.kinesis.aws.api import KinesisClient
    from tests.conformance.service import Service

WINDOW = replace(KinesisRules.fast(), takeover_after=1.0)
SHORT_LIFE = replace(KinesisRules.fast(), subscription_life=1.0)


@pytest.mark.long
async def test_the_first_frame_is_the_initial_response(
    service: Service, kinesis: KinesisClient
) -> None:
    async with service.subscribe(kinesis, "LATEST") as subscription:
        frame = await subscription.frame()
    assert frame is not None
    assert (frame.message_type, frame.event_type) == ("event", "initial-response")


@pytest.mark.fault("Heartbeats come every five seconds")
async def test_a_subscription_is_never_silent_for_longer_than_a_heartbeat(
    service: Service, kinesis: KinesisClient
) -> None:
    async with service.subscribe(kinesis, "LATEST") as subscription:
        for _ in range(3):
            assert await subscription.event() is not None


@pytest.mark.fault("Another process takes a subscription over after five seconds")
@pytest.mark.parametrize("rules", [WINDOW])
async def test_a_second_subscription_is_refused_soon_after_the_first(
    service: Service, kinesis: KinesisClient
) -> None:
    loop = asyncio.get_running_loop()
    while True:
        begun = loop.time()
        async with service.subscribe(kinesis, "LATEST"):
            await asyncio.sleep(service.figures.call_interval * 1.5)
            try:
                async with service.subscribe(kinesis, "LATEST", at_once=True):
                    pass
            except ClientError as error:
                assert code_of(error) == "ResourceInUseException"  # noqa: PT017 - it may pass
                return
        # Only a machine that stood still meanwhile has come too late to be refused.
        assert loop.time() - begun >= service.figures.takeover_after


@pytest.mark.fault("Another process takes a subscription over after five seconds")
@pytest.mark.parametrize("rules", [WINDOW])
async def test_a_later_subscription_takes_over(service: Service, kinesis: KinesisClient) -> None:
    key = service.key()
    async with (
        service.subscribe(kinesis, "LATEST") as old,
        service.subscribe(kinesis, "LATEST") as new,
    ):
        # "the previous connection expires or fails with ResourceInUseException"
        assert await old.end() in {"ResourceInUseException", None}
        await new.event()
        await service.put(key, b"a")
        records, _ = await new.records(key, 1)
    assert len(records) == 1


async def test_an_unknown_consumer_is_not_found(service: Service, kinesis: KinesisClient) -> None:
    unknown = replace(service, consumer_arn=f"{service.arn}/consumer/{service.prefix}-none:1")
    with pytest.raises(ClientError) as error:
        async with unknown.subscribe(kinesis, "LATEST"):
            pass
    assert code_of(error.value) == "ResourceNotFoundException"


async def test_an_unknown_shard_is_not_found(service: Service, kinesis: KinesisClient) -> None:
    unknown = replace(service, shard="shardId-000000999999")
    with pytest.raises(ClientError) as error:
        async with unknown.subscribe(kinesis, "LATEST"):
            pass
    assert code_of(error.value) == "ResourceNotFoundException"


@pytest.mark.fault("A subscription ends in peace after five minutes, and goes on in the next")
@pytest.mark.slow
@pytest.mark.parametrize("rules", [SHORT_LIFE])
async def test_a_subscription_ends_in_peace_after_its_time_and_goes_on_in_the_next(
    service: Service, kinesis: KinesisClient
) -> None:
    key = service.key()
    loop = asyncio.get_running_loop()
    life = service.figures.subscription_life
    async with service.subscribe(kinesis, "LATEST") as subscription:
        begun = loop.time()
        while (event := await subscription.event()) is not None:
            continuation = event.continuation
    assert 0.8 * life <= loop.time() - begun <= life + PATIENCE
    await service.put(key, b"a", b"b")
    async with service.subscribe(
        kinesis, "AFTER_SEQUENCE_NUMBER", SequenceNumber=continuation
    ) as subscription:
        records, _ = await subscription.records(key, 2)
    assert [record["data"] for record in records] == [b"a", b"b"]
