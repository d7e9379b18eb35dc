"""A member and a coordinator that follows a script, in virtual time."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import GroupLoadInProgressError, RequestTimedOutError

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.positions import Cursor, Horizon
from fanout.errors import ServiceError
from fanout.kafka.group.calls import AssignedPartition, Code, Heartbeat, Stored
from fanout.kafka.group.member import ConsumerMember
from fanout.kafka.group.transactional import MemberPositions
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.offsets import cursor_before, epoch_at, next_offset
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping

    from fanout.core.events import Split
    from fanout.core.positions import Position
    from fanout.kafka.group.calls import Identity

ID = b"i" * 16
ORDERS = tuple(Partition("orders", number) for number in range(4))
INTERVAL, SESSION = 5.0, 45.0


def assigned(*numbers: int) -> frozenset[AssignedPartition]:
    return frozenset(AssignedPartition(ORDERS[number], ID) for number in numbers)


class Coordinator:
    """Answers one member, as the test says; it is what the calls of a member are made with."""

    group = "shop"

    def __init__(self) -> None:
        self.epoch = 1
        self.assignment: frozenset[AssignedPartition] = frozenset()
        self.stored_offsets: dict[Partition, Stored] = {}
        self.faults: list[Exception | int] = []  # the answers to the next heartbeats
        self.takes = 0.0  # seconds that a heartbeat takes
        self.commit_codes: dict[Partition, int] = {}
        self.commit_errors: list[Exception] = []  # the answers to the next commits
        self.commit_takes = 0.0
        self.is_strict = False  # it refuses the commits of another epoch
        self.stale = 0
        self.stored_takes = 0.0
        self.heartbeats: list[tuple[float, int, frozenset[AssignedPartition] | None]] = []
        self.commits: list[dict[Partition, int]] = []
        self.epochs: dict[Partition, int] = {}
        self.calls: Counter[str] = Counter()

    async def session_timeout(self) -> float:
        self.calls["session"] += 1
        await asyncio.sleep(0)
        return SESSION

    async def learn(self, topics: Collection[str]) -> None:  # noqa: ARG002 - as GroupCalls
        await asyncio.sleep(0)

    async def heartbeat(
        self,
        member: Identity,
        *,
        rebalance_timeout: float | None = None,
        topics: Collection[str] | None = None,
        owned: Collection[AssignedPartition] | None = None,
    ) -> Heartbeat:
        now = asyncio.get_running_loop().time()
        told = None if owned is None else frozenset(owned)
        self.heartbeats.append((now, member.epoch, told))
        if member.epoch == 0:
            assert (topics, told) == (["orders"], frozenset())
            assert rebalance_timeout == 45.0
        await asyncio.sleep(self.takes)
        match self.faults.pop(0) if self.faults else 0:
            case Exception() as error:
                raise error
            case 0:
                return Heartbeat(0, "", self.epoch, INTERVAL, self.assignment)
            case code:
                return Heartbeat(code, "", 0, 0.0, None)

    async def commit(
        self, member: Identity, positions: Mapping[Partition, Cursor], texts: Mapping[str, str]
    ) -> Mapping[Partition, int]:
        if self.is_strict and member.epoch != self.epoch:
            self.stale += 1
            return dict.fromkeys(positions, Code.STALE_MEMBER_EPOCH)
        assert member.epoch == self.epoch
        if self.commit_errors:
            raise self.commit_errors.pop(0)
        assert texts == {"orders": '{"partitions": 4}'}
        self.commits.append({partition: next_offset(at) for partition, at in positions.items()})
        self.epochs.update({partition: epoch_at(at) for partition, at in positions.items()})
        await asyncio.sleep(self.commit_takes)
        return {partition: self.commit_codes.get(partition, 0) for partition in positions}

    async def stored(
        self, member: Identity, partitions: Collection[Partition]
    ) -> Mapping[Partition, Stored]:
        assert member.epoch == self.epoch
        await asyncio.sleep(self.stored_takes)
        nothing = Stored(None, "")
        return {each: self.stored_offsets.get(each, nothing) for each in partitions}


class Owner:
    """The stream of a member: what it was told."""

    def __init__(self) -> None:
        self.granted: dict[str, Position] = {}
        self.told: list[tuple[str, str]] = []
        self.hands_over_for = 0.0

    def grant(self, split: Split, position: Position) -> None:
        assert split.id not in self.granted
        self.granted[split.id] = position
        self.told.append(("grant", split.id))

    async def hand_over(self, split_ids: Collection[str], until: float) -> None:
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(min(self.hands_over_for, until - now))
        for split_id in split_ids:
            if self.granted.pop(split_id, None) is not None:
                self.told.append(("hand over", split_id))

    async def lose(self, split_ids: Collection[str]) -> None:
        for split_id in split_ids:
            if self.granted.pop(split_id, None) is not None:
                self.told.append(("lose", split_id))
        await asyncio.sleep(0)

    def delivered_bytes(self, split_id: str) -> int:
        raise NotImplementedError(split_id)


@asynccontextmanager
async def taking_part(
    coordinator: Coordinator,
    owner: Owner,
    *,
    start: Position = Cursor(9),  # noqa: B008 - frozen
    instance_id: str | None = None,
) -> AsyncIterator[ConsumerMember]:
    async def splits() -> list[Split]:
        return [partition.split for partition in ORDERS]

    connection: Any = SimpleNamespace(
        splits=splits, pacing=SimpleNamespace(discovery_interval=60.0)
    )
    calls: Any = coordinator
    made = ConsumerMember(
        calls,
        connection,
        instance_id=instance_id,
        handover_timeout=30.0,
        starts={str(partition): start for partition in ORDERS},
        jitter=FullJitter(Backoff(base=0.5, cap=5.0), Random(7)),
    )
    task = asyncio.create_task(made.take_part(owner))
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.wait([task])
        await made.leave()
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error


def now() -> float:
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_a_member_joins_and_reads_from_its_start() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0, 1)
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(0.5)
        assert owner.granted == {"orders-0": Cursor(9), "orders-1": Cursor(9)}
        # Where it begins is stored, and told at once that it is owned.
        assert coordinator.commits == [{ORDERS[0]: 10, ORDERS[1]: 10}]
        assert [told for _, _, told in coordinator.heartbeats] == [frozenset(), assigned(0, 1)]
        # It is over before the broker's, whose clock may be some percent faster.
        assert member.valid_until == now() - 0.5 + 0.95 * SESSION
        await asyncio.sleep(12)
        assert [told for _, _, told in coordinator.heartbeats][2:] == [None, None]
    assert coordinator.heartbeats[-1][1] == -1


@in_virtual_time
async def test_stored_offsets_go_before_the_start() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0, 1)
    coordinator.stored_offsets = {ORDERS[0]: Stored(500, "")}
    async with taking_part(coordinator, owner):
        await asyncio.sleep(0.5)
        assert owner.granted == {"orders-0": Cursor(499), "orders-1": Cursor(9)}
        assert coordinator.commits == [{ORDERS[1]: 10}]


@in_virtual_time
async def test_offsets_are_stored_with_the_leader_epoch_of_the_record_before() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0, 1)
    coordinator.stored_offsets = {ORDERS[0]: Stored(500, "", epoch=7)}
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(0.5)
        assert epoch_at(owner.granted["orders-0"]) == 7
        assert epoch_at(owner.granted["orders-1"]) == -1
        member.store({"orders-0": cursor_before(501, 8)})
        await asyncio.sleep(0.5)
        assert (coordinator.commits[-1], coordinator.epochs[ORDERS[0]]) == ({ORDERS[0]: 501}, 8)


@in_virtual_time
async def test_a_partition_that_came_after_the_group_is_read_from_its_beginning() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0, 3)
    coordinator.stored_offsets = {ORDERS[0]: Stored(500, '{"partitions": 3}')}
    async with taking_part(coordinator, owner):
        await asyncio.sleep(0.5)
        assert owner.granted == {"orders-0": Cursor(499), "orders-3": Horizon()}
        assert coordinator.commits == []


@in_virtual_time
async def test_validity_counts_from_where_a_heartbeat_was_sent() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0)
    coordinator.takes = 2.0
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(6)
        sent = [time for time, *_ in coordinator.heartbeats if time <= now() - 2]
        assert member.valid_until == sent[-1] + 0.95 * SESSION


@in_virtual_time
async def test_a_member_that_is_not_heard_gives_everything_up_in_time() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0, 1)
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(1)
        until = member.valid_until
        coordinator.faults = [RequestTimedOutError()] * 1000
        await asyncio.sleep(until - now() - 0.01)
        assert owner.granted
        await asyncio.sleep(0.02)
        assert owner.told[-2:] == [("lose", "orders-0"), ("lose", "orders-1")]
        coordinator.faults = []
        await asyncio.sleep(3)
        assert owner.granted.keys() == {"orders-0", "orders-1"}  # as a new member
        assert coordinator.heartbeats[-2][1] == 0


@in_virtual_time
async def test_an_answer_that_comes_too_late_renews_nothing() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0)
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(1)
        coordinator.takes = 2 * SESSION
        await asyncio.sleep(INTERVAL + SESSION)
        assert owner.granted == {}
        coordinator.takes = 0.0
        await asyncio.sleep(2 * SESSION)
        assert owner.told == [("grant", "orders-0"), ("lose", "orders-0"), ("grant", "orders-0")]
        epochs = [epoch for _, epoch, _ in coordinator.heartbeats]
        # It takes nothing from the answer to the third, and leaves before it joins anew.
        assert epochs[:6] == [0, 1, 1, -1, 0, 1]
        assert now() < member.valid_until <= now() + SESSION


@in_virtual_time
async def test_an_answer_at_the_very_end_renews_nothing() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0)
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(1)
        sent = member.valid_until - 0.95 * SESSION
        coordinator.takes = 0.95 * SESSION - INTERVAL  # the next one is answered at that moment
        await asyncio.sleep(sent + 0.95 * SESSION + 0.001 - now())
        assert owner.told[1:] == [("lose", "orders-0")]


@in_virtual_time
async def test_nothing_is_read_that_the_group_has_taken_back_meanwhile() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0, 1)
    coordinator.stored_takes = 10.0
    async with taking_part(coordinator, owner):
        await asyncio.sleep(1)
        coordinator.faults = [Code.UNKNOWN_MEMBER_ID]
        coordinator.assignment = assigned(2)
        await asyncio.sleep(60)
        assert owner.granted.keys() == {"orders-2"}
        assert owner.told == [("grant", "orders-2")]


@pytest.mark.parametrize("code", [Code.UNKNOWN_MEMBER_ID, Code.FENCED_MEMBER_EPOCH])
@in_virtual_time
async def test_a_fenced_member_loses_everything_and_joins_again(code: Code) -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0, 1)
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(1)
        member.store({"orders-0": Cursor(20)})
        await asyncio.sleep(1)
        coordinator.faults = [code]
        await asyncio.sleep(INTERVAL)
        assert owner.told[2:4] == [("lose", "orders-0"), ("lose", "orders-1")]
        await asyncio.sleep(1)
        assert owner.granted.keys() == {"orders-0", "orders-1"}


@in_virtual_time
async def test_partitions_are_given_up_before_others_are_taken() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0, 1)
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(1)
        owner.hands_over_for = 7.0
        coordinator.assignment, coordinator.epoch = assigned(1, 2), 2
        await asyncio.sleep(INTERVAL)
        assert owner.granted.keys() == {"orders-0", "orders-1"}
        member.store({"orders-0": Cursor(70)})
        await asyncio.sleep(8)
        assert owner.told[2:] == [("hand over", "orders-0"), ("grant", "orders-2")]
        assert {ORDERS[0]: 71} in coordinator.commits  # it is stored before it is given up
        told = [told for _, _, told in coordinator.heartbeats if told is not None]
        assert told[-2:] == [assigned(1), assigned(1, 2)]


@in_virtual_time
async def test_a_partition_is_kept_until_its_commit_has_succeeded() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0, 1)
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(1)
        coordinator.commit_codes = {ORDERS[0]: Code.COORDINATOR_LOAD_IN_PROGRESS}
        member.store({"orders-0": Cursor(70)})
        coordinator.assignment = assigned(1)
        await asyncio.sleep(20)
        assert coordinator.heartbeats[-1][2] is None  # nothing is given up
        coordinator.commit_codes = {}
        await asyncio.sleep(6)
        assert [told for *_, told in coordinator.heartbeats if told is not None][-1] == assigned(1)
        assert member.commits.positions["orders-0"] == Cursor(70)


@in_virtual_time
async def test_all_is_invalid_when_the_broker_may_have_taken_it_back() -> None:
    """A member that gives up too late is fenced from everything, although it renews."""
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0, 1)
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(1)
        owner.hands_over_for = 29.0
        coordinator.assignment, coordinator.epoch = assigned(1), 2
        await asyncio.sleep(INTERVAL)
        heard = coordinator.heartbeats[-1][0]
        assert member.valid_until == heard + 0.95 * SESSION
        await asyncio.sleep(20)
        assert member.valid_until == heard + 45.0  # although heartbeats are answered
        await asyncio.sleep(10)
        assert owner.granted.keys() == {"orders-1"}
        assert member.valid_until > heard + 45.0  # the broker has heard of it


@in_virtual_time
async def test_only_what_is_owned_is_committed() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0)
    coordinator.stored_offsets = {each: Stored(5, '{"partitions": 4}') for each in ORDERS}
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(1)
        member.store({"orders-0": Cursor(20), "orders-1": Cursor(30), "orders-2": Horizon()})
        await asyncio.sleep(1)
        assert coordinator.commits == [{ORDERS[0]: 21}]
        assert member.commits.positions == {"orders-0": Cursor(20)}


@in_virtual_time
async def test_a_commit_that_fails_is_tried_again() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0, 1)
    coordinator.stored_offsets = {each: Stored(5, '{"partitions": 4}') for each in ORDERS}
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(1)
        coordinator.commit_codes = {ORDERS[0]: Code.STALE_MEMBER_EPOCH}
        member.store({"orders-0": Cursor(20), "orders-1": Cursor(30)})
        await asyncio.sleep(0.1)
        coordinator.commit_codes = {}
        member.store({"orders-0": Cursor(25)})
        await asyncio.sleep(5)
        assert coordinator.commits[0] == {ORDERS[0]: 21, ORDERS[1]: 31}
        assert coordinator.commits[-1] == {ORDERS[0]: 26}
        assert member.commits.positions == {"orders-0": Cursor(25), "orders-1": Cursor(30)}


@in_virtual_time
async def test_a_busy_member_commits_ten_times_a_second() -> None:
    """Each commit costs the broker a write, and the member a millisecond."""
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0)
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(1)
        coordinator.commits.clear()
        for offset in range(1000):
            member.store({"orders-0": Cursor(offset)})
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)
        assert len(coordinator.commits) in {10, 11}
        assert coordinator.commits[0] == {ORDERS[0]: 1}  # the first one at once
        assert coordinator.commits[-1] == {ORDERS[0]: 1000}


@in_virtual_time
async def test_what_is_acknowledged_is_committed_when_a_member_leaves() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0)
    coordinator.stored_offsets = {each: Stored(5, '{"partitions": 4}') for each in ORDERS}
    async with taking_part(coordinator, owner, instance_id="one") as member:
        await asyncio.sleep(1)
        member.store({"orders-0": Cursor(20)})
    assert coordinator.commits[-1] == {ORDERS[0]: 21}
    assert coordinator.heartbeats[-1][1] == -2  # it keeps its partitions for a restart


@in_virtual_time
async def test_the_last_commit_has_the_epoch_of_a_heartbeat_that_was_on_its_way() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0)
    coordinator.stored_offsets = {each: Stored(5, '{"partitions": 4}') for each in ORDERS}
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(1)
        coordinator.takes = 2.0
        await asyncio.sleep(INTERVAL)  # nobody waits for the answer to this heartbeat
        coordinator.epoch, coordinator.is_strict = 2, True
        member.store({"orders-0": Cursor(20)})
        await asyncio.sleep(0)
    assert coordinator.stale
    assert coordinator.commits == [{ORDERS[0]: 21}]
    assert [epoch for _, epoch, _ in coordinator.heartbeats[-2:]] == [1, -1]


@in_virtual_time
async def test_a_member_leaves_although_its_last_commit_fails() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0)
    coordinator.stored_offsets = {each: Stored(5, '{"partitions": 4}') for each in ORDERS}
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(1)
        coordinator.commit_codes = {ORDERS[0]: Code.STALE_MEMBER_EPOCH}
        member.store({"orders-0": Cursor(20)})
        coordinator.faults = [RequestTimedOutError()]
    assert [epoch for _, epoch, _ in coordinator.heartbeats[-2:]] == [1, -1]


@in_virtual_time
async def test_the_last_commit_waits_for_a_coordinator_that_has_moved() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0)
    coordinator.stored_offsets = {each: Stored(5, '{"partitions": 4}') for each in ORDERS}
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(1)
        coordinator.commit_errors = [GroupLoadInProgressError() for _ in range(10)]
        member.store({"orders-0": Cursor(20)})
        coordinator.faults = [GroupLoadInProgressError() for _ in range(3)]
    assert coordinator.commits == [{ORDERS[0]: 21}]
    assert [epoch for _, epoch, _ in coordinator.heartbeats[-4:]] == [-1] * 4


@in_virtual_time
async def test_a_member_leaves_although_its_coordinator_does_not_come() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0)
    coordinator.stored_offsets = {each: Stored(5, '{"partitions": 4}') for each in ORDERS}
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(1)
        coordinator.commit_errors = [GroupLoadInProgressError() for _ in range(100)]
        member.store({"orders-0": Cursor(20)})
        begun = now()
    assert not coordinator.commits
    assert coordinator.heartbeats[-1][1] == -1
    assert now() < begun + 5.0


@in_virtual_time
async def test_a_member_that_is_cancelled_tries_its_last_calls_again_too() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0)
    coordinator.stored_offsets = {each: Stored(5, '{"partitions": 4}') for each in ORDERS}
    members: list[ConsumerMember] = []

    async def work() -> None:
        async with taking_part(coordinator, owner) as member:
            members.append(member)
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(1)
    coordinator.commit_errors = [GroupLoadInProgressError() for _ in range(3)]
    coordinator.faults = [GroupLoadInProgressError() for _ in range(3)]
    members[0].store({"orders-0": Cursor(20)})
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert coordinator.commits == [{ORDERS[0]: 21}]
    assert [epoch for _, epoch, _ in coordinator.heartbeats[-4:]] == [-1] * 4


@in_virtual_time
async def test_a_member_that_cannot_leave_says_so(caplog: pytest.LogCaptureFixture) -> None:
    coordinator, owner = Coordinator(), Owner()
    async with taking_part(coordinator, owner):
        await asyncio.sleep(1)
        coordinator.faults = [GroupLoadInProgressError() for _ in range(100)]
        begun = now()
    assert "cannot leave the group shop: [Error 14]" in caplog.text
    assert now() < begun + 5.0


@in_virtual_time
async def test_leaving_takes_five_seconds_at_the_most() -> None:
    coordinator, owner = Coordinator(), Owner()
    async with taking_part(coordinator, owner):
        await asyncio.sleep(1)
        coordinator.takes = math.inf
        begun = now()
    assert now() == begun + 5.0


@in_virtual_time
async def test_the_session_timeout_is_asked_for_again() -> None:
    coordinator, owner = Coordinator(), Owner()
    async with taking_part(coordinator, owner):
        await asyncio.sleep(130)
    assert coordinator.calls["session"] == 3


@in_virtual_time
async def test_a_static_id_that_stays_taken_is_told() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.faults = [Code.UNRELEASED_INSTANCE_ID] * 1000
    with pytest.raises(ServiceError, match="instance_id='one'; give each process its own"):
        async with taking_part(coordinator, owner, instance_id="one"):
            await asyncio.sleep(2 * SESSION)


@in_virtual_time
async def test_a_member_that_stood_still_for_a_session_takes_nothing() -> None:
    """The answer to its question has waited for it, and others have had the partition since."""
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment, coordinator.stored_takes = assigned(0), SESSION
    async with taking_part(coordinator, owner) as member:

        async def stands_still(*_: object) -> None:
            await asyncio.sleep(math.inf)

        member._rejoin = stands_still  # type: ignore[assignment]
        await asyncio.sleep(1)
        coordinator.faults = [RequestTimedOutError()] * 1000
        await asyncio.sleep(1.5 * SESSION)
        assert owner.told == []


@in_virtual_time
async def test_a_transaction_waits_for_the_commit_before_it() -> None:
    """One that arrived later would take the offset back."""
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0)
    coordinator.stored_offsets = {each: Stored(5, '{"partitions": 4}') for each in ORDERS}
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(1)
        coordinator.commit_takes = 5.0
        member.store({"orders-0": Cursor(20)})
        await asyncio.sleep(1)
        member.store({"orders-0": Cursor(25)})
        begun, shared = now(), SimpleNamespace(claim=lambda positions: positions)
        delivered: dict[str, Position] = {"orders-0": Cursor(30)}
        claim = await MemberPositions(shared, member, delivered).claim()  # type: ignore[arg-type]
        assert now() == begun + 4
        assert (claim.offsets, claim.texts) == ({ORDERS[0]: 31}, {"orders": '{"partitions": 4}'})
        assert claim.member is not None
        assert claim.member.epoch == 1
        await asyncio.sleep(20)
        assert coordinator.commits == [{ORDERS[0]: 21}]


@in_virtual_time
async def test_what_is_acknowledged_and_not_committed_is_stored_by_the_next_transaction() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0, 1)
    coordinator.stored_offsets = {each: Stored(5, '{"partitions": 4}') for each in ORDERS}
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(1)
        member.store({"orders-0": Cursor(20), "orders-1": Cursor(7)})
        shared: Any = SimpleNamespace(claim=lambda positions: positions, settle=lambda _: None)
        positions = MemberPositions(shared, member, {"orders-0": Cursor(30)})
        claim = await positions.claim()
        assert claim.offsets == {ORDERS[0]: 31, ORDERS[1]: 8}
        coordinator.assignment = assigned(0)
        await asyncio.sleep(2 * INTERVAL)
        assert ORDERS[1] in {each.partition for each in member._owned}  # until it is stored
        positions.stored(claim)
        await asyncio.sleep(2 * INTERVAL)
        assert ORDERS[1] not in {each.partition for each in member._owned}
        assert coordinator.commits == []
        assert (await positions.claim()).offsets == {ORDERS[0]: 31}
    assert coordinator.commits == []


@in_virtual_time
async def test_what_a_transaction_has_not_stored_is_committed_at_the_end() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0)
    coordinator.stored_offsets = {each: Stored(5, '{"partitions": 4}') for each in ORDERS}
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(1)
        member.store({"orders-0": Cursor(20)})
        await member.commits_nothing()
        await asyncio.sleep(1)
        assert coordinator.commits == []
    assert coordinator.commits == [{ORDERS[0]: 21}]


@in_virtual_time
async def test_a_member_that_is_refused_asks_who_it_is() -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0)
    async with taking_part(coordinator, owner) as member:
        await asyncio.sleep(1)
        before, begun = member.claim({}).member, now()
        assert not await member.follows(before)
        coordinator.epoch = 2
        assert await member.follows(before)
        coordinator.faults = [Code.UNKNOWN_MEMBER_ID]
        assert await member.follows(member.claim({}).member)
        assert owner.granted == {}
        assert now() == begun


@pytest.mark.parametrize("steps", range(60))
@in_virtual_time
async def test_it_can_be_cancelled_at_each_step(steps: int) -> None:
    coordinator, owner = Coordinator(), Owner()
    coordinator.assignment = assigned(0, 1)
    async with taking_part(coordinator, owner) as member:
        for _ in range(steps):
            await asyncio.sleep(0)
        member.store({"orders-0": Cursor(20)})
        coordinator.assignment = assigned(1)
        await asyncio.sleep(0.2 * (steps % 3))
    if coordinator.heartbeats and coordinator.heartbeats[-1][1] > 0:
        raise AssertionError("it has not left")
