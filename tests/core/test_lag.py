"""What statistics say of records that wait for a consumer."""

from __future__ import annotations

import asyncio
import threading

import fanout
from fanout.core.events import Split
from fanout.core.statistics import SplitState
from tests.support.kafka.topics import eventually
from tests.support.scripted_source import FlakyError, Log, Refuse, ScriptedSource, Stop
from tests.support.virtual_time import in_virtual_time

A, B = Split("a"), Split("b")


@in_virtual_time
async def test_the_lag_grows_while_an_event_waits_for_a_handler_that_hangs() -> None:
    log = Log(split=A, entries=tuple(range(1, 20_001)), per_event=1000, event_delay=1.0)
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        await anext(stream)
        await asyncio.sleep(0.5)
        assert stream.statistics().lag == 19_000.0
        await asyncio.sleep(8.5)  # the second event came a second after the first
        split = stream.statistics().splits["a"]
        assert (split.state, split.waiting) == (SplitState.LIVE, 8.0)
        assert split.lag == 18_000.0 + 8.0
        assert split.behind == 19_000
        await asyncio.sleep(3600)
        assert stream.statistics().lag == 18_000.0 + 3608.0


@in_virtual_time
async def test_records_that_wait_at_the_tip_are_late_by_the_time_they_wait() -> None:
    log = Log(split=A, entries=(1, 2), per_event=1, event_delay=1.0, heartbeat=None)
    async with fanout.open(ScriptedSource(logs=[log, Log(split=B)])) as stream:
        await anext(stream)
        await asyncio.sleep(9)
        statistics = stream.statistics()
        assert statistics.splits["a"].lag == 8.0
        assert statistics.splits["b"].waiting == 5.0  # a heartbeat waits, and the tip is not known
        await anext(stream)
        assert stream.statistics().splits["a"].lag == 0.0
        assert stream.statistics().splits["a"].waiting is None


@in_virtual_time
async def test_the_lag_of_a_split_that_backs_off_is_unknown_although_an_event_waits() -> None:
    faults = [Refuse(FlakyError("again"))] * 9
    log = Log(split=A, entries=(1, 2), per_event=1, event_delay=1.0, faults=(Stop(2), *faults))
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        await anext(stream)
        await asyncio.sleep(9)
        split = stream.statistics().splits["a"]
        assert split.state is SplitState.BACKING_OFF
        assert (split.waiting, split.lag) == (8.0, None)
        await anext(stream)
        assert stream.statistics().splits["a"].waiting is None


@in_virtual_time
async def test_the_rest_of_a_batch_that_was_cut_waits() -> None:
    log = Log(split=A, entries=(1, 2, 3), per_event=3, heartbeat=None)
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        await stream.drain(max_records=1)
        await asyncio.sleep(7)
        split = stream.statistics().splits["a"]
        assert (split.waiting, split.lag, split.behind) == (7.0, 7.0, 2)
        await stream.drain(max_records=1)
        await asyncio.sleep(2)
        assert stream.statistics().splits["a"].waiting == 2.0
        await stream.drain()
        assert stream.statistics().splits["a"].waiting is None


async def test_another_thread_reads_for_how_long_an_event_waits() -> None:
    async with fanout.open(ScriptedSource(logs=[Log(split=A, entries=(1, 2, 3))])) as stream:
        await anext(stream)
        await eventually(lambda: stream.statistics().splits["a"].waiting is not None)
        read: list[float | None] = []
        thread = threading.Thread(
            target=lambda: read.append(stream.statistics().splits["a"].waiting)
        )
        thread.start()
        thread.join()
        assert read[0] is not None
        assert 0 <= read[0] < 60
