from __future__ import annotations

import errno
import pathlib
import resource
from concurrent.futures import ThreadPoolExecutor, wait
from random import Random
from threading import Event, Timer
from threading import enumerate as enumerate_threads
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.drain import Drained
from fanout.core.events import Batch, Split
from fanout.core.positions import Cursor, Horizon, Range
from fanout.landing.segments.segments import OpenSegment, SegmentLog, run_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA = pa.schema([("sequence", pa.int64()), ("data", pa.binary())])
SPLIT = Split("a")


def records(first: int, count: int, size: int = 10) -> Drained:
    """Drain `count` records of `size` bytes of data."""
    numbers = list(range(first, first + count))
    return drained(pa.record_batch([numbers, [b"x" * size] * count], schema=SCHEMA))


def drained(batch: pa.RecordBatch) -> Drained:
    until = Cursor(batch["sequence"][-1].as_py())
    return Drained(
        (Batch(SPLIT, batch, Range(Horizon(), until)),),
        Checkpoint("test", {SPLIT.id: SplitPosition(SPLIT, until, ended=False)}),
    )


def open_log(tmp_path: Path, **limits: int) -> SegmentLog:
    defaults: dict[str, Any] = {"max_records": 100, "max_bytes": 1 << 20}
    return SegmentLog(tmp_path, 7, SCHEMA, **(defaults | limits))


@pytest.fixture
def segment(tmp_path: Path) -> OpenSegment:
    return open_log(tmp_path).open()


def read(path: Path) -> pa.Table:
    return pq.read_table(path)


def metadata(path: Path) -> Any:
    return pq.read_metadata(path)


def test_a_sealed_segment_holds_its_records_in_order(segment: OpenSegment) -> None:
    segment.add(records(1, 3))
    segment.write_row_group()
    segment.add(records(4, 2))
    sealed = segment.seal()
    assert read(sealed.path).column("sequence").to_pylist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("compression", [None, "none", "zstd"])
def test_files_that_are_kept_have_an_index_of_their_pages(
    tmp_path: Path, compression: str | None
) -> None:
    """By its limits a reader leaves pages out; payloads have none."""
    segment = OpenSegment(
        tmp_path / "a.parquet",
        SCHEMA,
        max_records=10**6,
        max_bytes=1 << 30,
        compression=compression,
    )
    segment.add(records(0, 60_000))
    segment.write_row_group()
    path = segment.seal().path
    group = metadata(path).row_group(0)
    found = [(group.column(each).has_offset_index, group.column(each).has_column_index)
             for each in range(2)]  # fmt: skip
    kept = compression is not None
    assert found == [(kept, kept), (kept, False)]
    rows = duckdb.read_parquet(str(path)).filter("sequence BETWEEN 30000 AND 30009")
    assert len(rows.fetchall()) == 10
    filtered = pq.read_table(path, filters=pc.field("sequence") == 59_999)
    assert filtered.column("sequence").to_pylist() == [59_999]


def test_sealing_again_returns_the_same_segment(segment: OpenSegment) -> None:
    segment.add(records(1, 3))
    sealed = segment.seal()
    changed_at = sealed.path.stat().st_mtime_ns
    assert segment.seal() is sealed
    assert sealed.path.stat().st_mtime_ns == changed_at


def test_a_sealed_segment_says_what_it_is(segment: OpenSegment) -> None:
    first, second = records(1, 3), records(4, 2)
    segment.add(first)
    segment.add(second)
    sealed = segment.seal()
    assert sealed.rows == 5
    assert sealed.size == sealed.path.stat().st_size


def test_an_open_segment_says_what_it_holds(segment: OpenSegment) -> None:
    first, second = records(1, 3), records(4, 2)
    segment.add(first)
    segment.add(second)
    assert segment.rows == 5
    assert segment.nbytes == first.nbytes + second.nbytes
    assert segment.positions == second.positions


def test_a_segment_sealed_at_once_has_row_groups_to_share(segment: OpenSegment) -> None:
    segment.add(records(1, 10))
    assert metadata(segment.seal().path).num_row_groups == 4


def test_a_segment_written_while_it_filled_keeps_its_row_groups(segment: OpenSegment) -> None:
    for first in (1, 26, 51):
        segment.add(records(first, 25))
        segment.write_row_group()
    segment.add(records(76, 5))
    written = metadata(segment.seal().path)
    assert [written.row_group(n).num_rows for n in range(written.num_row_groups)] == [25, 25, 25, 5]


