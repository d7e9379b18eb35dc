from __future__ import annotations

from random import Random

from fanout.core.lineage import Split
from fanout.kafka import KafkaSource, Partition
from fanout.kafka.source import open_connection
from fanout.testing.simulation import simulate
from tests.kafka.reading import PLAINTEXT
from tests.kafka.scripted import Log, ScriptedCluster


def test_a_bounded_read_lists_its_partitions_once() -> None:
    async def main() -> None:
        cluster = ScriptedCluster(1)
        source = KafkaSource(
            bootstrap_servers="localhost", topics="t", stop="latest", security=PLAINTEXT
        )
        async with open_connection(source, cluster, Random(7)) as connection:
            cluster.logs[Partition("t", 1)] = Log()
            assert await connection.splits() == [Split("t-0")]
            assert connection.pacing.discovery_interval is None
            assert connection.bounded

    simulate(main)


def test_an_unbounded_read_lists_its_partitions_again() -> None:
    async def main() -> None:
        cluster = ScriptedCluster(1)
        source = KafkaSource(bootstrap_servers="localhost", topics="t", security=PLAINTEXT)
        async with open_connection(source, cluster, Random(7)) as connection:
            assert await connection.splits() == [Split("t-0")]
            cluster.logs[Partition("t", 1)] = Log()
            assert await connection.splits() == [Split("t-0"), Split("t-1")]
            assert connection.pacing.discovery_interval == 60
            assert not connection.bounded

    simulate(main)
