"""A short campaign on three nodes, and what it tells of a loss that is planted."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

import pytest

from fanout.core.lending.member_locks import MemberLocks
from fanout.errors import AcknowledgementError
from fanout.testing.kafka.cluster import KafkaCluster
from tests.provers.cluster import campaign, faults
from tests.provers.cluster.campaign import ClusterReport, run_cluster_campaign
from tests.provers.cluster.faults import FAULTS, active_controller
from tests.provers.cluster.records import Seen
from tests.support.groups import KAFKA_CLUSTERS

if TYPE_CHECKING:
    from fanout.core.events import Batch

PLANTED = 3  # batches
MOVE = "all leaders move, three times"
CONTROLLER = "the active controller is killed"
ROLES = {"source", "writer", "share", "shuffle"}
PEERS = {"librdkafka consumer", "librdkafka transactions", "librdkafka share"}


@pytest.fixture
def one_fault(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, _kafka_jars: None
) -> str:
    """Leave one fault, that of the parameter if there is one."""
    fault: str = getattr(request, "param", MOVE)
    monkeypatch.setattr(campaign, "FAULTS", {fault: FAULTS[fault]})
    return fault


def run(seed: int) -> tuple[ClusterReport, list[str]]:
    lines: list[str] = []
    return run_cluster_campaign(0.001, seed, spark=False, note=lines.append), lines


@KAFKA_CLUSTERS
@pytest.mark.prove
@pytest.mark.timeout(400)
@pytest.mark.parametrize("one_fault", [MOVE, CONTROLLER], indirect=True)
def test_a_round_of_one_fault_loses_nothing_and_is_reported(one_fault: str) -> None:
    report, lines = run(1)
    assert report.holds, report.to_json()
    assert dict(report.times) == {one_fault: 1}
    assert report.stalls[one_fault].keys() == ROLES | PEERS
    stalls = report.stalls[one_fault]
    assert all(stall > 0 for stall in stalls.values())
    assert all(stalls[role] < 60 for role in ROLES)
    assert [line.partition(":")[0] for line in lines] == [one_fault]
    counts = report.counts
    put = counts["librdkafka producer"]["records"]
    assert put >= 12 * 20  # keys, and ticks of two seconds
    assert {counts[name]["records"] for name in ("source", "writer", "share")} == {put}
    assert counts["shuffle"]["records"] > 0
    told = json.loads(report.to_json())
    assert (told["holds"], told["counts"]) == (True, counts)
    assert report.table().splitlines()[0].startswith("| fault | times | source | writer | share |")


@KAFKA_CLUSTERS
@pytest.mark.prove
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("one_fault")
def test_a_share_group_that_accepts_what_it_has_not_delivered_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost: list[int] = []
    tasks = set[asyncio.Task[None]]()
    keeps = MemberLocks.keeps

    async def accept(locks: MemberLocks[object], batch: Batch) -> None:
        with suppress(AcknowledgementError):  # one whose lock is over is not lost
            await locks.acknowledge({batch.split.id: batch.range.until})

    def accept_batches_unseen(locks: MemberLocks[object], batch: Batch) -> bool:
        kept = keeps(locks, batch)
        if not kept or not batch.num_records or len(lost) == PLANTED:
            return kept
        lost.append(batch.num_records)
        tasks.add(asyncio.create_task(accept(locks, batch)))
        return False

    monkeypatch.setattr(MemberLocks, "keeps", accept_batches_unseen)
    monkeypatch.setattr(campaign, "_RECOVER", 30.0)  # it waits for so long for what is lost
    report, _ = run(2)
    assert not report.holds
    assert 0 < (found := report.counts["share"]["lost"]) <= sum(lost)
    assert len(report.gaps["share"]) == min(20, found)
    ours = {name: each for name, each in report.counts.items() if "librdkafka" not in name}
    assert {name for name, each in ours.items() if each.get("lost")} == {"share"}


@KAFKA_CLUSTERS
@pytest.mark.prove
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("_kafka_jars")
def test_the_fault_of_the_controller_moves_the_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_AWAY", 2.0)
    with KafkaCluster() as cluster:
        before = active_controller(cluster)
        kills = {node: cluster.process_id(node) for node in (1, 2, 3)}
        FAULTS[CONTROLLER](cluster, Random(1))
        assert active_controller(cluster) != before
        assert {n for n, pid in kills.items() if cluster.process_id(n) != pid} == {before}


def records(*numbers: int) -> Seen:
    seen = Seen()
    seen.add(json.dumps({"key": "0", "number": number}) for number in numbers)
    return seen


def test_what_is_missing_repeated_or_out_of_order_is_counted() -> None:
    assert records(0, 1, 2).compare({"0": 3}, {}) == {"records": 3}
    assert records(0, 1).compare({"0": 3}, {}) == {"records": 2, "lost": 1}
    assert records(0, 1, 1).compare({"0": 2}, {}) == {"records": 2, "repeated": 1}
    seen = records(0, 2)
    assert seen.compare({"0": 3}, {}) == {"records": 3, "lost or out of order": 1}
    assert seen.compare({"0": 3}, {"lost or out of order": 1}) == {"records": 3}
    assert seen.gaps == ["key 0: 2 comes after 0"]


def test_what_the_topic_itself_lacks_is_not_missed() -> None:
    assert records(3, 0).missing(records(0, 3)) == []
    assert records(3, 0).missing(records(0, 1, 3)) == ["key 0: 1 never came"]


@pytest.mark.parametrize("wrong", ["lost", "repeated", "lost or out of order"])
def test_a_report_holds_where_nothing_of_ours_is_wrong(wrong: str) -> None:
    report = ClusterReport(counts={"share": {"records": 3}, "librdkafka consumer": {wrong: 1}})
    assert report.holds
    report.counts["share"][wrong] = 1
    assert not report.holds
    assert not ClusterReport(stuck=["source after a fault"]).holds
