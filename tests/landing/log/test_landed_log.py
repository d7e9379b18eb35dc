from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from fanout.core.checkpoint import Checkpoint
from fanout.errors import CheckpointError, OptionError
from fanout.landing.log import landed_log
from fanout.landing.log.columns import IDENTITY, give_identity, read_identity
from fanout.landing.log.entries import BatchEntry, encode_entry, entry_name
from fanout.landing.log.landed_log import LandedLog, Limits, Place
from fanout.landing.segments.segments import SegmentFile
from fanout.landing.storage.local_storage import LocalFiles, LocalStorage

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("shard", pa.string()), ("data", pa.list_(pa.int32()))])


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


def write(storage: LocalStorage, number: int, *files: tuple[int, int]) -> None:
    """Write an entry with files of so many rows and bytes."""
    segments = tuple(
        SegmentFile(f"segments/run-{number:06}-{n:08}.parquet", rows, size)
        for n, (rows, size) in enumerate(files)
    )
    entry = BatchEntry(number, "", segments, Checkpoint("manual:one"), 1_000 * number)
    storage.create(entry_name(number), encode_entry(entry, run=1))


def opened(storage: LocalStorage, *, skip_lost: bool = False) -> tuple[LandedLog, list[object]]:
    skipped: list[object] = []
    log = LandedLog(storage, skip_lost=skip_lost, on_skipped=lambda *lost: skipped.append(lost))
    return log, skipped


@pytest.fixture
def log(storage: LocalStorage) -> LandedLog:
    """A landing of four entries, of which the first is empty and the second has two files."""
    give_identity(storage, SCHEMA)
    write(storage, 0)
    write(storage, 1, (6, 600), (4, 800))
    write(storage, 2, (5, 500))
    write(storage, 3)
    return opened(storage)[0]


def test_new_entries_are_seen(log: LandedLog, storage: LocalStorage) -> None:
    assert (log.oldest(), log.end()) == (0, 4)
    assert log.end() == 4
    write(storage, 4, (1, 1))
    write(storage, 5)
    assert log.end() == 6
    assert log.watermark(5) == 5_000
    assert log.watermark(-1) is None


class Bucket:
    """The same files, as if each look cost money."""

    def __init__(self, files: LocalStorage) -> None:
        self.location = files.location
        self.read, self.list = files.read, files.list


