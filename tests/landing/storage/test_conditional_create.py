"""The check whether a store refuses to create an object twice, on a disk."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from fanout.errors import CheckpointError
from fanout.landing.storage.local_storage import LocalStorage
from fanout.landing.storage.opening import check_conditional_create

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


def test_a_disk_refuses_the_second_probe(storage: LocalStorage) -> None:
    check_conditional_create(storage)
    assert storage.list("probes") == ()


def test_probes_of_runs_that_were_killed_are_deleted(storage: LocalStorage) -> None:
    hour = 3_600
    for name, age in (("of-a-killed-run", 2 * hour), ("of-another-run", hour // 2)):
        storage.create(f"probes/{name}", b"first")
        path = storage.root / "probes" / name
        written = path.stat().st_mtime - age
        os.utime(path, (written, written))
    check_conditional_create(storage)
    assert [info.name for info in storage.list("probes")] == ["of-another-run"]


def test_a_store_that_does_not_show_what_was_created_is_refused(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStorage, "read", lambda *_, **__: None)
    with pytest.raises(CheckpointError) as caught:
        check_conditional_create(storage)
    assert str(caught.value) == (
        f"cannot use {storage.location}: the store does not show an object that was just created, "
        "so a run could miss the newest entry; use a store with strong consistency"
    )


def test_a_store_that_says_no_and_replaces_the_object_is_refused(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStorage, "read", lambda *_, **__: b"other")
    with pytest.raises(CheckpointError, match="ignores the condition of a put"):
        check_conditional_create(storage)
