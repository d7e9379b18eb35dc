"""Brokers of a real cluster that advertise another address than before, or a wrong one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import fanout
from fanout.kafka import Cluster, KafkaSource, Security, open_writer
from fanout.kafka.doctor.diagnose import KafkaNeeds, diagnose_cluster
from fanout.kafka.protocol import retries
from fanout.testing.kafka.cluster import KafkaCluster
from fanout.testing.ports import free_ports
from tests.support.groups import KAFKA_CLUSTERS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [KAFKA_CLUSTERS, pytest.mark.long, pytest.mark.timeout(240)]

MOVED = 2  # the node


@pytest.fixture(scope="module")
def cluster(_kafka_jars: None) -> Iterator[KafkaCluster]:
    settings = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "300"}
    with KafkaCluster(settings=settings) as cluster:
        # Each node has a partition that no other one has.
        cluster.create_topic("t", 3, replicas=1)
        yield cluster


def configure(cluster: KafkaCluster, old: str, new: str) -> None:
    """Replace a text in the properties of a node that does not run."""
    path = cluster._nodes[MOVED].server.directory / "server.properties"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def move(cluster: KafkaCluster) -> None:
    """Start a node at another port."""
    cluster.kill(MOVED)
    ports = cluster._nodes[MOVED].ports
    (port,) = free_ports(1)
    configure(
        cluster, f"PLAINTEXT://127.0.0.1:{ports['PLAINTEXT']}", f"PLAINTEXT://127.0.0.1:{port}"
    )
    ports["PLAINTEXT"] = port
    cluster.start(MOVED)


def advertise(cluster: KafkaCluster, port: int) -> None:
    """Start a node that tells of another port than its own."""
    cluster.stop(MOVED)
    wrong = f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}\nnode.id="
    configure(cluster, "node.id=", wrong)
    cluster._nodes[MOVED].server.start()


def of(cluster: KafkaCluster) -> Cluster:
    return Cluster(cluster.bootstrap_servers, security=Security(protocol="PLAINTEXT"))


async def test_a_broker_that_comes_back_at_another_port_is_found(cluster: KafkaCluster) -> None:
    seen: list[int] = []

    async def write(count: int) -> None:
        rows = [{"key": f"{number}", "value": f"{number}"} for number in range(count)]
        await writer.write(rows)
        await writer.flush()

    async def read(count: int) -> None:
        async for batch in stream:
            seen.extend(map(int, batch.records["value"].to_pylist()))
            if len(seen) >= count:
                break

    async with (
        open_writer(of(cluster), "t") as writer,
        fanout.open(KafkaSource(cluster=of(cluster), topics="t")) as stream,
    ):
        await write(30)
        await read(30)
        await asyncio.to_thread(move, cluster)
        await write(30)
        await read(60)
    assert sorted(seen) == sorted([*range(30)] * 2)


async def test_an_address_at_which_nobody_listens_is_named_and_the_doctor_tells_it(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere,) = free_ports(1)
    await asyncio.to_thread(advertise, cluster, nowhere)
    needs = KafkaNeeds(topics=["t"])
    monkeypatch.setattr(retries, "_PATIENCE", 2.0)
    while True:  # until the controller counts it in
        found = {each.check: each for each in await diagnose_cluster(of(cluster), needs)}
        if (node := found.get(f"broker {MOVED}")) and f":{nowhere}" in node.detail:
            break
        await asyncio.sleep(0.2)
    assert node.status == "problem"
    assert "cannot use: no server listens" in node.detail
    assert "advertised.listeners" in node.advice
    address = rf"cannot connect to 127\.0\.0\.1:{nowhere}, the address in its broker's "
    with pytest.raises(fanout.ServiceError, match=address + r"advertised\.listeners"):
        async with fanout.open(KafkaSource(cluster=of(cluster), topics="t")):
            pass
