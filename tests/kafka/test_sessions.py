"""Brokers that end the session of a user (KIP-368) while records are read and written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.protocol.metadata import MetadataRequest

import fanout
from fanout.kafka import Cluster, ConsumerGroup, KafkaSource, Security, open_writer
from fanout.kafka.protocol.connections import CallTimeouts, open_connections
from tests.kafka.secured import run_cluster, token
from tests.support.groups import KAFKA_CLUSTERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fanout.core.events import Split
    from fanout.kafka.protocol.connections import Connections
    from tests.kafka.secured import Secured

pytestmark = [KAFKA_CLUSTERS, pytest.mark.long, pytest.mark.timeout(240)]

# A client renews when 85 % are over. It may stand still for the rest, 2.4 s, and not for longer; a
# session that leaves more would make each test twice as long.
SESSION = 16.0
RUNS = 2.2 * SESSION
END = "end "


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, _kafka_jars: None) -> Iterator[Secured]:
    with run_cluster(tmp_path_factory.mktemp("certificates"), SESSION) as secured:
        yield secured


async def write(writer: Any, *, transactional: bool) -> int:
    """Write record after record for some sessions, and one that says how many they were."""
    clock, number = asyncio.get_running_loop().time, 0
    ends = clock() + RUNS
    while clock() < ends:
        await put(writer, f"{number}", transactional=transactional)
        number += 1
        await asyncio.sleep(0.02)
    await put(writer, f"{END}{number}", transactional=transactional)
    return number


async def put(writer: Any, value: str, *, transactional: bool) -> None:
    await writer.write([{"key": "one", "value": value}])
    await (writer.commit() if transactional else writer.flush())


async def read(stream: fanout.FanOut) -> list[str]:
    """Read to the record that is the last."""
    seen: list[str] = []
    async for batch in stream:
        seen += [value.decode() for value in batch.records["value"].to_pylist()]
        await stream.acknowledge(batch)
        if seen and seen[-1].startswith(END):
            break
    return seen


@pytest.mark.parametrize("transactional", [False, True])
async def test_a_session_that_ends_under_load_is_renewed_before(
    secured: Secured,
    transactional: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    topic = f"sessions-{transactional}"
    await asyncio.to_thread(secured.broker.create_topic, topic)
    cluster = Cluster(secured.broker.address("USERS"), security=secured.login("SCRAM-SHA-512"))
    source = KafkaSource(cluster=cluster, topics=topic)
    opened_again: list[Exception] = []

    def note(_split: Split, cause: Exception, _delay: float) -> None:
        opened_again.append(cause)

    options: dict[str, Any] = {"transactional_id": topic} if transactional else {}
    async with (
        open_writer(cluster, topic, **options) as writer,
        fanout.open(source, on_resubscribe=note) as one,
        fanout.open(source, group=ConsumerGroup(group_id=topic), on_resubscribe=note) as other,
        asyncio.TaskGroup() as tasks,
    ):
        reading = [tasks.create_task(read(stream)) for stream in (one, other)]
        written = await write(writer, transactional=transactional)
    for task in reading:
        assert task.result()[:-1] == [f"{number}" for number in range(written)]
    assert opened_again == []


async def asking(connections: Connections, seconds: float) -> AsyncIterator[Any]:
    """Ask a broker again and again, and yield the answers."""
    clock = asyncio.get_running_loop().time
    ends = clock() + seconds
    while clock() < ends:
        yield await connections.send_to_any(MetadataRequest([]))
        await asyncio.sleep(0.05)


async def test_while_no_token_can_be_had_the_session_is_used_until_it_ends(
    secured: Secured,
) -> None:
    asked = list[float]()
    clock = asyncio.get_running_loop().time

    async def provide() -> str:
        asked.append(clock())
        if len(asked) == 2:  # the first attempt to renew
            raise ConnectionError
        return await token()

    security = Security(token=provide, ca_file=secured.files.ca)
    cluster = Cluster(secured.broker.address("USERS"), security=security)
    async with open_connections(cluster, CallTimeouts(15.0)) as connections:
        answers = [answer async for answer in asking(connections, 1.5 * SESSION)]
    assert len(answers) > 10
    first, failed, renewed = asked
    assert 0.8 * SESSION < failed - first < renewed - first
