"""Seeds of a model of members: the referee holds the rules; and bugs that they have to find."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import KafkaConnectionError

from fanout.core.membership import SharedSplits
from fanout.core.positions import Cursor
from fanout.kafka.group import member
from fanout.kafka.group.member import ConsumerMember
from fanout.kafka.group.transactional import MemberPositions
from fanout.testing.virtual_time.cancellation import Cancellation, sweep
from fanout.testing.virtual_time.loop import simulate
from tests.kafka.group.model import (
    SESSION,
    TOPIC,
    Copier,
    ModelCoordinator,
    ProcessCalls,
    join,
    run_seed,
)
from tests.support.members_model import ModelStream, Process, Referee
from tests.support.model_bugs import check_found, instead

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = 5_000
_ENOUGH = 500  # seeds within which each bug is found


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Leave warnings of thousands of faults out, until the end of the test."""
    caplog.set_level(logging.CRITICAL, logger="fanout")


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 40), marks=pytest.mark.long)])
def test_some_seeds(seeds: range) -> None:
    for seed in seeds:
        simulate(partial(run_seed, seed))


@pytest.mark.prove
@pytest.mark.timeout(2_400)
def test_all_seeds() -> None:
    for seed in range(SEEDS):
        simulate(partial(run_seed, seed))


def _renewed_at_its_end(renew: Any) -> Any:
    async def late(self: Any, holder: Any, _: float, *rest: Any) -> Any:
        return await renew(self, holder, self._clock() + 1.0, *rest)

    return late


def _valid_for_ever(_: Any) -> Any:
    def set_validity(self: Any) -> None:
        self.valid_until = float("inf")

    return set_validity


def _joins_with_the_same_id(_: Any) -> Any:
    async def rejoin(self: Any, holder: Any, _: Any = None) -> None:
        lost, self._owned, self._target = self._owned, frozenset(), frozenset()
        self._identity = self._as(0)
        self._give_up_by = self._renewed = self.valid_until = float("inf")
        self._pending.clear()
        await holder.lose([str(each.partition) for each in sorted(lost)])

    return rejoin


def _keeps_what_it_had(rejoin: Any) -> Any:
    async def _rejoin(self: Any, _: Any, identity: Any = None) -> None:
        class Deaf:
            async def lose(self, _: object) -> None:
                pass

        await rejoin(self, Deaf(), identity)

    return _rejoin


def _gives_up_at_once(_: Any) -> Any:
    async def give_up(self: Any, _: Any, given: Any) -> None:
        if given:
            self._own(self._owned - given)

    return give_up


def _last_commit_is_dropped(give_up: Any) -> Any:
    async def _give_up(self: Any, holder: Any, given: Any) -> None:
        for each in given:
            self._pending.pop(each.partition, None)
        store, self.store = self.store, lambda _: None
        try:
            await give_up(self, holder, given)
        finally:
            self.store = store

    return _give_up


def _stale_offsets(calls: Any) -> Any:
    """Read the offsets once, and never again."""

    async def stored(self: Any, member: Any, partitions: Any) -> Any:
        had = self.__dict__.setdefault("had", {})
        had |= {p: at for p, at in (await calls(self, member, partitions)).items() if p not in had}
        return had

    return stored


def _commits_what_it_has_lost(commit: Any) -> Any:
    async def _commit(self: Any) -> bool:
        owned, self._owned = self._owned, self.__dict__.setdefault("had", frozenset()) | self._owned
        self.__dict__["had"] = self._owned
        try:
            done: bool = await commit(self)
            return done
        finally:
            self._owned = owned

    return _commit


def _refusal_is_ignored(claim: Any) -> Any:
    """Set offsets without a member, as version 0 does."""

    def unfenced(self: Any, name: str, claimed: Any) -> None:
        self._refusal, before = lambda *_: 0, self._refusal
        claim(self, name, claimed)
        self._refusal = before

    return unfenced


def _refused_is_lost_without_an_abort(_: Any) -> Any:
    async def refused(self: Any, claim: Any) -> None:
        del claim
        self._positions = {}

    return refused


async def _nothing(*_: object) -> None:
    pass


BUGS: dict[str, Callable[[Any], object]] = {
    "a session counts from after its renewal": instead(
        ConsumerMember, "_renew", _renewed_at_its_end
    ),
    "nothing expires by itself": instead(ConsumerMember, "_set_validity", _valid_for_ever),
    "a zombie delivers": instead(SharedSplits, "valid", lambda _: property(lambda _: True)),
    "a zombie acknowledges": instead(SharedSplits, "decided", lambda _: _nothing),
    "a member that lost all joins with the same id": instead(
        ConsumerMember, "_rejoin", _joins_with_the_same_id
    ),
    "a fenced member keeps its partitions": instead(ConsumerMember, "_rejoin", _keeps_what_it_had),
    "a partition is given up while it is read": instead(
        ConsumerMember, "_give_up", _gives_up_at_once
    ),
    "the last commit is dropped at a hand-over": instead(
        ConsumerMember, "_give_up", _last_commit_is_dropped
    ),
    "a partition begins behind its offset": lambda patch: patch.setattr(
        member, "cursor_before", lambda offset, *_: Cursor(offset)
    ),
    "a partition that comes back begins where it began": instead(
        ProcessCalls, "stored", _stale_offsets
    ),
    "what was lost is committed": instead(ConsumerMember, "_commit", _commits_what_it_has_lost),
    "offsets of a transaction are not fenced": instead(
        ModelCoordinator, "claim", _refusal_is_ignored
    ),
    "a refused transaction is committed without offsets": instead(
        MemberPositions, "refused", _refused_is_lost_without_an_abort
    ),
    "a partition that left is not missed by a transaction": instead(
        SharedSplits, "_note_left", lambda _: lambda *_: None
    ),
    "what was aborted does not come again": instead(
        SharedSplits, "deliver_again", lambda _: _nothing
    ),
    "a transaction acknowledges nothing": instead(
        SharedSplits, "settle", lambda _: lambda *_: None
    ),
}


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    check_found(bug, run_seed, _ENOUGH)


@pytest.mark.parametrize("kind", [Process, Copier])
def test_a_member_can_be_cancelled_at_each_step(kind: type[Process]) -> None:
    async def scenario(cancellation: Cancellation) -> None:
        referee = Referee(ModelStream())
        for _ in range(2):
            referee.stream.add(f"{TOPIC}-")
        coordinator = ModelCoordinator(referee, strict=False)
        referee.stream.put(Random(1), 12)

        def process(name: str, seed: int) -> Process:
            joining = partial(join, coordinator)
            return kind(name, Random(seed), 0.0, referee, joining, KafkaConnectionError())

        await cancellation.run(process("first", 2).live(most=6))
        assert len(asyncio.all_tasks()) == 1
        # What it had not stored comes again, and nothing else is missing or out of order.
        async with asyncio.timeout(6 * SESSION):
            await process("second", 3).live(most=12)
        assert referee.delivered.keys() == {*range(1, 13)}

    assert sweep(scenario) > 40
