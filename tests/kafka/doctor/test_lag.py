"""`read_lag` and the findings about positions, on a scripted cluster."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.positions import Cursor
from fanout.errors import ServiceError
from fanout.kafka.cluster import Cluster
from fanout.kafka.doctor.diagnose import read_lag
from fanout.kafka.doctor.lag import BEYOND_END, examine_partitions, read_partition_backlogs
from fanout.kafka.partitions import Partition
from tests.support.kafka.brokers import HERE
from tests.support.kafka.scripted_cluster import ScriptedCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CLUSTER = Cluster("127.0.0.1:1", security=HERE)
PARTITION = Partition("t", 0)


def positions(offset: int) -> Checkpoint:
    """Return positions after which an offset is the next."""
    return Checkpoint(
        "kafka:scripted", {str(PARTITION): SplitPosition(PARTITION.split, Cursor(offset - 1))}
    )


def reached(monkeypatch: pytest.MonkeyPatch, scripted: ScriptedCluster) -> None:
    """Let the checks call a scripted cluster."""

    @asynccontextmanager
    async def opened(*_: object) -> AsyncIterator[None]:
        yield None

    async def started(*_: object, isolation_level: str = "read_committed") -> Any:
        opened = ScriptedCluster(read_committed=isolation_level == "read_committed")
        opened.logs, opened.offset_faults = scripted.logs, scripted.offset_faults
        return opened

    monkeypatch.setattr("fanout.kafka.doctor.diagnose.open_cluster", opened)
    monkeypatch.setattr("fanout.kafka.doctor.diagnose.start_client", started)


def logged(count: int) -> ScriptedCluster:
    scripted = ScriptedCluster()
    if count:
        scripted.log().append(count)
    return scripted


async def test_a_lost_connection_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = logged(3)
    scripted.offset_faults.append(KafkaConnectionError("reset"))
    reached(monkeypatch, scripted)
    assert (await read_lag(CLUSTER, positions(1)))["t-0"].records == 2


async def test_a_refused_permission_is_an_error_of_fanout(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = logged(3)
    scripted.offset_faults.append(TopicAuthorizationFailedError("t"))
    reached(monkeypatch, scripted)
    with pytest.raises(ServiceError, match=r"^the ends of the partitions cannot be looked up: "):
        await read_lag(CLUSTER, positions(1))


async def test_a_position_beyond_the_end_is_a_problem() -> None:
    backlogs = await read_partition_backlogs(logged(3), {PARTITION: 4})
    assert backlogs["t-0"].obstacle == BEYOND_END
    (found, lag) = examine_partitions(backlogs)
    assert (found.status, lag.status) == ("problem", "unknown")
    assert found.detail == f"t-0: {BEYOND_END}"


async def test_a_position_at_the_end_is_none_beyond_it() -> None:
    backlogs = await read_partition_backlogs(logged(3), {PARTITION: 3})
    assert (backlogs["t-0"].obstacle, backlogs["t-0"].millis) == ("", 0)


async def test_records_behind_an_open_transaction_are_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripted = logged(3)
    scripted.log().open_from = 1
    reached(monkeypatch, scripted)
    lag = (await read_lag(CLUSTER, positions(1)))["t-0"]
    assert lag.records == 2
    assert lag.millis


async def test_records_that_expired_are_not_counted_as_unread() -> None:
    scripted = logged(1)
    scripted.log().append(2)
    scripted.log().expire(1)
    lag = (await read_partition_backlogs(scripted, {PARTITION: 0}))["t-0"]
    assert lag.expired
    assert (lag.records, lag.millis) == (2, None)


async def test_findings_speak_of_partitions() -> None:
    backlogs = await read_partition_backlogs(logged(3), {PARTITION: 3})
    found, _ = examine_partitions(backlogs)
    assert found.detail.endswith("(partitions: 1)")
