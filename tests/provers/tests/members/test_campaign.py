"""A round of faults for a few members, on each service."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from tests.provers.members.campaign import MembersReport, run_members_campaign
from tests.support.groups import KAFKA_CLUSTERS

if TYPE_CHECKING:
    from collections.abc import Iterable

OF_MEMBERS = {
    "a member is killed",
    "a member stands still, and goes on",
    "all members are replaced in turn",
    "a member comes, and one leaves",
}


def run(service: str) -> tuple[MembersReport, list[str]]:
    lines: list[str] = []
    campaign = run_members_campaign(service, 0, 1, members=3, splits=6, note=lines.append)
    return asyncio.run(campaign), lines


def check(report: MembersReport, lines: Iterable[str], faults: set[str]) -> None:
    assert report.holds, report.to_json()
    assert report.times == dict.fromkeys(OF_MEMBERS | faults, 1)
    assert report.recovered.keys() == {line.partition(":")[0] for line in lines} == {*report.times}
    assert report.verdict.records > 12 * 20  # keys, and ticks
    assert report.verdict.moves
    assert json.loads(report.to_json())["holds"]


@pytest.mark.timeout(600)
def test_a_round_of_faults_on_kinesis() -> None:
    faults = {"a shard is split", "two shards are merged", "DynamoDB is away for 60 s"}
    check(*run("kinesis"), faults)


@KAFKA_CLUSTERS
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_kafka_jars")
def test_a_round_of_faults_on_three_nodes() -> None:
    nodes = {"a node is killed, and back after 12 s", "the group's coordinator is killed"}
    check(*run("kafka"), nodes | {"all leaders move"})
