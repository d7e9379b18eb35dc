"""Seeds of a model of members: the referee holds the rules; and bugs that they have to find."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import EndpointConnectionError

from fanout.core.events import Split
from fanout.core.membership import SharedSplits
from fanout.core.positions import Cursor
from fanout.kinesis.leases import held_lease, member
from fanout.kinesis.leases.held_lease import HeldLease
from fanout.kinesis.leases.lease import COUNTER, GIVER, OWNER, Lease
from fanout.kinesis.leases.member import LeaseMember
from fanout.kinesis.leases.sightings import Sightings
from fanout.testing.virtual_time.cancellation import Cancellation, sweep
from fanout.testing.virtual_time.loop import simulate
from tests.kinesis.leases.model import (
    FAILOVER,
    SHARD,
    ModelTable,
    ProcessItems,
    reader,
    run_seed,
)
from tests.support.members_model import ModelStream, Referee
from tests.support.model_bugs import check_found, instead

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = 5_000
_ENOUGH = 500  # seeds within which each bug is found


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Leave warnings of thousands of faults out, until the end of the test."""
    caplog.set_level(logging.CRITICAL, logger="fanout")


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 60), marks=pytest.mark.long)])
def test_some_seeds(seeds: range) -> None:
    for seed in seeds:
        simulate(partial(run_seed, seed))


@pytest.mark.prove
@pytest.mark.timeout(1_200)
def test_all_seeds() -> None:
    for seed in range(SEEDS):
        simulate(partial(run_seed, seed))


def _renewed_at_its_end(write: Any) -> Any:
    async def late(self: HeldLease) -> None:
        await write(self)
        self.renewed = self._clock() + 3.0

    return late


def _without(*names: str) -> Any:
    """Leave parts of the condition of a write out."""

    def make(mine: Any) -> Any:
        return lambda self: {n: v for n, v in mine(self).items() if n not in names}

    return make


def _never_lost(_: Any) -> Any:
    async def find_out(self: HeldLease) -> None:
        item = await self._items.get(self.shard_id)
        assert item is not None
        self.lease, self._unsure = Lease.of(item), False

    return find_out


def _refusal_is_loss(_: Any) -> Any:
    async def find_out(_: HeldLease) -> None:
        raise held_lease.LeaseLostError

    return find_out


def _taken_without_counter(own: Any) -> Any:
    async def take(self: Any, lease: Any, expected: Any, add: Any) -> None:
        loose = {OWNER: expected[OWNER], GIVER: expected[GIVER]}
        await own(self, lease, loose, add)

    return take


def _handed_over_at_once(_: Any) -> Any:
    async def hand_over(_: Any, held: HeldLease) -> None:
        held.leaving = True
        held.wake.set()

    return hand_over


def _last_position_is_dropped(changes: Any) -> Any:
    def dropping(self: HeldLease, position: Any, end: Any) -> Any:
        return changes(self, None if self.leaving else position, end)

    return dropping


def _position_before_it_is_acknowledged(position: Any) -> Any:
    def ahead(self: Lease) -> Any:
        found = position(self)
        return Cursor(found.sequence + 1) if isinstance(found, Cursor) else found

    return ahead


def _end_before_children(_: Any) -> Any:
    async def nothing(_: Any, held: HeldLease, _end: Any) -> None:
        held.has_children = True

    return nothing


def _ends_at_once(_: Any) -> Any:
    def finish(self: Any) -> None:
        for end in list(self._ends.values()):
            self._membership.finish(end)

    return finish


def _children_forget_parents(create: Any) -> Any:
    async def orphan(self: Any, split: Split, position: Any) -> None:
        await create(self, Split(split.id), position)

    return orphan


def _stale_position(own: Any) -> Any:
    async def take(self: Any, lease: Any, expected: Any, add: Any) -> None:
        before = set(self._held)
        await own(self, lease, expected, add)
        for id_ in set(self._held) - before:
            held = self._held[id_]
            held.lease = dataclasses.replace(held.lease, checkpoint="TRIM_HORIZON")

    return take


BUGS: dict[str, Callable[[Any], object]] = {
    "a renewal counts from its end": instead(HeldLease, "write", _renewed_at_its_end),
    "a lease is valid for longer than others wait": lambda p: p.setattr(member, "_VALID", 1.5),
    "nothing expires by itself": instead(LeaseMember, "_is_valid", lambda _: lambda *_: True),
    "a zombie delivers": instead(SharedSplits, "valid", lambda _: property(lambda _: True)),
    "a position is stored without the counter": instead(HeldLease, "_mine", _without(COUNTER)),
    "a position is stored without any condition": instead(
        HeldLease, "_mine", _without(COUNTER, OWNER, GIVER)
    ),
    "a lost answer is taken for a refusal": instead(HeldLease, "_find_out", _refusal_is_loss),
    "what is lost is written all the same": lambda patch: [
        instead(HeldLease, "_find_out", _never_lost)(patch),
        instead(HeldLease, "_mine", _without(OWNER, GIVER))(patch),
    ],
    "a lease is taken without its counter": instead(LeaseMember, "_own", _taken_without_counter),
    "a lease is handed over while it is read": instead(
        LeaseMember, "_hand_over", _handed_over_at_once
    ),
    "the last position is dropped when a lease leaves": instead(
        HeldLease, "_changes", _last_position_is_dropped
    ),
    "a reader begins behind the stored position": instead(
        Lease, "position", _position_before_it_is_acknowledged
    ),
    "a taken lease begins anew": instead(LeaseMember, "_own", _stale_position),
    "a shard ends without leases behind it": instead(
        LeaseMember, "_create_children", _end_before_children
    ),
    "a shard ends before it is acknowledged": instead(SharedSplits, "_finish", _ends_at_once),
    "a child does not know its parents": instead(LeaseMember, "_create", _children_forget_parents),
    "a child is read before all parents": instead(Sightings, "is_ready", lambda _: lambda *_: True),
    "others wait for a third of the failover time": instead(
        Sightings, "is_old", lambda is_old: lambda self, key, s: is_old(self, key, s / 3)
    ),
}


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    check_found(bug, run_seed, _ENOUGH)


def test_a_member_can_be_cancelled_at_each_step() -> None:
    async def scenario(cancellation: Cancellation) -> None:
        stream = ModelStream()
        stream.add(SHARD)
        stream.add(SHARD)
        table = ModelTable(Referee(stream))
        stream.put(Random(1), 12)
        await cancellation.run(reader(table, 0.0, "first", Random(2)).live(most=6))
        assert len(asyncio.all_tasks()) == 1
        # What it had not stored comes again, and nothing else is missing or out of order.
        async with asyncio.timeout(6 * FAILOVER):
            await reader(table, 0.0, "second", Random(3)).live(most=12)
        assert table.referee.delivered.keys() == {*range(1, 13)}

    assert sweep(scenario) > 40


def test_a_member_that_is_cancelled_leaves_although_a_call_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refused(_: ProcessItems) -> None:
        raise EndpointConnectionError(endpoint_url="model")

    async def scenario() -> None:
        stream = ModelStream()
        stream.add(SHARD)
        table = ModelTable(Referee(stream))
        task = asyncio.create_task(reader(table, 0.0, "first", Random(2)).live(most=100))
        await asyncio.sleep(3 * FAILOVER)
        assert "first" in table.items
        monkeypatch.setattr(ProcessItems, "scan", refused)
        task.cancel()
        await asyncio.wait([task])
        assert "first" not in table.items

    simulate(scenario)
