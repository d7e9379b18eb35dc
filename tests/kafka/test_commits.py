from __future__ import annotations

import asyncio
from collections import deque
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    UnknownTopicOrPartitionError,
)

from fanout.core.backoff import Backoff, FullJitter
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.commits import STORED_AGAIN, open_committer
from fanout.kafka.reading.offsets import cursor_before, next_offset
from fanout.testing.virtual_time.loop import simulate
from tests.support.kafka.scripted_cluster import ScriptedCluster
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from fanout.core.positions import Cursor
    from fanout.kafka.reading.commits import Committer

A, B = Partition("t", 0), Partition("t", 1)


def behind(offsets: Mapping[Partition, int]) -> dict[Partition, Cursor]:
    """Return the positions before offsets."""
    return {partition: cursor_before(offset) for partition, offset in offsets.items()}


class Group(ScriptedCluster):
    """A cluster that takes a second to commit; `faults` is what goes wrong, in turn."""

    def __init__(self, *faults: Exception | Mapping[Partition, Exception]) -> None:
        super().__init__(2)
        self.faults = deque(faults)
        self.requests: list[tuple[float, Mapping[Partition, int]]] = []
        self.running = 0
        self.seconds = 1.0
        self.stored: dict[Partition, int] = {}

    @property
    def asked(self) -> list[Mapping[Partition, int]]:
        return [offsets for _, offsets in self.requests]

    async def committed(
        self, group_id: str, partitions: Sequence[Partition]
    ) -> Mapping[Partition, Cursor | None]:
        assert group_id == "g"
        return {p: behind(self.stored)[p] if p in self.stored else None for p in partitions}

    async def commit(
        self, group_id: str, positions: Mapping[Partition, Cursor]
    ) -> Mapping[Partition, Exception]:
        assert group_id == "g"
        offsets = {partition: next_offset(position) for partition, position in positions.items()}
        assert not self.running, "one request at a time"
        self.requests.append((asyncio.get_running_loop().time(), dict(offsets)))
        self.running += 1
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1
        match self.faults.popleft() if self.faults else {}:
            case Exception() as error:
                raise error
            case refused:
                self.stored |= {p: at for p, at in offsets.items() if p not in refused}
                return refused


def committing(group: Group) -> AbstractAsyncContextManager[Committer]:
    jitter = FullJitter(Backoff(base=4.0, cap=60.0), Random(7))
    return open_committer(group, "g", jitter)


@in_virtual_time
async def test_while_a_request_is_under_way_only_the_newest_offsets_are_kept() -> None:
    group = Group()
    async with committing(group) as committer:
        committer.commit(behind({A: 1}))
        await asyncio.sleep(0.5)
        for offset in range(2, 50):
            committer.commit(behind({A: offset, B: 1}))
        await asyncio.sleep(5)
    assert group.asked == [{A: 1}, {A: 49, B: 1}]
    assert committer.committed == behind({A: 49, B: 1})
    assert (committer.succeeded, committer.failed) == (2, 0)


@pytest.mark.fault("A commit fails, hangs or is refused, or its coordinator has moved")
@in_virtual_time
async def test_a_request_that_fails_is_made_again_with_what_is_newest_then() -> None:
    group = Group(KafkaConnectionError(), KafkaConnectionError())
    async with committing(group) as committer:
        committer.commit(behind({A: 1, B: 1}))
        await asyncio.sleep(0.5)
        committer.commit(behind({A: 2}))
        await asyncio.sleep(30)
        assert group.asked[:3] == [{A: 1, B: 1}, {A: 2, B: 1}, {A: 2, B: 1}]
        assert (committer.succeeded, committer.failed) == (1, 2)
        committer.commit(behind({A: 3}))
        await asyncio.sleep(2)
    assert committer.committed == behind({A: 3, B: 1})
    first, second, third, *_ = (at for at, _ in group.requests)
    assert second - first > 1.1  # a pause, and not only the request
    assert third - second > 1.1


@pytest.mark.fault("A commit fails, hangs or is refused, or its coordinator has moved")
@in_virtual_time
async def test_a_partition_that_is_refused_does_not_keep_the_others_from_being_committed() -> None:
    group = Group({B: GroupAuthorizationFailedError()})
    async with committing(group) as committer:
        committer.commit(behind({A: 1, B: 1}))
        await asyncio.sleep(1.1)
        assert committer.committed == behind({A: 1})
        await asyncio.sleep(10)
    assert group.asked == [{A: 1, B: 1}, {B: 1}]
    assert (committer.succeeded, committer.failed) == (1, 1)


