from __future__ import annotations

import asyncio
import errno
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fanout.core.opening import open_stream
from fanout.core.positions import Cursor
from fanout.errors import CheckpointError, ServiceError, SplitFailedError, StreamStateError
from fanout.landing.segments import segment_filler
from fanout.landing.segments.segment_filler import NoRecords, SegmentFiller, Stopped
from fanout.landing.segments.segments import Filled, OpenSegment, SegmentLog
from tests.support.manual_source import SCHEMA, ManualSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from fanout.core.fan_out import FanOut
    from fanout.landing.segments.segment_filler import FillResult

# Longer than any test: what ends earlier was not waiting for it.
LONG = 600.0


@pytest.fixture
def source() -> ManualSource:
    return ManualSource()


@asynccontextmanager
async def pumping(
    source: ManualSource,
    directory: Path,
    *,
    max_records: int = 100,
    max_bytes: int = 1 << 20,
    max_wait: float = 1.0,
    min_records: int = 1,
    bounded: bool = False,
    eager: bool = True,
) -> AsyncIterator[tuple[SegmentFiller, FanOut]]:
    log = SegmentLog(directory, 1, SCHEMA, max_records=max_records, max_bytes=max_bytes)
    async with open_stream(source) as stream:
        filler = SegmentFiller(
            stream,
            log,
            max_wait=max_wait,
            min_records=min_records,
            bounded=bounded,
            eager=eager,
        )
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(filler.run())
            await asyncio.sleep(0)  # a task that never began cannot clean up
            yield filler, stream
            running.cancel()


async def until_read(stream: FanOut, count: int) -> None:
    await until(lambda: read_records(stream) == count)


async def until(condition: Callable[[], object]) -> None:
    """Wait for what another task or thread brings about."""
    while not condition():  # noqa: ASYNC110 - nothing signals what the filler has read
        await asyncio.sleep(0.001)


async def turns() -> None:
    """Give what might happen, and should not, the time to happen."""
    for _ in range(20):
        await asyncio.sleep(0.001)


def delivered(stream: FanOut) -> int:
    """Return the sequence number of the last record that was drained."""
    (position,) = stream.delivered.splits.values()
    return position.position.sequence if isinstance(position.position, Cursor) else 0


def read_records(stream: FanOut) -> int:
    return sum(split.records for split in stream.statistics().splits.values())


async def take(filler: SegmentFiller) -> list[int]:
    """Take a segment and return its sequence numbers."""
    return await sequences(await filler.next(LONG))


async def sequences(handover: FillResult) -> list[int]:
    assert isinstance(handover, Filled)
    sealed = await asyncio.to_thread(handover.segment.seal)
    result: list[int] = pq.read_table(sealed.path).column("sequence").to_pylist()
    return result


def is_finished(path: Path) -> bool:
    return path.read_bytes()[4:].endswith(b"PAR1")


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def numbered(count: int) -> list[bytes]:
    return [str(n).encode() for n in range(count)]


async def test_a_service_is_polled_seldom_until_records_are_wanted(
    source: ManualSource, tmp_path: Path
) -> None:
    async with pumping(source, tmp_path):
        assert source.poll_seconds == 0.1


@pytest.mark.parametrize(("eager", "max_wait"), [(True, LONG), (False, 0.0)])
async def test_what_a_poll_finds_is_handed_over_with_what_was_there(
    source: ManualSource,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    eager: bool,
    max_wait: float,
) -> None:
    monkeypatch.setattr(segment_filler, "_FIRST_ANSWER", 1.0)  # also where the machine is busy
    source.put(b"0")
    async with pumping(source, tmp_path, max_wait=max_wait, eager=eager) as (filler, stream):
        await until_read(stream, 1)
        source.on_poll = lambda: source.put(b"1", b"2")
        assert await take(filler) == [1, 2, 3]


async def test_a_segment_that_is_hurried_has_what_a_poll_finds(
    source: ManualSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_filler, "_FIRST_ANSWER", 1.0)  # also where the machine is busy
    source.put(b"0")
    async with pumping(source, tmp_path, max_wait=LONG, eager=False) as (filler, stream):
        await until_read(stream, 1)
        taking = asyncio.create_task(take(filler))
        await turns()
        source.on_poll = lambda: source.put(b"1", b"2")
        filler.hurry()
        assert await taking == [1, 2, 3]


