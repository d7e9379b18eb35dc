"""What the coordinator knows of splits, and how long it keeps it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from fanout.core.policy import Retry
from fanout.core.positions import Cursor
from fanout.core.progress import ABSENCES
from fanout.core.remote_error import ForeignError
from fanout.core.statistics import CommitStatistics, SplitState
from fanout.errors import RemoteError, RetryLaterError, ServiceError, SplitFailedError
from fanout.landers.messages import Hello, Release, Report, SplitReport, Wanted, encode
from tests.landers.rig import MemoryChannel, Rig, until
from tests.support.manual_source import ManualConnection, ManualSource

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.core.events import Batch, Split


def numbered(count: int) -> list[bytes]:
    return [str(n).encode() for n in range(count)]


async def test_what_was_known_of_a_split_is_forgotten_after_its_end(tmp_path: Path) -> None:
    source = ManualSource("a")
    source.put(*numbered(10))
    async with Rig(source, tmp_path).running(0) as rig:
        coordinator, counters = rig.coordinator, rig.coordinator._counters
        await rig.read(10)
        await until(lambda: "a" in counters._reports)
        for now in (10.0, 20.0):
            counters.measure(now)
        assert "a" in counters.bytes_per_second
        source.end("a", "left")
        await until(lambda: "left" in coordinator._owners)
        assert "a" not in coordinator._delays._not_before
        assert "a" not in counters.bytes_per_second
        assert "a" not in counters._measured
        assert "a" not in counters._subscribed
        assert "a" not in rig.landers[0]._reported
        # The statistics have it until the service does not list it any more.
        statistics = coordinator.statistics().splits["a"]
        assert (statistics.state, statistics.records) == (SplitState.ENDED, 10)
        rig.progress.acknowledge({"a": Cursor(10)})
        for _ in range(ABSENCES):
            rig.progress.forget_expired(["left"])
        coordinator._listed()
        assert "a" not in counters._before


async def test_what_was_counted_just_before_an_end_or_a_move_is_known(tmp_path: Path) -> None:
    source = ManualSource("a", "b")
    source.put(*numbered(10))
    source.put(*numbered(10), split="b")
    source.end("a", "left")
    async with Rig(source, tmp_path).running(0) as rig:
        await rig.read(20)
        await until(lambda: rig.progress["a"].ended)
        owner = rig.coordinator._owners["b"]
        owner.releasing.add("b")
        owner._outbox.put_nowait(Release(("b",)))
        await until(lambda: "b" not in owner.releasing)
        for split in (rig.coordinator.statistics().splits[split_id] for split_id in "ab"):
            assert split.bytes > 0
            assert split.subscriptions == 1


async def test_a_late_report_of_a_split_that_has_gone_counts_for_nothing(tmp_path: Path) -> None:
    source = ManualSource("a")
    async with Rig(source, tmp_path).running(0) as rig:
        await until(lambda: "a" in rig.coordinator._owners)
        source.end("a", "left")
        await until(lambda: "left" in rig.coordinator._owners)
        late = SplitReport("a", SplitState.LIVE, 1000, subscriptions=1000)
        await rig.channels[0].send(encode(Report((late,), 17)))
        await until(lambda: rig.coordinator._sessions[0].bytes_in_flight == 17)
        assert rig.coordinator.statistics().splits["a"].subscriptions <= 1


async def test_records_are_counted_once_although_they_are_read_twice(tmp_path: Path) -> None:
    source = ManualSource("a")
    source.put(*numbered(30))
    async with Rig(source, tmp_path, max_records=10).running(0) as rig:
        rows = await rig.rows(await rig.batch())
        await until(lambda: rig.progress["a"].delivered == Cursor(20))
        await rig.kill(0)
        rig.start(0)
        rows += await rig.read(20)
        assert len(rows) == 30
        assert rig.coordinator.statistics().records == 30


async def test_statistics_have_what_the_service_has_stored(tmp_path: Path) -> None:
    async with Rig(ManualSource("a"), tmp_path).running(0) as rig:
        assert isinstance(rig.connection, ManualConnection)
        rig.connection.statistics = CommitStatistics({"a": Cursor(3)}, 2, 1)
        statistics = rig.coordinator.statistics()
        assert (statistics.commits_succeeded, statistics.commits_failed) == (2, 1)
        assert statistics.splits["a"].committed == Cursor(3)


async def test_answers_that_slow_landers_down_are_counted_of_all(tmp_path: Path) -> None:
    source = ManualSource("a", "b")
    async with Rig(source, tmp_path).running(0, 1) as rig:
        source.throttled = 3
        await until(lambda: rig.coordinator.statistics().totals.throttled == 6)
        source.throttled = 4
        await until(lambda: rig.coordinator.statistics().totals.throttled == 8)


async def test_a_lander_whose_decode_waits_lands_every_record(tmp_path: Path) -> None:
    source = ManualSource("a")
    source.put(*numbered(10))
    failures = [RetryLaterError()] * 3

    async def decode(batch: Batch) -> Batch:
        if batch.num_records and failures:
            raise failures.pop()
        return batch

    source.decode = decode
    async with Rig(source, tmp_path).running(0) as rig:
        assert len(await rig.read(10)) == 10
        await until(lambda: rig.coordinator.statistics().splits["a"].last_cause is not None)
        cause = rig.coordinator.statistics().splits["a"].last_cause
        assert "RetryLaterError" in str(cause)
        assert rig.coordinator.statistics().resubscriptions == 0
    assert failures == []


async def retry(*_: object) -> Retry:
    return Retry()


async def test_each_resubscription_of_a_lander_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ManualConnection, "verdict", retry)
    told: list[tuple[Split, Exception, float]] = []
    source = ManualSource("a")
    rig = Rig(source, tmp_path, on_resubscribe=lambda *call: told.append(call))
    async with asyncio.timeout(20.0), rig.running(0):
        for error in (RemoteError("InternalFailure", "again"), OSError("reset")):
            await until(lambda: source.subscriptions == 1)
            source.fail(error)
            await until(lambda: rig.landers[0]._resubscribed)
            source._failure = None
            await until(lambda: not rig.landers[0]._resubscribed)
        await until(lambda: told and isinstance(told[-1][1], ForeignError))
    first, last = told[0], told[-1]
    assert (first[0].id, str(first[1])) == ("a", "InternalFailure: again")
    assert isinstance(first[1], RemoteError)
    assert first[1].code == "InternalFailure"
    assert first[2] >= 0.0
    assert isinstance(last[1], ForeignError)
    assert (str(last[1]), last[1].name) == ("OSError: reset", "OSError")


async def test_resubscriptions_that_wait_are_bounded(tmp_path: Path) -> None:
    async with Rig(ManualSource("a"), tmp_path).running(0) as rig:
        await until(lambda: 0 in rig.landers)
        split = rig.progress["a"].split
        for number in range(2000):
            rig.landers[0]._resubscribes(split, ServiceError("x" * 5000), float(number))
        assert len(rig.landers[0]._resubscribed) == 1000
        assert rig.landers[0]._resubscribed[-1].delay == 1999.0
        resubscribed = tuple(rig.landers[0]._resubscribed)
        assert len(encode(Report((), 0, resubscribed=resubscribed))) < 1 << 20


async def test_what_the_hook_raises_ends_the_query_as_in_one_process(tmp_path: Path) -> None:
    def hook(*_: object) -> None:
        raise KeyError("mistake")

    rig = Rig(ManualSource("a"), tmp_path, on_resubscribe=hook)
    async with asyncio.timeout(20.0), rig.running(0):
        await until(lambda: 0 in rig.landers)
        rig.landers[0]._resubscribes(rig.progress["a"].split, ServiceError("gone"), 1.0)
        with pytest.raises(SplitFailedError, match="a cannot go on: 'mistake'") as caught:
            await rig.coordinator.next(20.0)
    assert isinstance(caught.value.__cause__, KeyError)


async def test_resubscriptions_are_counted_by_cause_and_sessions_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ManualConnection, "verdict", retry)
    source = ManualSource("a")
    source.put(*numbered(10))
    async with asyncio.timeout(20.0), Rig(source, tmp_path).running(0) as rig:
        await rig.read(10)
        for error in (RemoteError("InternalFailure", "again"), OSError("reset by canary")):
            await until(lambda: source.subscriptions == 1)
            source.fail(error)
            await until(lambda: rig.landers[0]._resubscribed)
            source._failure = None
            await until(lambda: not rig.landers[0]._resubscribed)
        counted = rig.coordinator._causes
        await until(lambda: len(counted.counts) == 2)
        statistics = rig.coordinator.statistics()
        assert statistics.totals.records == statistics.records == 10
        assert statistics.totals.bytes > 0
        # The connection of the test has no codes of a service.
        assert statistics.totals.resubscriptions.keys() == {"RemoteError", "OSError"}
        limit = rig.connection.pacing.max_bytes_in_flight
        assert (statistics.lander_sessions, statistics.max_bytes_in_flight) == (1, limit)
        await rig.kill(0)
        rig.start(0)
        await until(lambda: rig.coordinator.statistics().lander_sessions == 2)


async def test_segments_that_wait_for_a_batch_make_the_stream_late(tmp_path: Path) -> None:
    source = ManualSource("a")
    source.put(*numbered(10))
    loop = asyncio.get_running_loop()
    async with Rig(source, tmp_path).running(0) as rig:
        rig.coordinator._tell_all(Wanted())
        await until(lambda: rig.coordinator._landed)
        landed = loop.time()
        await asyncio.sleep(0.2)
        least = loop.time() - landed
        statistics = rig.coordinator.statistics()
        assert statistics.held is not None
        assert least - 0.1 <= statistics.held < 60
        assert statistics.lag == statistics.held
        await rig.batch()
        assert rig.coordinator.statistics().held is None


async def test_events_that_wait_at_a_lander_make_their_split_late(tmp_path: Path) -> None:
    source = ManualSource("a")
    async with Rig(source, tmp_path, max_records=10).running(0) as rig:
        source.put(*numbered(10))
        await until(lambda: rig.coordinator._landed)
        source.put(*numbered(10))  # they fill the next segment
        await until(lambda: rig.landers[0]._filler.held == 10)
        source.put(*numbered(10))
        counted = rig.coordinator.statistics
        async with asyncio.timeout(20.0):
            await until(lambda: (counted().splits["a"].waiting or 0.0) > 1.0)
        await rig.read(30)
        async with asyncio.timeout(20.0):
            await until(lambda: counted().splits["a"].waiting is None)


async def test_gaps_of_a_split_that_has_expired_stay_counted(tmp_path: Path) -> None:
    source = ManualSource("a")
    source.put(*numbered(10))
    async with asyncio.timeout(20.0), Rig(source, tmp_path).running(0) as rig:
        coordinator = rig.coordinator
        await rig.read(10)
        session = coordinator._sessions[0]
        for gaps in (2, 3):  # counted since the split was assigned
            told = SplitReport("a", SplitState.LIVE, 1, gaps=gaps, gap_seconds=1.5 * gaps)
            coordinator._take_in(session, Report((told,), 0))
        source.end("a", "left")
        await until(lambda: "left" in coordinator._owners)
        totals = coordinator.statistics().totals
        assert (totals.gaps, totals.gap_seconds) == (3, 4.5)
        rig.progress.acknowledge({"a": Cursor(10)})
        for _ in range(ABSENCES):
            rig.progress.forget_expired(["left"])
        coordinator._listed()
        statistics = coordinator.statistics()
        assert "a" not in statistics.splits
        assert (statistics.totals, statistics.gaps) == (totals, 3)


async def test_a_cause_is_named_as_its_service_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in one process: the codes of `metrics` are those of the service, not Python's classes."""
    monkeypatch.setattr(ManualConnection, "verdict", retry)
    source = ManualSource("a")
    async with asyncio.timeout(20.0), Rig(source, tmp_path).running(0) as rig:
        await until(lambda: 0 in rig.landers)
        rig.landers[0]._cause = lambda error: getattr(error, "code", "no code: canary")
        for error in (OSError("reset"), CodedError("slow down")):
            await until(lambda: source.subscriptions == 1)
            source.fail(error)
            await until(lambda: rig.landers[0]._resubscribed)
            source._failure = None
            await until(lambda: not rig.landers[0]._resubscribed)
        counted = rig.coordinator._causes
        await until(lambda: len(counted.counts) == 2)
        assert counted.counts.keys() == {"_OTHER", "KMSThrottlingException"}