def test_a_bucket_is_looked_at_once_a_second(
    log: LandedLog, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    remote = LandedLog(Bucket(storage), skip_lost=False, on_skipped=lambda *_: None)
    assert (log.end(), remote.end()) == (4, 4)
    write(storage, 4, (1, 1))
    now[0] += 0.9
    assert (log.end(), remote.end()) == (5, 4)
    now[0] += 0.2
    assert remote.end() == 5


def test_rows_between_two_places(log: LandedLog) -> None:
    def between(start: Place, end: Place) -> list[tuple[int, int, int]]:
        return [(rows.entry, rows.first, rows.end) for rows in log.rows(start, end)]

    assert between(Place(0), Place(4)) == [(1, 0, 6), (1, 0, 4), (2, 0, 5)]
    assert between(Place(1, 2), Place(1, 8)) == [(1, 2, 6), (1, 0, 2)]
    assert between(Place(1, 6), Place(2, 1)) == [(1, 0, 4), (2, 0, 1)]
    assert between(Place(2), Place(2)) == []
    assert between(Place(2, 3), Place(2, 3)) == []


@pytest.mark.parametrize(
    ("limits", "places"),
    [
        (Limits(), [(4, 0)]),
        (Limits(records=100), [(4, 0)]),
        (Limits(records=7), [(1, 7), (2, 4), (4, 0)]),
        (Limits(records=10), [(2, 0), (4, 0)]),
        (Limits(records=6), [(1, 6), (2, 2), (4, 0)]),
        (Limits(bytes=600), [(1, 6), (1, 9), (2, 4), (4, 0)]),
        (Limits(bytes=1), [(1, n) for n in range(1, 10)] + [(2, n) for n in range(5)] + [(4, 0)]),
        (Limits(records=8, bytes=600), [(1, 6), (1, 9), (2, 4), (4, 0)]),
    ],
)
def test_a_batch_takes_no_more_than_it_may(
    log: LandedLog, limits: Limits, places: list[tuple[int, int]]
) -> None:
    place, found = Place(0), list[Place]()
    while (place := log.limited(place, log.end(), limits)) != (found[-1] if found else Place(0)):
        found.append(place)
    assert found == [Place(*one) for one in places]


def test_a_limit_does_not_go_back(log: LandedLog) -> None:
    assert log.limited(Place(9, 1), 4, Limits(records=1)) == Place(9, 1)


def test_entries_that_were_deleted_are_an_error(log: LandedLog, storage: LocalStorage) -> None:
    storage.delete(entry_name(0))
    storage.delete(entry_name(1))
    with pytest.raises(CheckpointError, match=r"the entries 0 to 1 of .* were deleted before"):
        list(log.rows(Place(0), Place(4)))
    assert log.oldest() == 2


def test_entries_that_were_deleted_can_be_skipped(log: LandedLog, storage: LocalStorage) -> None:
    del log
    storage.delete(entry_name(0))
    storage.delete(entry_name(1))
    lax, skipped = opened(storage, skip_lost=True)
    assert [rows.entry for rows in lax.rows(Place(0), Place(4))] == [2]
    assert skipped == [(0, 1)]
    assert lax.limited(Place(0), 4, Limits(records=2)) == Place(2, 2)


def test_forgotten_entries_are_read_again(log: LandedLog) -> None:
    assert len(list(log.rows(Place(0), Place(4)))) == 3
    log.forget(4)
    assert [*log._entries] == [3]
    assert len(list(log.rows(Place(0), Place(4)))) == 3


def test_a_landing_that_is_replaced_is_noticed(
    log: LandedLog, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert log.end() == 4
    storage.delete(IDENTITY)
    give_identity(storage, SCHEMA)
    monkeypatch.setattr(landed_log, "_CHECK_SECONDS", 0.0)
    with pytest.raises(CheckpointError, match="was replaced by another one while this query"):
        log.end()


def test_a_reader_that_slept_while_entries_were_deleted_sees_the_newer_ones(
    log: LandedLog, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert log.end() == 4
    write(storage, 6)
    for number in range(4):
        storage.delete(entry_name(number))
    assert log.end() == 4
    monkeypatch.setattr(landed_log, "_CHECK_SECONDS", 0.0)
    assert log.end() == 7


def test_a_reader_that_waits_lists_no_entries(
    log: LandedLog, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be millions."""
    assert log.end() == 4
    monkeypatch.setattr(landed_log, "_CHECK_SECONDS", 0.0)
    monkeypatch.delattr(LocalFiles, "list")
    assert log.end() == 4
    write(storage, 4)
    assert log.end() == 5


def test_an_identity_is_given_once_and_read_back(storage: LocalStorage) -> None:
    give_identity(storage, SCHEMA)
    first = read_identity(storage)
    give_identity(storage, pa.schema([]))
    assert read_identity(storage) == first
    assert first.schema == SCHEMA


def test_a_place_without_a_landing_is_refused(storage: LocalStorage) -> None:
    with pytest.raises(OptionError, match=r"there is no landing at .*: start one with fanout\.la"):
        opened(storage)


def test_a_landing_of_an_older_version_is_refused(storage: LocalStorage) -> None:
    storage.create("origin.json", b"{}")
    with pytest.raises(CheckpointError, match=r"has no landing\.json: it was landed by an older"):
        opened(storage)


def test_a_damaged_identity_is_an_error(storage: LocalStorage) -> None:
    storage.create(IDENTITY, b'{"version":1,"id":"%s","schema":"AAAA"}' % (b"0" * 32))
    with pytest.raises(CheckpointError, match=r"landing\.json in .* is damaged \(its columns can"):
        opened(storage)
