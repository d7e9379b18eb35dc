"""Seeds of a model of queues: nothing is lost or repeated; and bugs that they have to find."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from fanout.core.lending.dedup import Dedup, DuplicateAction
from fanout.core.lending.seam import Settlement
from fanout.kinesis.queue.receivers import QueueMember
from fanout.kinesis.queue.records import IdNaming
from fanout.testing.virtual_time.loop import simulate
from tests.kinesis.queue_model import ModelClient, run_seed
from tests.support.model_bugs import check_found, instead

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = 1_000
_ENOUGH = 300  # seeds within which each bug is found


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Leave warnings of thousands of faults out, until the end of the test."""
    caplog.set_level(logging.CRITICAL, logger="fanout")


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 100), marks=pytest.mark.long)])
def test_some_seeds(seeds: range) -> None:
    for seed in seeds:
        simulate(partial(run_seed, seed))


@pytest.mark.prove
@pytest.mark.timeout(600)
def test_all_seeds() -> None:
    for seed in range(SEEDS):
        simulate(partial(run_seed, seed))


def _released_is_accepted(send: Any) -> Any:
    def acknowledge(self: Any, pieces: Any, kind: Settlement) -> Any:
        return send(self, pieces, Settlement.ACCEPT if kind is Settlement.RELEASE else kind)

    return acknowledge


def _closing_accepts(settle: Any) -> Any:
    async def _settle(self: Any, held: Any, kind: Settlement, response: Any) -> None:
        await settle(self, held, Settlement.ACCEPT if self._left else kind, response)

    return _settle


def _accepted_before_it_is_stored(duplicates: Any) -> Any:
    return lambda self, piece: [(p, DuplicateAction.ACCEPT) for p, _ in duplicates(self, piece)]


def _last_record_is_dropped(poll: Any) -> Any:
    async def dropping(self: Any) -> Any:
        if len(self._buffer) > 1:
            self._buffer.pop()
        return await poll(self)

    return dropping


def _failed_entries_are_ignored(call: Any) -> Any:
    async def acknowledge(self: Any, *arguments: Any) -> Any:
        await call(self, *arguments)
        return {}

    return acknowledge


BUGS: dict[str, Callable[[Any], None]] = {
    "an earlier run is forgotten": instead(IdNaming, "read", lambda _: lambda *_: []),
    "nothing unconfirmed is stored": instead(IdNaming, "write", lambda _: lambda *_: ""),
    "a released record is acknowledged": instead(QueueMember, "acknowledge", _released_is_accepted),
    "closing acknowledges": instead(QueueMember, "_settle", _closing_accepts),
    "a duplicate is acknowledged before it is stored": instead(
        Dedup, "duplicates", _accepted_before_it_is_stored
    ),
    "a failed acknowledgement counts": instead(
        ModelClient, "acknowledge", _failed_entries_are_ignored
    ),
    "a buffered record is dropped": instead(QueueMember, "poll", _last_record_is_dropped),
    "nothing is extended": instead(QueueMember, "_extend", lambda _: _nothing),
    "a confirmed record is forgotten at once": instead(
        Dedup, "lent_again", lambda _: lambda *_: None
    ),
    "nothing is known to be delivered": instead(Dedup, "duplicates", lambda _: lambda *_: []),
}


async def _nothing(*_: object) -> None:
    """Do nothing."""


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    check_found(bug, run_seed, _ENOUGH)
