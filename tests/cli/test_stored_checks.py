from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from fanout.cli.checkpoint_files import examine_stored
from fanout.core.checkpoint import Checkpoint
from fanout.landing.log.entries import encode_origin
from fanout.landing.storage.local_storage import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path

GB = 10**9


@pytest.mark.parametrize(
    ("left", "status", "detail"),
    [
        ((50 * GB, 1000), "ok", "50.0 GB"),
        ((GB // 2, 1000), "warning", "0.5 GB on the disk of {path}"),
        ((GB // 10, 1000), "problem", "0.1 GB on the disk of {path}, less than two segments take"),
        ((50 * GB, 0), "problem", "the disk of {path} takes no more files"),
    ],
)
def test_the_free_space_of_a_disk_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: tuple[int, int], status: str, detail: str
) -> None:
    free, files = left
    storage = LocalStorage(tmp_path / "fanout")
    storage.create("origin.json", encode_origin(Checkpoint("kafka:there").to_json()))
    disk = os.statvfs_result((1, 1, 100 * GB, free, free, 1000, files, files, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    _, (finding,) = examine_stored(str(tmp_path))
    assert (finding.check, finding.status) == ("free space", status)
    assert finding.detail == detail.format(path=tmp_path)
