from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiokafka.errors import StaleMetadata

import fanout
from fanout.errors import OptionError, PositionError, ServiceError
from fanout.kafka.cluster import Cluster
from fanout.kafka.protocol.connections import open_connections
from fanout.kafka.share.client_options import ClientOptions
from fanout.kafka.share.group_admin import ShareGroupAdmin
from tests.kafka.share.features import switch_off
from tests.support.kafka.sharing import LONG, first, locks, new_group, take
from tests.support.kafka.topics import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.testing.kafka.broker import KafkaBroker


async def test_the_settings_of_a_group_are_changed_on_request_and_stay(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 1)
    settings = LONG | {"share.record.lock.duration.ms": 12_000}
    async with group.open(group_settings=settings) as stream:
        assert stream.lending.seconds == 6.0
    async with group.open(group_settings=None) as stream:
        assert stream.lending.seconds == 6.0
        await take(stream, 1)  # from the earliest offset


async def test_a_setting_that_was_changed_is_waited_for(kafka_broker: KafkaBroker) -> None:
    async with open_connections(
        Cluster(kafka_broker.bootstrap_servers, security=PLAINTEXT, client_id="settings"),
        ClientOptions(),
    ) as connections:
        group = ShareGroupAdmin(connections, "waited-for")
        wanted = {"share.isolation.level": "read_committed"}
        with pytest.raises(StaleMetadata):  # which is retried
            await group.settings(wanted)
        await group.alter(wanted)
        async with asyncio.timeout(20):
            while (await group.settings())["share.isolation.level"] != "read_committed":
                pass
        assert await group.settings(wanted)


async def test_a_setting_that_the_broker_refuses_is_named(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker)
    with pytest.raises(
        ServiceError, match=r"cannot be set up: .*share\.record\.lock\.duration\.ms"
    ):
        async with group.open(group_settings={"share.record.lock.duration.ms": 1}):
            pass


@pytest.mark.long
async def test_brokers_without_share_groups_say_so_at_once(
    start_kafka_broker: Callable[..., KafkaBroker],
) -> None:
    broker = await asyncio.to_thread(start_kafka_broker)
    await switch_off(broker, "share.version")
    group = await new_group(broker)
    with pytest.raises(ServiceError, match="the brokers offer no share groups: those need"):
        async with group.open(group_settings=None):
            pass


async def test_a_topic_that_does_not_exist_is_named(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker)
    with pytest.raises(ServiceError, match="there is no topic nowhere"):
        async with group.open(topics=[group.topic.name, "nowhere"]):
            pass


async def test_a_share_group_has_no_end_to_read_to(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker)
    with pytest.raises(OptionError, match="has no end"):
        async with fanout.open(group.source(), available_now=True):
            pass


async def test_positions_of_another_number_of_members_are_taken(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker, 10)
    async with group.open(consumers=2) as stream:
        await take(stream, 10)
        positions = stream.positions
    await group.put(3)
    for consumers in (1, 3):
        async with fanout.open(group.source(consumers=consumers), resume=positions) as stream:
            batch = await first(stream)
            await stream.lending.release(batch)
            assert len(stream.statistics().splits) == consumers


async def test_unconfirmed_deliveries_of_another_group_are_refused(
    kafka_broker: KafkaBroker,
) -> None:
    group, other = await new_group(kafka_broker, 1), await new_group(kafka_broker, 1)
    async with group.open() as stream, other.open() as another:
        unconfirmed = locks(stream).unconfirmed({})
        wrong = f"the stored unconfirmed records belong to .*{group.id}, not"
        with pytest.raises(PositionError, match=wrong):
            locks(another).remember(unconfirmed)