@in_virtual_time
async def test_closing_commits_what_is_left() -> None:
    group = Group(KafkaConnectionError())
    async with committing(group) as committer:
        committer.commit(behind({A: 1}))
        await asyncio.sleep(0.5)
    assert group.asked[-1] == {A: 1}
    assert committer.committed == behind({A: 1})


@pytest.mark.fault("A commit fails, hangs or is refused, or its coordinator has moved")
def test_closing_gives_up_after_a_few_seconds_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        group = Group()
        group.seconds = 1e6
        async with committing(group) as committer:
            committer.commit(behind({A: 1, B: 1}))
            began = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - began < 6
        assert not group.running
        assert len(asyncio.all_tasks()) == 1

    simulate(main)
    assert "the last offsets of the group g are not committed" in caplog.text


@in_virtual_time
async def test_what_is_left_is_tried_again_after_a_cancellation_too() -> None:
    group = Group(KafkaConnectionError("moved"))

    async def work() -> None:
        async with committing(group) as committer:
            committer.commit(behind({A: 1}))
            await asyncio.Event().wait()

    group.seconds = 0.0
    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert group.stored == {A: 1}


@in_virtual_time
async def test_closing_without_anything_to_commit_asks_nobody() -> None:
    group = Group()
    async with committing(group) as committer:
        committer.commit(behind({A: 1}))
        await asyncio.sleep(2)
    assert group.asked == [{A: 1}]


@in_virtual_time
async def test_the_error_of_the_block_passes_unchanged() -> None:
    error = ValueError("the user's")
    with pytest.raises(ValueError, match="the user's") as caught:
        async with committing(Group()):
            raise error
    assert caught.value is error


@in_virtual_time
async def test_a_request_that_is_refused_takes_one_line_for_all_its_partitions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    offsets = {Partition("t", number): 7 for number in range(1000)}
    refusal = GroupAuthorizationFailedError("no")
    async with committing(Group(dict.fromkeys(offsets, refusal))) as committer:
        committer.commit(behind(offsets))
    (line,) = [each.getMessage() for each in caplog.records if each.name.startswith("fanout")]
    assert line == (
        "the group g cannot commit 1000 of 1000 partitions, the first is t-0: "
        "[Error 30] GroupAuthorizationFailedError: no"
    )


@in_virtual_time
async def test_positions_that_do_not_move_are_stored_again() -> None:
    group = Group()
    group.stored[B] = 7
    async with committing(group) as committer:
        committer.hold(behind({B: 7}))  # it begins there, and has no new records
        for offset in range(1, 80):
            committer.commit(behind({A: offset}))
            await asyncio.sleep(1)
        stored = [at for at, offsets in group.requests if B in offsets]
        assert len(stored) == 3
        assert max(b - a for a, b in pairwise([0.0, *stored])) < STORED_AGAIN + 2
        assert {offsets[B] for offsets in group.asked if B in offsets} == {7}
        committer.commit(behind({B: 9}))
        await asyncio.sleep(2 * STORED_AGAIN + 3)
    later = [offsets for offsets in group.asked if B in offsets][3:]
    assert later == [{B: 9}, {A: 79, B: 9}, {A: 79, B: 9}]
    assert committer.failed == 0


@in_virtual_time
async def test_an_older_position_never_replaces_a_newer_one() -> None:
    group = Group()
    async with committing(group) as committer:
        committer.commit(behind({A: 5}))
        await asyncio.sleep(2)
        committer.hold(behind({A: 3}))
        await asyncio.sleep(STORED_AGAIN)
    assert group.asked == [{A: 5}, {A: 5}]


@in_virtual_time
async def test_a_partition_that_is_gone_is_stored_again_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = Group({}, {B: UnknownTopicOrPartitionError()}, KafkaConnectionError())
    async with committing(group) as committer:
        committer.commit(behind({A: 1, B: 1}))
        await asyncio.sleep(4 * STORED_AGAIN)
    assert group.asked == [{A: 1, B: 1}] * 2 + [{A: 1}] * 2
    assert "the offsets of the group g cannot be stored again: " in caplog.text


@in_virtual_time
async def test_positions_that_somebody_else_has_moved_are_left_as_they_are() -> None:
    """Another process of the group goes on, while this one stands still."""
    group = Group()
    async with committing(group) as committer:
        committer.commit(behind({A: 1, B: 1}))
        await asyncio.sleep(2)
        group.stored[A] = 9
        await asyncio.sleep(2 * STORED_AGAIN + 3)
        assert group.stored == {A: 9, B: 1}
        del group.stored[B]  # an operator has deleted it
        await asyncio.sleep(2 * STORED_AGAIN + 3)
    assert group.stored == {A: 9}
    assert group.asked == [{A: 1, B: 1}, {B: 1}, {B: 1}]
