from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from fanout.errors import CheckpointError
from fanout.landing.storage.local_storage import ScratchDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HOLD = """
import sys
from pathlib import Path
from fanout.landing.storage.local_storage import ScratchDirectory
held = ScratchDirectory(sys.argv[1])
Path(held.path, "run-000001-000001-00000001.parquet").write_bytes(b"records")
print(held.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a directory."""
    command = [sys.executable, "-c", _HOLD, str(tmp_path)]
    with subprocess.Popen(  # noqa: S603 - our own interpreter
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(str(tmp_path))
        yield process
        process.kill()


def test_the_directory_of_a_killed_process_is_removed_by_the_next(
    other: subprocess.Popen[str], tmp_path: Path
) -> None:
    (left,) = tmp_path.iterdir()
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    assert list(left.iterdir())
    scratch = ScratchDirectory(str(tmp_path))
    assert list(tmp_path.iterdir()) == [scratch.path]
    scratch.close()
    assert list(tmp_path.iterdir()) == []


def test_the_directory_of_a_process_that_lives_stays(
    other: subprocess.Popen[str], tmp_path: Path
) -> None:
    (theirs,) = tmp_path.iterdir()
    first, second = ScratchDirectory(str(tmp_path)), ScratchDirectory(str(tmp_path))
    assert other.poll() is None
    assert set(tmp_path.iterdir()) == {theirs, first.path, second.path}
    assert list(theirs.iterdir())
    first.close()
    second.close()


def test_what_is_no_scratch_directory_stays(tmp_path: Path) -> None:
    for name in ("fanout-crash-1", "other"):
        (tmp_path / name).mkdir()
    ScratchDirectory(str(tmp_path)).close()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"for temporary files in .*/missing: No such file"):
        ScratchDirectory(str(tmp_path / "missing"))


def test_a_machine_without_temporary_files_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    with pytest.raises(CheckpointError, match=r"^No usable temporary .*; set TMPDIR to one$"):
        ScratchDirectory()
