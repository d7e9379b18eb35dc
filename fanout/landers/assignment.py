"""Which lander reads which split, and from when."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Final, final

from fanout.core.findings import LANDERS_APART

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fanout.core.backoff import Pacing

# The first assignment waits so long for landers that follow the first, in seconds, besides the time
# between their starts. Splits that one lander has got all alone move, and a move stops a split.
_GATHERING: Final = 2.0
# What a split without records costs, as a part of a split of the mean rate: its subscription.
_IDLE_COST: Final = 0.1
# A split of the mean rate weighs this much more. Whole numbers add up alike in any order.
_SCALE: Final = 1_000
# A lander is overloaded while its load is more than this many times the mean.
_OVERLOAD: Final = 1.5
# Splits leave a lander that has been overloaded for this long, in seconds.
_PATIENCE: Final = 60.0
# A lander that has come has its share at this part of the mean load.
_ENOUGH: Final = 0.9
# At most this part of all splits is moving at once, and at least one.
_MOVING: Final = 0.1
# A move that takes longer, in seconds, is forgotten: its split was read to its end meanwhile.
_MOVE_SECONDS: Final = 60.0


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now."""

    assigned: Mapping[int, tuple[str, ...]]  # the splits that each lander is to read too
    moved: tuple[str, ...] = ()  # the splits that their landers are to release


@final
@dataclass(frozen=True, slots=True)
class _Move:
    """A split on its way from a lander that releases it to the one that is to have it."""

    source: int
    target: int
    since: float  # when the move was planned, in seconds


@final
@dataclass(slots=True)
class _Load:
    """What a lander has to read, with the splits that are on their way to it."""

    lander: int
    weight: int = 0  # the sum of the weights of its splits
    # The weight and name of each split that it may release.
    splits: list[tuple[int, str]] = field(default_factory=list)
    count: int = 0  # the number of its splits

    def add(self, weight: int) -> None:
        self.weight += weight
        self.count += 1

    def order(self) -> tuple[int, int, int]:
        """Return what sorts the lander that is to have the next split first."""
        return self.weight, self.count, self.lander


@final
class Assignment:
    """Spread splits over landers by count and by bytes a second, with few moves.

    A split keeps its lander. It moves when a lander has come, which then gets its share, and when
    its own lander was overloaded for a minute. A move makes two landers clearly more alike, so the
    same rates never take it back. The first assignment waits for the landers that are expected, for
    `gathering` seconds from the first on.
    """

    def __init__(self, landers: int = 1, *, gathering: float = _GATHERING) -> None:
        self._expected = landers
        self._gathering = gathering
        self._first_came: float | None = None
        self._known: set[int] | None = None
        self._comers: set[int] = set()
        self._moves: dict[str, _Move] = {}
        self._overloaded_since: dict[int, float] = {}

    def plan(
        self,
        landers: Collection[int],
        owners: Mapping[str, int],
        waiting: Collection[str],
        bytes_per_second: Mapping[str, float],
        now: float,
    ) -> Plan:
        """Give each split that waits to the lander with the least load, and plan moves.

        A split that moves is in `owners` until its lander has released it, and in `waiting` when it
        may be read again. Between the two it may be in neither. `now` is the loop's clock, in
        seconds.
        """
        if not self._have_gathered(landers, now):
            return Plan({})
        self._notice(landers)
        if not landers:
            return Plan({})
        self._forget_moves(landers, owners, now)
        weights = _weights({*owners, *waiting, *self._moves}, bytes_per_second)
        loads = self._loads(landers, owners, weights)
        assigned = self._assign(loads, waiting, weights)
        return Plan(assigned, self._move(loads, len(weights), now))

    def _have_gathered(self, landers: Collection[int], now: float) -> bool:
        """Return whether the first assignment need not wait any longer."""
        if self._known is None and landers:
            self._first_came = now if self._first_came is None else self._first_came
            patience = self._gathering + self._expected * LANDERS_APART
            return len(landers) >= self._expected or now - self._first_came >= patience
        return self._known is not None

    def _notice(self, landers: Collection[int]) -> None:
        there = set(landers)
        if self._known is not None:
            self._comers |= there - self._known
        self._comers &= there
        self._known = there

    def _forget_moves(
        self, landers: Collection[int], owners: Mapping[str, int], now: float
    ) -> None:
        self._moves = {
            split_id: move
            for split_id, move in self._moves.items()
            if move.target in landers
            and now - move.since < _MOVE_SECONDS
            and owners.get(split_id, move.source) == move.source
        }

    def _loads(
        self, landers: Collection[int], owners: Mapping[str, int], weights: Mapping[str, int]
    ) -> dict[int, _Load]:
        """Return the load of each lander, as it is when all moves have ended."""
        loads = {lander: _Load(lander) for lander in sorted(landers)}
        for split_id, owner in owners.items():
            if owner in loads and split_id not in self._moves:
                loads[owner].add(weights[split_id])
                loads[owner].splits.append((weights[split_id], split_id))
        for split_id, move in self._moves.items():
            loads[move.target].add(weights[split_id])
        return loads

    def _assign(
        self, loads: Mapping[int, _Load], waiting: Collection[str], weights: Mapping[str, int]
    ) -> dict[int, tuple[str, ...]]:
        """Give the heaviest split first; one that moves goes where it was planned to go."""
        assigned: dict[int, list[str]] = {}
        heap = [(*load.order(), load) for load in loads.values()]
        heapq.heapify(heap)
        for split_id in sorted(waiting, key=lambda one: (-weights[one], one)):
            if (move := self._moves.pop(split_id, None)) is not None:
                assigned.setdefault(move.target, []).append(split_id)
                continue
            load = heap[0][3]
            load.add(weights[split_id])
            heapq.heapreplace(heap, (*load.order(), load))
            assigned.setdefault(load.lander, []).append(split_id)
        return {lander: tuple(split_ids) for lander, split_ids in assigned.items()}

    def _move(self, loads: Mapping[int, _Load], splits: int, now: float) -> tuple[str, ...]:
        """Plan moves to landers that have come, then from those that are overloaded for long."""
        for load in loads.values():
            load.splits.sort()
        moved: list[str] = []
        mean = sum(load.weight for load in loads.values()) / len(loads)
        share = ceil(sum(load.count for load in loads.values()) / len(loads))
        room = max(1, int(splits * _MOVING)) - len(self._moves)
        while self._comers and len(moved) < room:
            target = min((loads[lander] for lander in self._comers), key=_Load.order)
            found = None
            if target.count < share and target.weight < mean * _ENOUGH:
                fullest = sorted(loads.values(), key=_Load.order, reverse=True)
                found = next((one for one in fullest if _fitting(one, target) is not None), None)
            if found is None:
                self._comers.discard(target.lander)
            else:
                moved.append(self._plan_move(found, target, now))
        for load in self._overloaded(loads, mean, now):
            while len(moved) < room and load.weight > mean * _OVERLOAD:
                target = min(loads.values(), key=_Load.order)
                if _fitting(load, target) is None:
                    break
                moved.append(self._plan_move(load, target, now))
        return tuple(moved)

    def _overloaded(self, loads: Mapping[int, _Load], mean: float, now: float) -> list[_Load]:
        """Return the landers that have been overloaded for long."""
        over = [load for load in loads.values() if load.weight > mean * _OVERLOAD]
        since = self._overloaded_since
        self._overloaded_since = {load.lander: since.get(load.lander, now) for load in over}
        return [load for load in over if now - self._overloaded_since[load.lander] >= _PATIENCE]

    def _plan_move(self, source: _Load, target: _Load, now: float) -> str:
        best = _fitting(source, target)
        assert best is not None
        weight, split_id = best
        source.splits.remove(best)
        source.weight -= weight
        source.count -= 1
        target.add(weight)
        self._moves[split_id] = _Move(source.lander, target.lander, now)
        return split_id


