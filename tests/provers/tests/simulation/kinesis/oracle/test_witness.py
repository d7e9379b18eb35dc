from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest

from fanout.core.events import Split
from fanout.core.statistics import SplitState
from fanout.errors import DamagedFrameError, SubscriptionSilentError
from fanout.testing.virtual_time.loop import running_loop
from tests.provers.simulation.kinesis.oracle.witness import KinesisWitness
from tests.provers.simulation.kinesis.service.stream_log import SourceLog
from tests.provers.tests.simulation.kinesis.oracle.notified_process import (
    SHARD,
    SOURCE,
    NotifiedProcess,
)
from tests.support.virtual_time import in_virtual_time

SILENT = SubscriptionSilentError("nothing came")


class WitnessStream:
    """The statistics of a stream with one shard, which backs off."""

    failure = None

    def __init__(self, shards: dict[str, Any]) -> None:
        self._shards = shards

    def statistics(self) -> Any:
        return SimpleNamespace(splits=self._shards, bytes_in_flight=0)


def watched(process: NotifiedProcess, **shards: Any) -> KinesisWitness:
    witness = KinesisWitness(process.run, SourceLog({}), SOURCE)
    stream: Any = WitnessStream(shards)
    witness.opened(stream)
    return witness


@pytest.mark.parametrize(("blocked", "wrong"), [(0.0, ["late"]), (40.0, [])])
@in_virtual_time
async def test_a_loop_that_another_process_blocks_is_no_silence(
    blocked: float, wrong: list[str]
) -> None:
    process = NotifiedProcess()
    backs_off = SimpleNamespace(state=SplitState.BACKING_OFF, lag=None, last_cause=SILENT)
    witness = watched(process, **{SHARD: backs_off})
    process.attempts.answer(process.asks(), 0.0)
    running_loop().block(blocked)
    await asyncio.sleep(75 - blocked)
    process.now = running_loop().time()
    witness.resubscribes(Split(SHARD), SILENT, 5.0)
    assert process.wrongs == wrong


@pytest.mark.parametrize(("blocked", "wrong"), [(0.0, True), (40.0, False)])
@in_virtual_time
async def test_nobody_lists_shards_in_a_blocked_loop(blocked: float, *, wrong: bool) -> None:
    process = NotifiedProcess()
    witness = watched(process)
    running_loop().block(30.0)
    process.run.listed_at = running_loop().awake
    running_loop().block(blocked)
    await asyncio.sleep(SOURCE.discovery_interval + 270 - blocked)
    reading: Any = None
    witness.closing(reading)
    assert bool(process.wrongs) is wrong


@in_virtual_time
async def test_damage_is_told_within_a_second_of_the_last_piece_of_its_frame() -> None:
    process = NotifiedProcess()
    watched(process)
    attempt = process.asks()
    attempt.whole_at = math.inf
    process.attempts.end(attempt, (DamagedFrameError, ""), 0.0)
    await asyncio.sleep(100.5)
    attempt.whole_at = running_loop().time()
    await asyncio.sleep(0.9)
    assert process.wrongs == []
    await asyncio.sleep(1.0)
    assert process.wrongs == ["swallowed"]
