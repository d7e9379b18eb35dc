from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark import TaskContext

from fanout.spark.dataframe.options import ReadOptions
from fanout.spark.dataframe.row_groups import RowGroups, read_rows
from fanout.spark.workers import spare_worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def task() -> Iterator[None]:
    TaskContext._setTaskContext(TaskContext())
    spare_worker._spare_modules.cache_clear()
    gc.unfreeze()  # what pytest has collected
    yield
    gc.unfreeze()
    TaskContext._setTaskContext(None)


@pytest.mark.usefixtures("task")
def test_a_task_spares_its_worker(tmp_path: Path) -> None:
    options = ReadOptions(landing=str(tmp_path), storage={})
    assert not list(read_rows(RowGroups(()), pa.schema([]), options))
    assert gc.get_freeze_count()