def _fitting(source: _Load, target: _Load) -> tuple[int, str] | None:
    """Return the weight and name of the split whose move makes both most alike, and clearly so."""
    gap = source.weight - target.weight
    place = bisect_right(source.splits, gap // 2, key=lambda one: one[0])
    near = source.splits[max(0, place - 1) : place + 1]
    best = min(near, key=lambda one: abs(gap - 2 * one[0]), default=None)
    return None if best is None or best[0] * 4 > gap * 3 else best


def _weights(split_ids: set[str], bytes_per_second: Mapping[str, float]) -> dict[str, int]:
    """Return the weight of each split; an unknown rate counts as the mean of the known ones."""
    known = [rate for split_id in split_ids if (rate := bytes_per_second.get(split_id)) is not None]
    mean = sum(sorted(known)) / len(known) if known else 0.0
    if not mean:
        return dict.fromkeys(split_ids, _SCALE)
    return {
        split_id: int(_SCALE * (_IDLE_COST + bytes_per_second.get(split_id, mean) / mean))
        for split_id in split_ids
    }


# A lander that has lost the coordinator may read for as long: its lease, and a bit.
_LEASE_SECONDS: Final = 5.5


@final
class HandoverDelays:
    """Keep two landers from reading one split, and to what the service allows about a split.

    Times are those of the loop's clock, in seconds.
    """

    def __init__(self, pacing: Pacing) -> None:
        self._pacing = pacing
        self._not_before: dict[str, float] = {}
        # The lost lander that may still read a split, and when it was subscribed to at the latest.
        self._leased: dict[str, tuple[int, float]] = {}

    def is_over(self, split_id: str, now: float) -> bool:
        """Return whether a split may be given to a lander."""
        return self._not_before.get(split_id, now) <= now

    def given(self, split_id: str) -> None:
        """Note that a lander has a split."""
        self._not_before.pop(split_id, None)
        self._leased.pop(split_id, None)

    def moved(self, split_id: str, now: float) -> None:
        """Note that a lander has stopped to read a split."""
        self._not_before[split_id] = now + max(self._pacing.spacing, self._pacing.handover)

    def lost(self, split_id: str, lander: int, subscribed: float, now: float) -> None:
        """Note that a lander which has a split is gone, and may read on until its lease is over.

        It has subscribed to the split at the time `subscribed` at the latest.
        """
        self._not_before[split_id] = now + _LEASE_SECONDS
        self._leased[split_id] = lander, subscribed

    def release(self, lander: int, now: float) -> None:
        """Free what a lander had: it connects again when it has closed its subscriptions.

        A new attempt of it means that Spark has ended the one before. Its splits are read on as
        soon as the service allows after the last calls that it may have made.
        """
        for split_id, (former, subscribed) in list(self._leased.items()):
            if former == lander:
                del self._leased[split_id]
                free_at = max(subscribed + self._pacing.spacing, now + self._pacing.handover)
                self._not_before[split_id] = min(self._not_before[split_id], free_at)
