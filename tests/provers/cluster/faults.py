"""The faults of a campaign on a cluster, each of which blocks until it is over."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from fanout.kafka.protocol.connections import CallTimeouts, open_connections
from fanout.kafka.protocol.messages.cluster_state import QuorumRequest
from tests.provers.cluster.roles import cluster_of
from tests.support.kafka.leaders import move_leaders

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from fanout.testing.kafka.cluster import KafkaCluster

__all__ = ("FAULTS", "active_controller")

# Longer than a cluster takes to miss a node (`broker.session.timeout.ms`).
_AWAY: Final = 12.0
# Longer than a request may take (`request.timeout.ms`).
_HANG: Final = 35.0
_BYTES: Final = 3000.0


def _leader(cluster: KafkaCluster, topic: str, random: Random) -> int:
    return random.choice([leader for leader in cluster.leaders(topic).values() if leader > 0])


def _kill(cluster: KafkaCluster, random: Random) -> None:
    node = _leader(cluster, "in", random)
    cluster.kill(node)
    time.sleep(_AWAY)
    cluster.start(node)


def _kill_coordinator(cluster: KafkaCluster, random: Random) -> None:
    node = _leader(cluster, "__transaction_state", random)
    cluster.kill(node)
    time.sleep(_AWAY)
    cluster.start(node)


def _kill_controller(cluster: KafkaCluster, _: Random) -> None:
    node = active_controller(cluster)
    cluster.kill(node)
    time.sleep(_AWAY)
    cluster.start(node)


def active_controller(cluster: KafkaCluster) -> int:
    """Return the node that leads the quorum of controllers, which metadata do not tell."""

    async def ask() -> int:
        kafka = cluster_of(cluster.bootstrap_servers)
        async with open_connections(kafka, CallTimeouts(_AWAY)) as connections:
            response = await connections.send_to_any(QuorumRequest())
        ((_, ((_, _, leader, *_),), *_),) = response.topics
        return int(leader)

    return asyncio.run(ask())


def _hang(cluster: KafkaCluster, random: Random) -> None:
    node = _leader(cluster, "in", random)
    cluster.pause(node)
    time.sleep(_HANG)
    cluster.resume(node)


def _restart_all(cluster: KafkaCluster, random: Random) -> None:
    nodes = [1, 2, 3]
    random.shuffle(nodes)
    for node in nodes:
        cluster.stop(node)
        cluster.start(node)


def _move(cluster: KafkaCluster, _: Random) -> None:
    for _time in range(3):
        move_leaders(cluster)
        time.sleep(2)


def _throttle(cluster: KafkaCluster, _: Random) -> None:
    cluster.set_quotas(consumer_byte_rate=_BYTES, producer_byte_rate=_BYTES)
    time.sleep(6)
    cluster.set_quotas(consumer_byte_rate=None, producer_byte_rate=None)


def _lose_two(cluster: KafkaCluster, random: Random) -> None:
    nodes = random.sample((1, 2, 3), 2)
    for node in nodes:
        cluster.kill(node)
    time.sleep(_AWAY)
    cluster.start()


FAULTS: Final[Mapping[str, Callable[[KafkaCluster, Random], None]]] = {
    "a leader is killed, and back after 12 s": _kill,
    "a coordinator of transactions is killed": _kill_coordinator,
    "the active controller is killed": _kill_controller,
    "a node hangs for 35 s": _hang,
    "all nodes are restarted in turn": _restart_all,
    "all leaders move, three times": _move,
    "a quota throttles all clients for 6 s": _throttle,
    "two of three nodes are dead for 12 s": _lose_two,
}
"""What each fault does, by what a reader of the table sees."""
