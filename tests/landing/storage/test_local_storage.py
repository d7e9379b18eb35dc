from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fanout.errors import CheckpointError
from fanout.landing.storage.local_storage import LocalStorage

ROUNDS = 500


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "checkpoint" / "fanout")


def test_of_two_racing_writers_exactly_one_creates_the_file(storage: LocalStorage) -> None:
    barrier = threading.Barrier(2)
    wins: dict[bytes, set[int]] = {b"first": set(), b"second": set()}

    def write(content: bytes) -> None:
        for number in range(ROUNDS):
            barrier.wait()
            try:
                storage.create(f"ledger/{number}", content)
            except FileExistsError:
                continue
            wins[content].add(number)

    threads = [threading.Thread(target=write, args=(content,)) for content in wins]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    stored = {
        content: {n for n in range(ROUNDS) if storage.read(f"ledger/{n}", limit=100) == content}
        for content in wins
    }
    assert wins == stored
    assert len(wins[b"first"]) + len(wins[b"second"]) == ROUNDS


def test_a_crash_before_the_file_has_its_name_leaves_nothing_to_see(storage: LocalStorage) -> None:
    crash = (
        "import os, pathlib, sys\n"
        "from fanout.landing.storage.local_storage import LocalStorage\n"
        "os.link = lambda *_: os._exit(9)\n"
        "LocalStorage(pathlib.Path(sys.argv[1])).create('ledger/1', b'content')\n"
    )
    done = subprocess.run([sys.executable, "-c", crash, storage.root], check=False)  # noqa: S603 - our own code

    assert done.returncode == 9
    assert [file.name[:5] for file in (storage.root / "ledger").iterdir()] == ["_tmp-"]
    assert storage.list("ledger") == ()
    assert storage.read("ledger/1", limit=100) is None


@pytest.mark.parametrize("failing", ["file", "directory"])
def test_an_fsync_that_fails_surfaces(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    storage.create("ledger/1", b"makes the directory")
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if os.path.isdir(f"/dev/fd/{descriptor}") == (failing == "directory"):  # noqa: PTH112 - a descriptor
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(CheckpointError, match=r"cannot write .*ledger/2: Input/output error"):
        storage.create("ledger/2", b"content")


def test_a_file_is_not_named_before_its_content_is_on_disk(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    storage.create("ledger/1", b"makes the directory")
    file = storage.scratch() / "part"
    file.write_bytes(b"rows")
    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(CheckpointError):
        storage.create("ledger/2", b"content")
    with pytest.raises(CheckpointError):
        storage.publish(file, "ledger/3")
    assert [info.name for info in storage.list("ledger")] == ["1"]


def test_a_failed_create_leaves_no_temporary(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", refuse)

    with pytest.raises(CheckpointError, match="No space left on device"):
        storage.create("ledger/1", b"content")
    assert list((storage.root / "ledger").iterdir()) == []


def test_a_file_system_without_hard_links_is_named_as_the_reason(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, final: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", str(source), None, str(final))

    monkeypatch.setattr(os, "link", refuse)

    with pytest.raises(CheckpointError, match="hard links"):
        storage.create("ledger/1", b"content")


def test_publishing_copies_nothing(storage: LocalStorage) -> None:
    file = storage.scratch() / "part"
    file.write_bytes(b"rows")
    inode = file.stat().st_ino

    storage.publish(file, "segments/1.parquet")

    assert (storage.root / "segments" / "1.parquet").stat().st_ino == inode


def test_a_sweep_removes_what_was_left_in_scratch(storage: LocalStorage) -> None:
    (storage.scratch() / "part").write_bytes(b"rows")

    storage.sweep()

    assert list(storage.scratch().iterdir()) == []


def test_a_sweep_makes_every_name_durable_that_an_earlier_run_has_given(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A run that dies between link, or mkdir, and fsync leaves a name that is not durable.
    storage.create("ledger/1", b"content")
    flushed: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.add(os.fstat(descriptor).st_ino))

    LocalStorage(storage.root).sweep()

    named = (storage.root / "ledger", storage.root, storage.root.parent, tmp_path)
    assert {path.stat().st_ino for path in named} <= flushed


def test_a_sweep_touches_nothing_above_the_file_system_of_the_checkpoint(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Above it may be what cannot be flushed at all, such as the directory of an automounter.
    open_ = os.open

    def refuse(path: Path, flags: int) -> int:
        if path in tmp_path.parents:
            raise OSError(errno.EINVAL, "Invalid argument", str(path))
        return open_(path, flags)

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path)
    storage.sweep()


def test_a_sweep_needs_no_permission_to_read_the_directories_above(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    open_ = os.open

    def refuse(path: Path, flags: int) -> int:
        if path == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_(path, flags)

    monkeypatch.setattr(os, "open", refuse)
    storage.sweep()


def test_a_sweep_that_cannot_look_everywhere_is_refused(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(CheckpointError, match=r"cannot clean .*: Input/output error"):
        storage.sweep()


def test_a_root_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(CheckpointError, match="a file is in the way"):
        LocalStorage(tmp_path / "file" / "fanout")


def test_a_root_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Permission bits do not stop root, as whom these tests may run.
    monkeypatch.setattr(os, "access", lambda *_: False)

    with pytest.raises(CheckpointError, match="no permission to write"):
        LocalStorage(tmp_path)


def test_a_file_in_the_place_of_a_directory_is_an_error_to_a_walk(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("segments", b"")
    with pytest.raises(CheckpointError, match=r"cannot list .*/segments: Not a directory"):
        storage.walk("segments")
    assert storage.walk("nowhere") == ()
