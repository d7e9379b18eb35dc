from __future__ import annotations

import gc
import importlib
import sys
from typing import TYPE_CHECKING
from zipfile import ZipFile
from zipimport import zipimporter

import pyspark
import pytest
from pyspark import TaskContext

from fanout.spark.sinks.tables.postgres_connection import CopyTask, copy_rows
from fanout.spark.workers import spare_worker as module
from fanout.spark.workers.spare_worker import spare_worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def fresh_worker() -> Iterator[None]:
    TaskContext._setTaskContext(TaskContext())
    module._spare_modules.cache_clear()
    gc.unfreeze()  # what pytest has collected
    yield
    gc.unfreeze()
    TaskContext._setTaskContext(None)


def _archive(path: Path, package: str) -> str:
    with ZipFile(path, "w") as archive:
        for name in ("__init__", "one", "two"):
            archive.writestr(f"{package}/{name}.py", f"name = {name!r}")
    return str(path)


@pytest.mark.long
def test_a_collection_does_not_go_through_what_the_worker_has_loaded() -> None:
    spare_worker()
    assert gc.get_freeze_count() > len(gc.get_objects())


def test_a_process_that_runs_no_task_is_left_alone() -> None:
    TaskContext._setTaskContext(None)
    spare_worker()
    assert gc.get_freeze_count() == 0


@pytest.mark.long
def test_a_task_that_copies_rows_to_postgres_spares_its_worker() -> None:
    copy = copy_rows(CopyTask("host=db", "public", "fanout_", [("id", "bigint")]))
    assert not list(copy(iter(())))
    assert gc.get_freeze_count()


@pytest.mark.long
def test_what_a_task_leaves_is_collected_after_each() -> None:
    spare_worker()
    spared = gc.get_freeze_count()
    left: list[object] = []
    left.append(left)
    spare_worker()
    assert gc.get_freeze_count() <= spared


@pytest.mark.long
def test_the_directory_of_sparks_archive_is_not_read_before_each_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = _archive(tmp_path / "pyspark.zip", "package_of_spark")
    theirs = _archive(tmp_path / "users.zip", "package_of_user")
    monkeypatch.syspath_prepend(ours)
    monkeypatch.syspath_prepend(theirs)
    monkeypatch.setattr(pyspark.__spec__, "loader", zipimporter(ours))
    importlib.import_module("package_of_spark.one")
    importlib.import_module("package_of_user.one")
    spare_worker()
    assert not [path for path in sys.path_importer_cache if path.startswith(ours)]
    assert [path for path in sys.path_importer_cache if path.startswith(theirs)]
    assert importlib.import_module("package_of_spark.two").name == "two"


@pytest.mark.long
def test_a_spark_that_is_no_archive_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(_archive(tmp_path / "other.zip", "package_of_other"))
    importlib.import_module("package_of_other.one")
    before = dict(sys.path_importer_cache)
    spare_worker()
    assert sys.path_importer_cache == before