def test_a_row_group_is_ready_at_a_quarter_of_the_records(segment: OpenSegment) -> None:
    segment.add(records(1, 24))
    assert not segment.row_group_ready
    segment.add(records(25, 1))
    assert segment.row_group_ready
    segment.write_row_group()
    assert not segment.row_group_ready


def test_a_row_group_is_ready_at_a_quarter_of_the_bytes(tmp_path: Path) -> None:
    segment = open_log(tmp_path, max_bytes=4000).open()
    segment.add(records(1, 1, size=900))
    assert not segment.row_group_ready
    segment.add(records(2, 1, size=100))
    assert segment.row_group_ready


def test_a_segment_knows_what_still_fits(segment: OpenSegment) -> None:
    drained = records(1, 60)
    segment.add(drained)
    assert segment.room_records == 40
    assert segment.room_bytes == (1 << 20) - drained.nbytes
    assert not segment.full


def test_a_segment_is_full_at_the_limit_of_records(segment: OpenSegment) -> None:
    segment.add(records(1, 100))
    assert segment.full


def test_a_segment_is_full_at_the_limit_of_bytes(tmp_path: Path) -> None:
    segment = open_log(tmp_path, max_bytes=100).open()
    segment.add(records(1, 1, size=200))
    assert segment.full


def test_nothing_is_compressed_or_measured(segment: OpenSegment) -> None:
    segment.add(records(1, 10))
    column = metadata(segment.seal().path).row_group(0).column(1)
    assert column.compression == "UNCOMPRESSED"
    assert not column.has_dictionary_page
    assert not column.is_stats_set


@pytest.mark.parametrize("compression", ["zstd", "snappy", "lz4", "gzip", "none"])
@pytest.mark.parametrize("shrinks", [True, False])
def test_a_payload_that_does_not_shrink_is_not_compressed(
    tmp_path: Path, compression: str, *, shrinks: bool
) -> None:
    nested = pa.list_(pa.struct([("name", pa.string())]))
    schema = pa.schema([("data", pa.binary()), ("sequence", pa.int64()), ("headers", nested)])
    segment = OpenSegment(
        tmp_path / "a.parquet",
        schema,
        max_records=1000,
        max_bytes=1 << 30,
        compression=compression,
    )
    random = Random(7)
    payloads = [b"text " * 20 if shrinks else random.randbytes(100) for _ in range(998)]
    columns = [[None, b"", *payloads], [*range(1000)], [[{"name": "a"}]] * 1000]
    batch = pa.record_batch(columns, schema=schema)
    segment.add(drained(batch))
    path = segment.seal().path
    group = metadata(path).row_group(0)
    found = [group.column(each).compression != "UNCOMPRESSED" for each in range(3)]
    assert found == ([False] * 3 if compression == "none" else [shrinks, True, True])
    assert read(path).equals(pa.Table.from_batches([batch]))


def test_a_payload_is_compressed_if_a_part_of_it_shrinks(tmp_path: Path) -> None:
    segment = OpenSegment(
        tmp_path / "a.parquet", SCHEMA, max_records=100, max_bytes=1 << 30, compression="lz4"
    )
    random = Random(7)
    payloads = [random.randbytes(100_000) if each < 50 else bytes(100_000) for each in range(100)]
    segment.add(drained(pa.record_batch([[*range(100)], payloads], schema=SCHEMA)))
    assert metadata(segment.seal().path).row_group(0).column(1).compression == "LZ4"


def test_little_of_a_giant_payload_is_compressed_to_see_whether_it_shrinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    compress = pa.compress

    def noted(sample: pa.Buffer, *, codec: str) -> Any:
        sizes.append(sample.size)
        return compress(sample, codec=codec)

    monkeypatch.setattr(pa, "compress", noted)
    segment = OpenSegment(
        tmp_path / "a.parquet", SCHEMA, max_records=10_000, max_bytes=1 << 30, compression="lz4"
    )
    payloads = [bytes(20_000_000), *[b"x"] * 2000]
    segment.add(drained(pa.record_batch([[*range(2001)], payloads], schema=SCHEMA)))
    assert metadata(segment.seal().path).row_group(0).column(1).compression == "LZ4"
    assert 0 < sum(sizes) < 2_000_000