async def test_a_hurry_is_over_with_the_segment_that_it_hurried(
    source: ManualSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_filler, "_QUIET", 0.0)
    source.put(b"0")
    async with pumping(source, tmp_path, max_wait=LONG, eager=False) as (filler, stream):
        await until_read(stream, 1)
        filler.hurry()
        assert await take(filler) == [1]
        taking = asyncio.create_task(take(filler))
        source.put(b"1")
        await until_read(stream, 2)
        await turns()
        source.put(b"2")
        await until_read(stream, 3)
        filler.hurry()
        assert await taking == [2, 3]


async def test_the_first_record_that_comes_has_the_service_polled_for_others(
    source: ManualSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_filler, "_QUIET", 0.5)  # also where the machine is busy
    monkeypatch.setattr(segment_filler, "_FIRST_ANSWER", 1.0)
    async with pumping(source, tmp_path, max_wait=LONG) as (filler, _):
        taking = asyncio.create_task(take(filler))
        await turns()
        source.on_poll = lambda: source.put(b"1")
        source.put(b"0")
        assert await taking == [1, 2]


async def test_a_poll_that_finds_nothing_does_not_hand_over_the_next_record_alone(
    source: ManualSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    async with pumping(source, tmp_path, max_wait=LONG) as (filler, _):
        source.on_poll = lambda: None
        taking = asyncio.create_task(take(filler))
        await asyncio.sleep(0.05)  # the poll is over
        monkeypatch.setattr(segment_filler, "_FIRST_ANSWER", 1.0)  # also where the machine is busy
        source.put(b"0")
        loop.call_later(0.001, source.put, b"1")
        assert await taking == [1, 2]


async def test_records_that_wait_are_handed_over_at_once(
    source: ManualSource, tmp_path: Path
) -> None:
    source.put(*numbered(5))
    async with pumping(source, tmp_path, max_wait=LONG) as (filler, stream):
        await until_read(stream, 5)
        assert await take(filler) == [1, 2, 3, 4, 5]


async def test_a_segment_ends_when_nothing_more_comes(source: ManualSource, tmp_path: Path) -> None:
    async with pumping(source, tmp_path, max_wait=LONG) as (filler, _):
        asking = asyncio.create_task(take(filler))
        await asyncio.sleep(0)
        source.put(*numbered(3))
        assert await asking == [1, 2, 3]


async def test_a_segment_ends_at_max_wait_while_records_keep_coming(
    source: ManualSource, tmp_path: Path
) -> None:
    async with pumping(source, tmp_path, max_records=10**9, max_wait=0.1) as (filler, _):
        asking = asyncio.create_task(filler.next(LONG))
        while not asking.done():
            source.put(b"more")
            await asyncio.sleep(0.001)
        assert await sequences(asking.result())


async def test_a_segment_waits_for_min_records(source: ManualSource, tmp_path: Path) -> None:
    async with pumping(source, tmp_path, max_wait=LONG, min_records=5) as (filler, stream):
        asking = asyncio.create_task(take(filler))
        source.put(*numbered(4))
        await until_read(stream, 4)
        await turns()  # much longer than the silence that ends a segment
        assert not asking.done()
        source.put(b"fifth")
        assert await asking == [1, 2, 3, 4, 5]


async def test_the_wait_for_min_records_counts_from_the_first_record(
    source: ManualSource, tmp_path: Path
) -> None:
    async with pumping(source, tmp_path, max_records=10**9, max_wait=0.1, min_records=10**6) as (
        filler,
        _,
    ):
        asking = asyncio.create_task(filler.next(LONG))
        for _ in range(2000):  # for 2 s at least, in which a wait from the last record is not over
            if asking.done():
                break
            source.put(b"more")
            await asyncio.sleep(0.001)
        assert asking.done()
        assert await sequences(asking.result())


async def test_the_wait_for_min_records_ends_without_another_record(
    source: ManualSource, tmp_path: Path
) -> None:
    source.put(*numbered(3))
    async with pumping(source, tmp_path, max_wait=0.1, min_records=5) as (filler, _):
        assert await take(filler) == [1, 2, 3]


async def test_a_full_segment_waits_for_no_min_records(
    source: ManualSource, tmp_path: Path
) -> None:
    source.put(*[b"x" * 1000] * 25)
    async with pumping(source, tmp_path, max_bytes=10_000, max_wait=LONG, min_records=25) as (
        filler,
        _,
    ):
        assert len(await take(filler)) == 9


async def test_without_records_min_records_delays_no_progress(
    source: ManualSource, tmp_path: Path
) -> None:
    source.idle()
    async with pumping(source, tmp_path, max_wait=LONG, min_records=5) as (filler, stream):
        await until(lambda: stream.delivered.splits["a"].position == Cursor(1))
        assert await filler.next(0.01) == NoRecords(stream.delivered)


async def test_stop_ends_the_wait_for_min_records(source: ManualSource, tmp_path: Path) -> None:
    source.put(*numbered(3))
    async with pumping(source, tmp_path, max_wait=LONG, min_records=5) as (filler, stream):
        asking = asyncio.create_task(filler.next(LONG))
        await until_read(stream, 3)
        filler.stop()
        assert await asking == Stopped()


async def test_a_failure_ends_the_wait_for_min_records(
    source: ManualSource, tmp_path: Path
) -> None:
    source.put(*numbered(3))
    async with pumping(source, tmp_path, max_wait=LONG, min_records=5) as (filler, stream):
        asking = asyncio.create_task(take(filler))
        await until_read(stream, 3)
        source.fail(ServiceError("gone"))
        assert await asking == [1, 2, 3]
        with pytest.raises(SplitFailedError, match="gone"):
            await filler.next(LONG)


@pytest.mark.parametrize("ends", [False, True])
async def test_a_bounded_run_hands_its_last_records_over_below_min_records(
    tmp_path: Path, *, ends: bool
) -> None:
    source = ManualSource("a", bounded=ends)
    source.put(*numbered(7))
    bounded = not ends
    async with pumping(
        source, tmp_path, max_wait=LONG, min_records=5, max_records=5, bounded=bounded
    ) as (filler, stream):
        taken = await take(filler)
        while isinstance(handover := await filler.next(LONG), Filled):
            taken += await sequences(handover)
        assert taken == [1, 2, 3, 4, 5, 6, 7]
        assert handover == NoRecords(stream.delivered, finished=True)


async def test_a_full_segment_is_finished_on_the_disk_before_spark_asks_for_it(
    source: ManualSource, tmp_path: Path
) -> None:
    source.put(*numbered(9))
    async with pumping(source, tmp_path, max_records=5) as (filler, _):
        await until(lambda: [path for path in tmp_path.iterdir() if is_finished(path)])
        (name,) = names(tmp_path)
        assert pq.read_metadata(tmp_path / name).num_rows == 5
        assert await take(filler) == [1, 2, 3, 4, 5]
        assert await take(filler) == [6, 7, 8, 9]


async def test_what_comes_while_nobody_asks_is_one_larger_segment(
    source: ManualSource, tmp_path: Path
) -> None:
    async with pumping(source, tmp_path) as (filler, stream):
        source.put(*numbered(2))
        first = await take(filler)
        for _ in range(5):
            before = read_records(stream)
            source.put(*numbered(3))
            await until_read(stream, before + 3)
        assert first == [1, 2]
        assert await take(filler) == list(range(3, 18))


async def test_max_records_is_kept_exactly(source: ManualSource, tmp_path: Path) -> None:
    source.put(*numbered(25))
    async with pumping(source, tmp_path, max_records=10) as (filler, _):
        taken = [await take(filler) for _ in range(3)]
    assert taken == [list(range(1, 11)), list(range(11, 21)), list(range(21, 26))]


async def test_max_bytes_is_never_exceeded(source: ManualSource, tmp_path: Path) -> None:
    source.put(*[b"x" * 1000] * 25)
    sizes: list[int] = []
    taken: list[int] = []
    sizes, taken = [], []
    async with pumping(source, tmp_path, max_bytes=10_000) as (filler, _):
        while len(taken) < 25:
            handover = await filler.next(LONG)
            assert isinstance(handover, Filled)
            sizes.append(handover.segment.nbytes)
            taken += await sequences(handover)
    assert taken == list(range(1, 26))
    assert max(sizes) <= 10_000
    assert sizes[0] > 9000


async def test_a_record_above_max_bytes_is_a_segment_of_its_own(
    source: ManualSource, tmp_path: Path
) -> None:
    source.put(b"small", b"x" * 1000, b"small")
    async with pumping(source, tmp_path, max_bytes=100) as (filler, _):
        assert [await take(filler) for _ in range(3)] == [[1], [2], [3]]


async def test_a_full_segment_stops_the_draining(source: ManualSource, tmp_path: Path) -> None:
    source.put(*numbered(10))
    async with pumping(source, tmp_path, max_records=10) as (filler, stream):
        await until_read(stream, 10)
        source.put(*numbered(10))
        await turns()
        assert read_records(stream) == 10
        assert await take(filler) == list(range(1, 11))
        assert await take(filler) == list(range(11, 21))


async def test_a_segment_is_written_while_it_fills(source: ManualSource, tmp_path: Path) -> None:
    async with pumping(source, tmp_path, max_records=100) as (filler, stream):
        for total in (30, 60, 90):
            source.put(*numbered(30))
            await until_read(stream, total)
        handover = await filler.next(LONG)
        assert isinstance(handover, Filled)
        sealed = await asyncio.to_thread(handover.segment.seal)
        written = pq.read_metadata(sealed.path)
    assert [written.row_group(n).num_rows for n in range(written.num_row_groups)] == [30, 30, 30]


async def test_positions_are_those_after_the_segments_last_record(
    source: ManualSource, tmp_path: Path
) -> None:
    source.put(*numbered(15))
    async with pumping(source, tmp_path, max_records=10) as (filler, _):
        handover = await filler.next(LONG)
        assert isinstance(handover, Filled)
        assert handover.positions.splits["a"].position == Cursor(10)


async def test_without_records_the_answer_is_the_idle_progress(
    source: ManualSource, tmp_path: Path
) -> None:
    source.idle()
    async with pumping(source, tmp_path) as (filler, stream):
        await until(lambda: stream.delivered.splits["a"].position == Cursor(1))
        handover = await filler.next(0.01)
        assert handover == NoRecords(stream.delivered)


async def test_a_call_that_comes_right_after_an_answer_is_served(
    source: ManualSource, tmp_path: Path
) -> None:
    async with pumping(source, tmp_path) as (filler, _):
        for _ in range(3):
            assert isinstance(await filler.next(0.001), NoRecords)
            await asyncio.sleep(0)  # a deadline that outlived its call would strike now


async def test_stop_is_heard_in_the_moment_in_which_a_wait_ends(
    source: ManualSource, tmp_path: Path
) -> None:
    async with pumping(source, tmp_path) as (filler, _):
        asking = asyncio.create_task(filler.next(0.01))
        await until(lambda: filler._request is not None and filler._interrupt is not None)
        # Looking in each turn of the loop finds the turn before the filler notices.
        while (waiting := filler._interrupt) is None or not waiting.expired():  # noqa: ASYNC110 - it is the loop's turn that matters
            await asyncio.sleep(0)
        filler.stop()
        await asking
        assert await filler.next(LONG) == Stopped()


async def test_stop_ends_a_wait_for_records(source: ManualSource, tmp_path: Path) -> None:
    async with pumping(source, tmp_path) as (filler, _):
        asking = asyncio.create_task(filler.next(LONG))
        await asyncio.sleep(0.01)
        filler.stop()
        assert await asking == Stopped()


async def test_after_stop_nothing_is_handed_over(source: ManualSource, tmp_path: Path) -> None:
    source.put(*numbered(5))
    async with pumping(source, tmp_path) as (filler, stream):
        await until_read(stream, 5)
        filler.stop()
        assert [await filler.next(LONG) for _ in range(2)] == [Stopped(), Stopped()]


async def test_a_failure_comes_after_the_records_before_it(
    source: ManualSource, tmp_path: Path
) -> None:
    async with pumping(source, tmp_path) as (filler, stream):
        source.put(*numbered(3))
        await until_read(stream, 3)
        source.fail(ServiceError("gone"))
        await until(lambda: stream.failure is not None)
        assert await take(filler) == [1, 2, 3]
        for _ in range(2):
            with pytest.raises(SplitFailedError, match="gone"):
                await filler.next(LONG)


async def test_a_failure_does_not_wait_for_a_file_to_be_filled(
    source: ManualSource, tmp_path: Path
) -> None:
    async with pumping(source, tmp_path, max_wait=LONG, eager=False) as (filler, stream):
        source.put(*numbered(3))
        asking = asyncio.create_task(take(filler))
        await until_read(stream, 3)
        source.fail(ServiceError("gone"))
        assert await asking == [1, 2, 3]
        with pytest.raises(SplitFailedError, match="gone"):
            await filler.next(LONG)


async def test_a_failure_ends_a_wait_for_records(source: ManualSource, tmp_path: Path) -> None:
    async with pumping(source, tmp_path) as (filler, _):
        asking = asyncio.create_task(filler.next(LONG))
        await asyncio.sleep(0.01)
        source.fail(ServiceError("gone"))
        with pytest.raises(SplitFailedError, match="gone"):
            await asking


@pytest.mark.fault("The caller of a read is gone when its batch is ready")
async def test_a_cancelled_call_takes_nothing(source: ManualSource, tmp_path: Path) -> None:
    async with pumping(source, tmp_path) as (filler, _):
        asking = asyncio.create_task(filler.next(LONG))
        await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.wait([asking])
        source.put(*numbered(2))
        assert await take(filler) == [1, 2]


async def test_a_segment_whose_caller_is_cancelled_with_the_filler_leaves_no_file(
    source: ManualSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pumping(source, tmp_path, max_records=8, max_wait=LONG) as (filler, stream):
        source.put(*numbered(3))
        await until_read(stream, 3)
        await until(lambda: any(tmp_path.iterdir()))  # a row group
        asking = asyncio.create_task(filler.next(LONG))
        hand_over = filler._hand_over

        def hand_over_too_late() -> Filled:
            asyncio.get_running_loop().call_soon(asking.cancel)
            return hand_over()

        monkeypatch.setattr(filler, "_hand_over", hand_over_too_late)
        source.put(*numbered(5))
        await asyncio.wait([asking])
        assert isinstance(filler._untaken, Filled)
    assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []


async def test_a_bounded_run_finishes_after_every_record_of_every_split(
    tmp_path: Path,
) -> None:
    source = ManualSource("a", "b")
    source.put(*numbered(30), split="a")
    source.put(*numbered(5), split="b")
    source.end("a", "c")
    source.put(*numbered(7), split="c")
    counts: list[int] = []
    async with pumping(source, tmp_path, max_records=10, bounded=True) as (filler, _):
        while isinstance(handover := await filler.next(LONG), Filled):
            counts.append(len(await sequences(handover)))
    assert sum(counts) == 42


async def test_a_bounded_run_with_nothing_to_read_finishes(
    source: ManualSource, tmp_path: Path
) -> None:
    async with pumping(source, tmp_path, bounded=True) as (filler, stream):
        assert await filler.next(LONG) == NoRecords(stream.delivered, finished=True)


async def test_a_bounded_run_whose_splits_have_all_ended_finishes(
    source: ManualSource, tmp_path: Path
) -> None:
    source.put(*numbered(3))
    source.end("a")
    async with pumping(source, tmp_path, bounded=True) as (filler, stream):
        assert await take(filler) == [1, 2, 3]
        assert await filler.next(LONG) == NoRecords(stream.delivered, finished=True)


async def test_a_bounded_run_ends_with_the_children_of_what_has_ended(
    source: ManualSource, tmp_path: Path
) -> None:
    source.end("a", "b", "c")
    async with pumping(source, tmp_path, bounded=True) as (filler, _):
        last = await filler.next(LONG)
    assert isinstance(last, NoRecords)
    assert {id_: state.ended for id_, state in last.positions.splits.items()} == {
        "a": True,
        "b": False,
        "c": False,
    }


async def test_a_bounded_run_finishes_while_records_keep_coming(
    source: ManualSource, tmp_path: Path
) -> None:
    source.put(*numbered(25))
    taken: list[int] = []
    async with pumping(source, tmp_path, max_records=10, bounded=True) as (filler, _):
        for _ in range(10):
            source.put(b"more")
            await turns()
            handover = await filler.next(LONG)
            if isinstance(handover, NoRecords):
                break
            taken += await sequences(handover)
    assert isinstance(handover, NoRecords)
    assert taken == list(range(1, len(taken) + 1))
    assert len(taken) >= 25


async def test_a_bounded_run_that_has_caught_up_drains_no_more(
    source: ManualSource, tmp_path: Path
) -> None:
    source.put(*numbered(5))
    async with pumping(source, tmp_path, bounded=True) as (filler, stream):
        await until(lambda: stream.caught_up)
        source.put(*numbered(5))
        await turns()
        assert await take(filler) == [1, 2, 3, 4, 5]
        source.put(*numbered(5))
        await turns()
        assert await filler.next(LONG) == NoRecords(stream.delivered, finished=True)


async def test_the_end_of_the_stream_discards_the_open_segment(
    source: ManualSource, tmp_path: Path
) -> None:
    async with pumping(source, tmp_path, max_records=8) as (_, stream):
        source.put(*numbered(5))
        await until(lambda: names(tmp_path))
        assert read_records(stream) == 5
    assert names(tmp_path) == []


async def test_a_full_segment_is_not_sealed_while_its_caller_waits(
    source: ManualSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pumping(source, tmp_path, max_records=4) as (filler, stream):
        sealing: list[OpenSegment] = []

        def note(segment: OpenSegment) -> None:
            sealing.append(segment)

        monkeypatch.setattr(OpenSegment, "seal", note)
        asking = asyncio.create_task(filler.next(LONG))
        await asyncio.sleep(0)
        source.put(*numbered(4))
        assert isinstance(await asking, Filled)
        assert sealing == []
        source.put(*numbered(4))
        await until_read(stream, 8)
        await until(lambda: sealing)


async def test_draining_goes_on_while_a_row_group_is_written(
    source: ManualSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()
    write = pq.ParquetWriter.write_table

    def write_later(writer: pq.ParquetWriter, table: pa.Table, **options: Any) -> None:
        assert free.wait(20)
        write(writer, table, **options)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", write_later)
    async with pumping(source, tmp_path, max_records=20) as (filler, stream):
        source.put(*numbered(5))
        await until(lambda: delivered(stream) == 5)
        source.put(*numbered(4))
        await until(lambda: delivered(stream) == 9)
        free.set()
        assert await take(filler) == list(range(1, 10))


async def test_after_the_end_a_call_is_refused(source: ManualSource, tmp_path: Path) -> None:
    async with pumping(source, tmp_path) as (filler, _):
        pass
    with pytest.raises(StreamStateError, match="has stopped"):
        await filler.next(LONG)


async def test_a_full_disk_is_a_clear_error_for_the_caller(
    source: ManualSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: OpenSegment) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(OpenSegment, "write_row_group", refuse)
    async with pumping(source, tmp_path, max_records=4) as (filler, _):
        asking = asyncio.create_task(filler.next(LONG))
        await asyncio.sleep(0.01)
        source.put(*numbered(2))
        with pytest.raises(CheckpointError) as caught:
            await asking
        assert str(caught.value) == (
            f"a segment cannot be written to {tmp_path}: No space left on device; free some and "
            "start again: what is stored is whole, and goes on"
        )
        assert isinstance(caught.value.__cause__, OSError)
        with pytest.raises(CheckpointError, match="No space left on device"):
            await filler.next(LONG)


async def test_a_stream_that_ends_by_itself_finishes_the_pump(tmp_path: Path) -> None:
    source = ManualSource("a", "b", bounded=True)
    source.put(*numbered(3))
    async with pumping(source, tmp_path, max_wait=LONG) as (filler, stream):
        await until_read(stream, 3)
        assert await take(filler) == [1, 2, 3]
        assert await filler.next(LONG) == NoRecords(stream.delivered, finished=True)
        assert await filler.next(LONG) == NoRecords(stream.delivered, finished=True)


async def test_a_stream_that_ends_by_itself_ends_the_wait_for_records(tmp_path: Path) -> None:
    source = ManualSource("a", bounded=True)
    async with pumping(source, tmp_path, max_wait=LONG) as (filler, stream):
        assert await filler.next(LONG) == NoRecords(stream.delivered, finished=True)


async def test_a_stream_that_ends_by_itself_is_handed_over_in_full_segments(tmp_path: Path) -> None:
    source = ManualSource("a", bounded=True)
    source.put(*numbered(5))
    async with pumping(source, tmp_path, max_records=2) as (filler, _):
        assert [await take(filler) for _ in range(3)] == [[1, 2], [3, 4], [5]]
        handover = await filler.next(LONG)
        assert isinstance(handover, NoRecords)
        assert handover.finished


async def test_records_that_wait_for_a_batch_make_the_stream_late(
    source: ManualSource, tmp_path: Path
) -> None:
    source.put(b"1", b"2")
    loop = asyncio.get_running_loop()
    async with pumping(source, tmp_path) as (filler, stream):
        begun = loop.time()
        assert filler.statistics().held is None
        await until_read(stream, 2)
        read = loop.time()
        await asyncio.sleep(0.2)
        least = loop.time() - read
        statistics = filler.statistics()
        assert statistics.held is not None
        assert least - 0.1 <= statistics.held <= loop.time() - begun
        assert statistics.lag == statistics.held
        await take(filler)
        assert filler.statistics().held is None
