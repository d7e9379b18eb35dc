"""Positions are stored again: before brokers forget them, and after a commit that was cancelled."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from fanout.errors import StreamStateError
from fanout.kafka.group.calls import GroupOffsets
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.commits import STORED_AGAIN
from fanout.kafka.reading.offsets import NO_EPOCH, epoch_at
from fanout.kafka.reading.offsets import cursor_before as behind
from fanout.kafka.transactions.outcome import TransactionOutcome
from fanout.kafka.writing.own_transactions import OwnTransactions
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from fanout.core.positions import Cursor
    from fanout.kafka.group.transactional import MemberPositions

A, B = Partition("t", 0), Partition("t", 1)


class Cluster:
    """A writer and the transactions of a cluster: what was stored by each commit."""

    def __init__(self) -> None:
        self.stored: list[Mapping[Partition, int]] = []
        self.epochs: Mapping[Partition, int] = {}
        self.before: Mapping[Partition, Cursor] = {}
        self.looks = 0
        self.queued = 0
        self.answers, self.flushed = asyncio.Event(), asyncio.Event()
        self.answers.set()
        self.flushed.set()

    async def flush(self) -> None:
        await self.flushed.wait()

    def next_transaction(self) -> None:
        pass

    async def store_offsets(self, *arguments: Any) -> None:
        await self.answers.wait()
        self.stored.append(arguments[-1].offsets)
        self.epochs = {p: epoch_at(at) for p, at in arguments[-1].positions.items()}

    async def stored_positions(self, name: str) -> Mapping[Partition, Cursor]:
        assert name == "x"
        self.looks += 1
        return self.before

    async def end(self, *_: object, patience: float) -> TransactionOutcome:
        assert patience == 60.0
        return TransactionOutcome.COMMITTED


def transactions(cluster: Any) -> OwnTransactions:
    joined: Any = SimpleNamespace(transactional_id="x", incarnation=None)
    return OwnTransactions(cluster, cluster, joined, timeout=60.0)


@in_virtual_time
async def test_all_positions_are_stored_again_now_and_then() -> None:
    cluster = Cluster()
    own = transactions(cluster)
    await own.commit({A: behind(1), B: behind(1)})
    await own.commit({A: behind(1), B: behind(1)})
    assert cluster.stored == [{A: 1, B: 1}]
    for offset in range(2, 52):  # one partition moves once a second, the other one never
        await asyncio.sleep(1)
        await own.commit({A: behind(offset)})
    whole = [offsets for offsets in cluster.stored if B in offsets]
    assert len(whole) == 3
    assert {offsets[B] for offsets in whole} == {1}
    moved = {A: 51, B: 1}
    await asyncio.sleep(STORED_AGAIN)
    await own.commit({})  # nothing has arrived: the positions are stored again nevertheless
    await own.commit({})
    assert cluster.stored[-1] == moved
    assert cluster.stored.count(moved) == 1
    assert own.statistics().committed == len(cluster.stored)


class Delivered:
    """What a member has delivered."""

    def __init__(self) -> None:
        self.taken: list[Mapping[Partition, int]] = []

    async def claim(self) -> GroupOffsets:
        return GroupOffsets.behind({A: behind(7)}, "shop", {})

    def stored(self, claim: GroupOffsets) -> None:
        self.taken.append(claim.offsets)


async def cancelled(commit: Coroutine[Any, Any, None]) -> None:
    """Cancel a commit while its positions are on their way."""
    task = asyncio.create_task(commit)
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@in_virtual_time
async def test_positions_go_back_in_no_run_but_where_a_partition_begins_anew() -> None:
    cluster = Cluster()
    own = transactions(cluster)
    cluster.before = {A: behind(7)}
    with pytest.raises(StreamStateError, match=r"x has committed t-0 up to offset 7, and .* 5, so"):
        await own.commit({A: behind(5)})  # the stream was opened without the positions
    await own.commit({A: behind(9), B: behind(3)})
    with pytest.raises(StreamStateError, match="t-1 up to offset 3, and these positions are at"):
        await own.commit({A: behind(9), B: behind(2)})
    assert cluster.stored == [{A: 9, B: 3}]
    await own.commit({A: behind(9), B: behind(3)})  # once more is no harm
    await own.commit({A: behind(1), B: behind(4)}, anew={A})
    assert cluster.stored == [{A: 9, B: 3}, {A: 1, B: 4}]
    await own.commit({A: behind(2)})
    assert cluster.looks == 1


@in_virtual_time
async def test_positions_are_those_of_the_last_commit_before_brokers_show_them() -> None:
    cluster = Cluster()
    own = transactions(cluster)
    cluster.before = {A: behind(7), B: behind(3)}
    assert await own.positions() == cluster.before
    await own.commit({A: behind(9)})
    assert await own.positions() == {A: behind(9), B: behind(3)}


@in_virtual_time
async def test_a_cancelled_commit_is_finished_with_its_positions() -> None:
    cluster = Cluster()
    own = transactions(cluster)
    cluster.answers.clear()
    await cancelled(own.commit({A: behind(5)}))
    cluster.answers.set()
    await own.commit({})
    assert cluster.stored == [{A: 5}]
    await own.commit({B: behind(1)})
    assert cluster.stored == [{A: 5}, {B: 1}]


@in_virtual_time
async def test_a_cancelled_commit_is_finished_with_the_positions_of_its_member() -> None:
    cluster, delivered = Cluster(), Delivered()
    own = transactions(cluster)
    cluster.answers.clear()
    await cancelled(own.commit_delivered(cast("MemberPositions", delivered)))
    cluster.answers.set()
    await own.commit({})
    assert cluster.stored == delivered.taken == [{A: 7}]


@in_virtual_time
async def test_a_commit_that_was_cancelled_before_its_positions_is_finished_with_them() -> None:
    cluster, delivered = Cluster(), Delivered()
    own = transactions(cluster)
    for commit in (
        own.commit({B: behind(5)}),
        own.commit_delivered(cast("MemberPositions", delivered)),
    ):
        cluster.flushed.clear()
        await cancelled(commit)
        cluster.flushed.set()
        await own.commit({})
    assert cluster.stored == [{B: 5}, {A: 7}]


@in_virtual_time
async def test_an_abort_forgets_the_positions_of_a_commit_that_was_cancelled() -> None:
    cluster = Cluster()
    own = transactions(cluster)
    cluster.flushed.clear()
    await cancelled(own.commit({A: behind(5)}))
    cluster.flushed.set()
    await own.abort()
    await own.commit({})
    assert cluster.stored == []


@in_virtual_time
async def test_positions_are_stored_with_the_leader_epoch_of_the_record_before() -> None:
    cluster = Cluster()
    await transactions(cluster).commit({A: behind(5, 3), B: behind(1)})
    assert cluster.stored == [{A: 5, B: 1}]
    assert cluster.epochs == {A: 3, B: NO_EPOCH}


@in_virtual_time
async def test_a_stored_offset_is_stored_again_for_another_topic_by_the_same_name() -> None:
    # Otherwise its records would be written again after a restart.
    cluster = Cluster()
    own = transactions(cluster)
    await own.commit({A: behind(5, 0, "a" * 22)})
    await own.commit({A: behind(5, 0, "a" * 22)})
    await own.commit({A: behind(5, 0, "b" * 22)})
    assert cluster.stored == [{A: 5}, {A: 5}]
