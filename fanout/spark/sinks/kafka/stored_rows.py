"""Store the rows of a DataFrame in files of the driver's disk, from which tasks write them.

Where the tasks run on the driver's machine, that costs less than a shuffle, a sort and Arrow: the
JVM writes plain Parquet, and `owned_rows` takes from it what each task writes.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from fanout.landing.storage.local_storage import ScratchDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame

# Files that are read twice, and then deleted. A session may set any of these.
_OPTIONS: Final = {
    "compression": "none",
    "parquet.enable.dictionary": "false",
    "parquet.column.statistics.enabled": "false",
    # What is in memory of a task.
    "parquet.block.size": str(16 << 20),
    # Names of more files than one for a task would not be in the order of the rows.
    "maxRecordsPerFile": "0",
}


@contextmanager
def stored_rows(df: DataFrame, topic: str | None) -> Iterator[Sequence[str]]:
    """Run a job that stores rows, whose columns were checked; yield its files in their order.

    The files exist during the block. `topic` is that of all rows; None where the rows name it.
    """
    names = [name for name in df.columns if name != "topic" or topic is None]
    scratch = ScratchDirectory()
    try:
        path = scratch.path / "rows"
        rows = df.select(*map(_plain, names)).write.options(**_OPTIONS)
        rows.parquet(path.as_uri())
        # Spark names them by the numbers of their tasks, which are in the order of the rows.
        yield sorted(map(str, path.glob("part-*.parquet")))
    finally:
        scratch.close()


def _plain(name: str) -> Column:
    """Return a column as the writer takes it, whatever the session sets for Parquet."""
    column = F.col(name)
    if name in {"key", "value"}:
        column = column.cast("binary")
    if name == "timestamp":
        column = F.unix_millis(column)
    return column.alias(name)