class CodedError(Exception):
    """An error of a client that has the code of its service."""

    code = "KMSThrottlingException"


async def test_landers_that_come_and_go_are_events_of_the_stream(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fanout.lifecycle")

    def told() -> list[tuple[str, str, object]]:
        return [
            (fields["event.name"], each.getMessage(), fields["fanout.lander"])
            for each in caplog.records
            if "fanout.lander" in (fields := vars(each))
        ]

    async with asyncio.timeout(20.0), Rig(ManualSource("a"), tmp_path).running(0) as rig:
        await until(lambda: 0 in rig.coordinator._sessions)
        ours, theirs = MemoryChannel.pair()
        older = asyncio.create_task(rig.coordinator.serve(theirs))
        await ours.send(encode(Hello(0, 0, "there", 7)))
        await older
        await rig.kill(0)
        assert told() == [
            ("fanout.lander.connected", "lander 0 (process 1 on here) is connected", 0),
            (
                "fanout.lander.refused",
                (
                    "an older attempt of lander 0 (process 7 on there) is refused, as a newer one "
                    "is connected"
                ),
                0,
            ),
            ("fanout.lander.gone", "lander 0 (process 1 on here) is gone: its task has ended", 0),
        ]
    fields = vars(next(each for each in caplog.records if "fanout.lander" in vars(each)))
    assert (fields["host.name"], fields["process.pid"]) == ("here", 1)