def test_every_page_has_a_checksum(segment: OpenSegment) -> None:
    segment.add(records(1, 10))
    path = segment.seal().path
    whole = path.read_bytes()
    place = whole.index(b"x" * 10)
    path.write_bytes(whole[:place] + b"y" + whole[place + 1 :])
    with pytest.raises(OSError, match="CRC checksum"):
        pq.read_table(path, page_checksum_verification=True)


def test_the_disk_is_touched_only_when_there_are_records(tmp_path: Path) -> None:
    segment = open_log(tmp_path).open()
    segment.write_row_group()
    segment.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Let no row group be written before the event is set."""
    free = Event()
    write = pq.ParquetWriter.write_table

    def write_later(writer: pq.ParquetWriter, table: pa.Table, **options: Any) -> None:
        assert free.wait(20)
        write(writer, table, **options)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", write_later)
    return free


def test_records_are_collected_while_a_row_group_is_written(
    segment: OpenSegment, slow_disk: Event
) -> None:
    segment.add(records(1, 3))
    segment.write_row_group()
    segment.add(records(4, 2))
    assert segment.rows == 5
    Timer(0.05, slow_disk.set).start()
    sealed = segment.seal()
    assert read(sealed.path).column("sequence").to_pylist() == [1, 2, 3, 4, 5]


def test_two_row_groups_are_in_memory_at_most(segment: OpenSegment, slow_disk: Event) -> None:
    segment.add(records(1, 3))
    segment.write_row_group()
    segment.add(records(4, 2))
    with ThreadPoolExecutor(1) as others:
        second = others.submit(segment.write_row_group)
        assert not wait([second], timeout=0.05).done
        slow_disk.set()
        second.result(20)
    assert segment.seal().rows == 5


def test_a_discarded_segment_leaves_no_file(segment: OpenSegment, tmp_path: Path) -> None:
    segment.add(records(1, 10))
    segment.write_row_group()
    segment.write_row_group()  # the first one is written then
    assert list(tmp_path.iterdir()) != []
    segment.discard()
    assert list(tmp_path.iterdir()) == []


def test_discarding_waits_for_the_row_group_that_is_being_written(
    segment: OpenSegment, slow_disk: Event, tmp_path: Path
) -> None:
    before = set(enumerate_threads())
    segment.add(records(1, 10))
    segment.write_row_group()
    Timer(0.05, slow_disk.set).start()
    segment.discard()
    assert list(tmp_path.iterdir()) == []
    left = set(enumerate_threads()) - before
    assert not [thread for thread in left if "fanout-segment" in thread.name]


def test_a_disk_that_keeps_a_discarded_file_is_not_a_second_error(
    segment: OpenSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *, missing_ok: bool) -> None:
        raise OSError(errno.EIO, "Input/output error", f"{path} {missing_ok}")

    segment.add(records(1, 10))
    segment.write_row_group()
    monkeypatch.setattr(pathlib.Path, "unlink", refuse)
    segment.discard()


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Let no file grow beyond 16 KiB; the test runner's own writes are smaller."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_is_an_error_and_leaves_no_file(segment: OpenSegment, tmp_path: Path) -> None:
    segment.add(records(1, 50, size=1000))
    segment.write_row_group()
    segment.add(records(51, 1))
    for _ in range(2):  # a file without its first row group is never sealed
        with pytest.raises(OSError, match="File too large"):
            segment.write_row_group()
        with pytest.raises(OSError, match="File too large"):
            segment.seal()
    segment.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_is_an_error_while_sealing(segment: OpenSegment, tmp_path: Path) -> None:
    segment.add(records(1, 50, size=1000))
    with pytest.raises(OSError, match="File too large"):
        segment.seal()
    segment.discard()
    assert list(tmp_path.iterdir()) == []


def test_names_say_the_run_and_never_come_twice(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    names = []
    for first in (1, 2):
        segment = log.open()
        segment.add(records(first, 1))
        names.append(segment.seal().path.name)
    assert names == ["run-000007-00000001.parquet", "run-000007-00000002.parquet"]


def test_a_name_says_its_run() -> None:
    assert run_of("run-000007-00000001.parquet") == 7
    assert run_of("run-1000000-00000001.parquet") == 1_000_000


@pytest.mark.parametrize("name", ["notes.parquet", "run-7-1.parquet", "run-000007-00000001.crc"])
def test_a_foreign_name_is_of_no_run(name: str) -> None:
    assert run_of(name) is None
