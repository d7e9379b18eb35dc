"""What the driver asks the cluster about the topics of a sink, and which of them it forgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fanout.errors import ServiceError
from fanout.kafka import Cluster
from fanout.kafka.transactions import calls
from fanout.spark import KafkaSink
from fanout.spark.sinks.kafka.connection import connect
from fanout.spark.workers.loop_thread import LoopThread
from tests.support.kafka.topics import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.spark.sinks.kafka.connection import SinkConnection
    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = pytest.mark.usefixtures("fanout_fast")


@pytest.fixture
def connection(kafka_broker: KafkaBroker) -> Iterator[SinkConnection]:
    cluster = Cluster(kafka_broker.bootstrap_servers, security=PLAINTEXT)
    with LoopThread() as loop:
        yield connect(KafkaSink(cluster=cluster).target, loop)


@pytest.mark.fault("A topic that earlier batches of a sink named is deleted")
def test_a_topic_of_an_earlier_batch_that_was_deleted_fails_no_batch_that_does_not_name_it(
    kafka_broker: KafkaBroker, connection: SinkConnection
) -> None:
    kafka_broker.create_topic("c-stays", 3)
    kafka_broker.create_topic("c-goes", 2)
    assert connection.partitions([]) == {}
    assert connection.partitions(["c-stays", "c-goes"]) == {"c-goes": 2, "c-stays": 3}
    assert [*connection.partitions([])] == ["c-goes", "c-stays"]
    kafka_broker.delete_topic("c-goes")
    while "c-goes" in connection.partitions([]):  # the broker deletes it a moment later
        pass
    assert connection.partitions(["c-stays"]) == {"c-stays": 3}
    with pytest.raises(ServiceError, match="there is no topic c-goes: create it"):
        connection.partitions(["c-goes"])
    kafka_broker.create_topic("c-goes", 5)
    assert connection.partitions(["c-goes"]) == {"c-goes": 5, "c-stays": 3}


def test_all_topics_of_a_sink_are_asked_for_in_one_call(
    kafka_broker: KafkaBroker, connection: SinkConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"c-many-{number}" for number in range(5)]
    for name in names:
        kafka_broker.create_topic(name, 1)
    fetch = calls.fetch_metadata  # type: ignore[attr-defined]
    asked: list[list[str]] = []

    async def counted(connections: Any, topics: list[str], **how: Any) -> Any:
        asked.append(topics)
        return await fetch(connections, topics, **how)

    monkeypatch.setattr(calls, "fetch_metadata", counted)
    connection.partitions(names[:3])
    assert connection.partitions(names[3:]) == dict.fromkeys(names, 1)
    assert asked == [names[:3], names]
