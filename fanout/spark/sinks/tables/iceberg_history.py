"""The snapshots that a table of Iceberg consists of, without those that were rolled back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def current_history(spark: SparkSession, table: str) -> set[int]:
    """Return the ids of a table's current snapshot, as the session has it, and those before.

    A snapshot that was rolled back, or that an earlier table of the name had, is not among them.
    """
    snapshots = spark.table(f"{table}.snapshots").select("snapshot_id", "parent_id").collect()
    parents = {one.snapshot_id: one.parent_id for one in snapshots}
    heads = spark.table(f"{table}.refs").where("name = 'main'").select("snapshot_id").collect()
    snapshot = heads[0].snapshot_id if heads else None
    found = set()
    while snapshot is not None and snapshot in parents:
        found.add(snapshot)
        snapshot = parents[snapshot]
    return found
