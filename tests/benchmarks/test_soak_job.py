from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.soak_job import file_sizes

if TYPE_CHECKING:
    from pathlib import Path


def test_files_that_are_deleted_meanwhile_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "batches").mkdir()
    (tmp_path / "batches" / "000000000001.json").write_bytes(b"12345")
    # It is listed, and no longer there to be looked at.
    (tmp_path / "batches" / "000000000002.json").symlink_to(tmp_path / "deleted")
    assert file_sizes(tmp_path) == [5]
