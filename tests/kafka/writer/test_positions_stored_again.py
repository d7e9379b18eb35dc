"""Positions that do not move are stored again, before brokers forget them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fanout.kafka.partitions import Partition
from fanout.kafka.reading.commits import STORED_AGAIN
from fanout.kafka.transactions.outcome import TransactionOutcome
from fanout.kafka.writing.own_transactions import OwnTransactions
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Mapping

A, B = Partition("t", 0), Partition("t", 1)


class Cluster:
    """A writer and the transactions of a cluster: what was stored by each commit."""

    def __init__(self) -> None:
        self.stored: list[Mapping[Partition, int]] = []
        self.queued = 0

    async def flush(self) -> None:
        pass

    def next_transaction(self) -> None:
        pass

    async def store_offsets(self, *arguments: Any) -> None:
        self.stored.append(arguments[-1].offsets)

    async def end(self, *_: object, patience: float) -> TransactionOutcome:
        assert patience == 60.0
        return TransactionOutcome.COMMITTED


@in_virtual_time
async def test_all_positions_are_stored_again_now_and_then() -> None:
    cluster: Any = Cluster()
    joined: Any = SimpleNamespace(transactional_id="x", incarnation=None)
    own = OwnTransactions(cluster, cluster, joined, timeout=60.0)
    await own.commit({A: 1, B: 1})
    await own.commit({A: 1, B: 1})
    assert cluster.stored == [{A: 1, B: 1}]
    for offset in range(2, 52):  # one partition moves once a second, the other one never
        await asyncio.sleep(1)
        await own.commit({A: offset})
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
