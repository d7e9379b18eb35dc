"""Landers that fail again and again, or die with an error that the query has seen."""

from __future__ import annotations

import asyncio
import errno
from functools import partial
from typing import TYPE_CHECKING

import pytest

from fanout.core.checkpoint import to_wire
from fanout.core.positions import Cursor, Horizon
from fanout.core.remote_error import ErrorWire
from fanout.errors import CheckpointError, FanOutError, ServiceError, SetupError, SplitFailedError
from fanout.landers.messages import (
    Failed,
    Hello,
    Landed,
    Piece,
    Report,
    Stop,
    encode,
    from_coordinator,
)
from tests.landers.rig import MemoryChannel, Rig, until
from tests.support.manual_source import ManualSource

if TYPE_CHECKING:
    from pathlib import Path

FULL = FanOutError("lander 0 failed: OSError: [Errno 28] No space left on device")
FULL.__cause__ = OSError(errno.ENOSPC, "No space left on device")


async def connected(rig: Rig, attempt: int = 1) -> MemoryChannel:
    """Return the channel of a lander that says what a test lets it say."""
    ours, theirs = MemoryChannel.pair()
    rig.channels[0] = ours
    rig._tasks.create_task(rig.coordinator.serve(theirs))
    await ours.send(encode(Hello(0, attempt, "here", 1)))
    await until(lambda: 0 in rig.coordinator._sessions)
    return ours


def fails(rig: Rig, times: int) -> None:
    for _ in range(times):
        rig.coordinator.task_ended(0, FULL)


def is_current(rig: Rig, attempt: int) -> bool:
    session = rig.coordinator._sessions.get(0)
    return session is not None and session.attempt == attempt


def is_at(rig: Rig, sequence: int) -> bool:
    return rig.progress["a"].delivered == Cursor(sequence)


async def test_a_lander_that_always_fails_ends_the_query(tmp_path: Path) -> None:
    async with Rig(ManualSource("a"), tmp_path).running(1) as rig:
        rig.coordinator.task_ended(1, FULL)
        fails(rig, 3)
        assert rig.coordinator.failure is None
        fails(rig, 1)
        with pytest.raises(SetupError) as caught:
            await rig.coordinator.next(1.0)
    assert str(caught.value) == (
        "lander 0 has failed 4 times in a row and has landed nothing: lander 0 failed: OSError: "
        "[Errno 28] No space left on device; mend that where it ran, where the log says more, and "
        "start again at the same place"
    )
    assert caught.value.__cause__ is FULL


@pytest.mark.long
async def test_a_lander_that_lands_something_between_begins_anew(tmp_path: Path) -> None:
    async with Rig(ManualSource("a"), tmp_path).running() as rig:
        for attempt in range(1, 4):
            fails(rig, 3)
            lander = await connected(rig, attempt)
            await until(lambda: "a" in rig.coordinator._owners)
            after = Horizon() if attempt == 1 else Cursor(attempt - 1)
            moved = Piece("a", to_wire(after), to_wire(Cursor(attempt)))
            await lander.send(encode(Landed(0, (), (moved,))))
            await until(partial(is_at, rig, attempt))
        fails(rig, 3)
        assert rig.coordinator.failure is None


async def test_a_lander_that_was_connected_for_a_minute_begins_anew(tmp_path: Path) -> None:
    """It had nothing to read."""
    async with Rig(ManualSource("a"), tmp_path).running() as rig:
        fails(rig, 3)
        await connected(rig)
        rig.coordinator._sessions[0]._connected_at -= 60.0
        fails(rig, 3)
        assert rig.coordinator.failure is None
        fails(rig, 1)
        assert isinstance(rig.coordinator.failure, SetupError)


async def test_a_lander_that_is_killed_while_it_reads_ends_no_query(tmp_path: Path) -> None:
    source = ManualSource("a")
    rows: list[tuple[str, int]] = []
    async with Rig(source, tmp_path).running() as rig:
        for _ in range(6):
            rig.start(0)
            source.put(b"1", b"2")
            rows += await rig.read(2)
            await rig.kill(0, FULL)
        assert rig.coordinator.failure is None
    assert rows == [("a", number) for number in range(1, 13)]


async def test_an_error_of_a_lander_that_dies_before_it_is_final_ends_the_query(
    tmp_path: Path,
) -> None:
    error = SplitFailedError("a cannot go on: ServiceError: gone")
    error.__cause__ = ServiceError("gone")
    async with Rig(ManualSource("a"), tmp_path).running() as rig:
        lander = await connected(rig)
        await lander.send(encode(Failed(ErrorWire.with_cause(error), landed=False)))
        await until(lambda: rig.coordinator.failure)
        waiting = asyncio.create_task(rig.coordinator.next(20.0))
        await asyncio.sleep(0.01)
        assert not waiting.done()  # its records may come yet
        await lander.close()
        with pytest.raises(SplitFailedError, match="a cannot go on") as caught:
            await waiting
    assert isinstance(caught.value.__cause__, ServiceError)


async def test_a_lander_that_has_read_may_fail_to_begin_three_times(tmp_path: Path) -> None:
    """Its next attempt may be on a machine without a network, and the others read on."""
    refused = Failed(ErrorWire.with_cause(SetupError("a lander on b cannot begin")), begun=False)
    async with Rig(ManualSource("a"), tmp_path).running() as rig:
        lander = await connected(rig)
        await lander.send(encode(Report((), 0)))
        for attempt in range(2, 6):
            assert rig.coordinator.failure is None
            lander = await connected(rig, attempt)
            await until(partial(is_current, rig, attempt))
            await lander.send(encode(refused))
            while not isinstance(from_coordinator(await lander.receive()), Stop):
                pass
            await lander.close()
        with pytest.raises(SetupError, match="lander 0 has failed 4 times in a row") as caught:
            await rig.coordinator.next(1.0)
    assert str(caught.value.__cause__) == "a lander on b cannot begin"


async def test_a_lander_that_has_never_read_and_cannot_begin_ends_the_query(tmp_path: Path) -> None:
    refused = Failed(ErrorWire.with_cause(SetupError("a lander on b cannot begin")), begun=False)
    async with Rig(ManualSource("a"), tmp_path).running() as rig:
        lander = await connected(rig)
        await lander.send(encode(refused))
        with pytest.raises(SetupError, match=r"^a lander on b cannot begin$"):
            await rig.coordinator.next(20.0)


async def test_the_log_says_on_which_machine_a_lander_has_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    error = CheckpointError("a segment cannot be written: [Errno 28] No space left on device")
    async with Rig(ManualSource("a"), tmp_path).running() as rig:
        lander = await connected(rig)
        await lander.send(encode(Failed(ErrorWire.with_cause(error))))
        await until(lambda: rig.coordinator.failure)
    assert f"lander 0 (process 1 on here) has failed: {error}" in caplog.messages


async def test_a_final_error_of_another_lander_comes_after_the_first(tmp_path: Path) -> None:
    async with Rig(ManualSource("a"), tmp_path).running() as rig:
        lander = await connected(rig)
        await lander.send(encode(Failed(ErrorWire("ServiceError", "first"), landed=False)))
        await lander.send(encode(Failed(ErrorWire("ServiceError", "second"))))
        with pytest.raises(ServiceError, match="first"):
            await rig.coordinator.next(20.0)
