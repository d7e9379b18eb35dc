"""Rows on their way through a Python worker, to a sink whose tasks run in the JVM."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tests.provers.crash.control import CONTROL, Control
from tests.provers.crash.moments import CrashMoment

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

__all__ = ("pass_rows",)


def pass_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the rows of a task, and come to moments before the first and after the last."""
    control = Control(Path(os.environ[CONTROL]))
    control.reach(CrashMoment.BEFORE_WRITE, None)
    yield from batches
    control.reach(CrashMoment.AFTER_WRITE, None)
