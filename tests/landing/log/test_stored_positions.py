from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.events import Split
from fanout.core.positions import Cursor
from fanout.errors import CheckpointError, OptionError
from fanout.landing.log.checkpoint_status import read_positions
from fanout.landing.log.entries import BatchEntry, encode_entry, encode_origin, entry_name


def at(number: int) -> Checkpoint:
    return Checkpoint("kinesis:orders", {"a": SplitPosition(Split("a"), Cursor(number))})


def write(root: Path, name: str, data: bytes) -> None:
    path = root / "fanout" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_batch(root: Path, batch_id: int) -> None:
    entry = BatchEntry(batch_id, "query", (), at(batch_id))
    write(root, entry_name(batch_id), encode_entry(entry, run=1))


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """The checkpoint location of a query that has written three batches."""
    write(tmp_path, "origin.json", encode_origin(at(0).to_json()))
    write(tmp_path, "batches/_tmp-123", b"half")
    for batch_id in (9, 10, 8):
        write_batch(tmp_path, batch_id)
    return tmp_path


def test_the_newest_entry_of_a_query_is_read(location: Path) -> None:
    assert read_positions(str(location)) == at(10)


def test_before_the_first_batch_it_is_where_everything_began(location: Path) -> None:
    shutil.rmtree(location / "fanout" / "batches")
    assert read_positions(str(location)) == at(0)


def test_a_file_holds_what_a_stream_said(tmp_path: Path) -> None:
    path = tmp_path / "saved positions.json"
    path.write_text(at(7).to_json())
    assert read_positions(str(path)) == at(7)
    assert read_positions(path.as_uri()) == at(7)


def test_an_entry_that_has_just_gone_is_looked_for_again(
    location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.open

    def replaced(path: Path, mode: str) -> object:
        if path.name == "000000000010.json":
            path.unlink()
            write_batch(location, 11)
        return read(path, mode)

    monkeypatch.setattr(Path, "open", replaced)
    assert read_positions(str(location)) == at(11)


@pytest.mark.parametrize("uri", ["s3a://lake/checkpoint", "hdfs:///c", "file://other/c"])
def test_what_is_not_on_the_local_disk_is_refused(uri: str) -> None:
    with pytest.raises(OptionError, match="from the local disk alone, not from"):
        read_positions(uri)


@pytest.mark.parametrize("location", ["a" * 300, "/dev/null", "a\0b", "http://["], ids=ascii)
def test_a_location_that_cannot_be_read_is_refused(location: str) -> None:
    with pytest.raises(OptionError, match="cannot read stored positions at"):
        read_positions(location)


def test_a_location_without_positions_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(OptionError, match="there are no stored positions at"):
            read_positions(str(path))


@pytest.mark.parametrize("data", [b"{}", b'{"version":2}', b"not json"])
def test_damaged_positions_are_refused(location: Path, tmp_path: Path, data: bytes) -> None:
    write(location, entry_name(11), data)
    with pytest.raises(CheckpointError, match=r"000000000011\.json"):
        read_positions(str(location))
    path = tmp_path / "saved.json"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"saved\.json"):
        read_positions(str(path))


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.landing.log.checkpoint_status.MAX_ENTRY_BYTES", 10)
    path = tmp_path / "saved.json"
    path.write_bytes(b"12345678901")
    with pytest.raises(CheckpointError, match="more than 10 bytes"):
        read_positions(str(path))
