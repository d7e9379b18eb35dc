"""Tasks that read the files of a batch share its rows out: each row once, in order."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fanout.errors import CheckpointError, UnwritableRecordError
from fanout.kafka.writing.partitioner import partitions_of
from fanout.spark.sinks.kafka.owned_rows import OwnedRows, SharedFiles

TASKS = 3


def two_files(directory: Path, table: pa.Table) -> list[str]:
    """Store the halves of a table, each in row groups of seven rows."""
    half = len(table) // 2
    paths = [str(directory / name) for name in ("a.parquet", "b.parquet")]
    for path, part in zip(paths, (table.slice(0, half), table.slice(half)), strict=True):
        pq.write_table(part, path, row_group_size=7, compression="none", write_page_checksum=True)
    return paths


def numbered(rows: int, **columns: pa.Array) -> pa.Table:
    keys = pa.array([b"user-%d" % (row % 11) for row in range(rows)])
    return pa.table({"key": keys, "value": pa.array(map(str, range(rows))), **columns})


def shared(paths: list[str], **changed: Any) -> SharedFiles:
    options: dict[str, Any] = {
        "paths": paths,
        "transform": None,
        "topic": "orders",
        "counts": {"orders": 8},
        "tasks": TASKS,
        "partitioner": None,
    }
    return SharedFiles(**options | changed)


def read(files: SharedFiles) -> tuple[dict[tuple[str, int | None], list[int]], set[int]]:
    """Return the values by topic and partition, in order, and the checksums of the tasks."""
    found: defaultdict[tuple[str, int | None], list[int]] = defaultdict(list)
    writers: defaultdict[tuple[str, int | None], set[int]] = defaultdict(set)
    checksums = set()
    for task in range(files.tasks):
        rows = OwnedRows(files, task)
        for batch in rows:
            for row in batch.to_pylist():
                place = row["topic"], row["partition"]
                found[place].append(int(row.get("value", -1)))
                writers[place].add(task)
        checksums.add(rows.checksum)
    assert all(len(tasks) == 1 for place, tasks in writers.items() if place[1] is not None)
    return dict(found), checksums


def test_each_row_comes_to_one_task_with_the_partition_of_its_key(tmp_path: Path) -> None:
    table = numbered(100)
    found, checksums = read(shared(two_files(tmp_path, table)))
    partitions = partitions_of(table["key"].combine_chunks(), 8).to_pylist()
    assert found == {
        ("orders", number): [row for row in range(100) if partitions[row] == number]
        for number in set(partitions)
    }
    assert len(checksums) == 1


def test_rows_without_a_key_take_turns_over_all_files(tmp_path: Path) -> None:
    paths = two_files(tmp_path, numbered(100).drop_columns("key"))
    found, _ = read(shared(paths))
    assert found == {("orders", number): list(range(number, 100, 8)) for number in range(8)}


def test_a_partition_of_a_row_goes_before_that_of_its_key(tmp_path: Path) -> None:
    given = pa.array([None if row % 2 else 5 for row in range(20)], pa.int64())
    paths = two_files(tmp_path, numbered(20, partition=given))
    found, _ = read(shared(paths, partitioner=lambda keys, _: pa.array([1] * len(keys))))
    assert found == {("orders", 5): list(range(0, 20, 2)), ("orders", 1): list(range(1, 20, 2))}


def test_rows_name_topics_and_those_of_unknown_ones_come_to_all(tmp_path: Path) -> None:
    topics = pa.array([("a", "b", "new")[row % 3] for row in range(30)])
    paths = two_files(tmp_path, numbered(30, topic=topics))
    found, checksums = read(shared(paths, topic=None, counts={"a": 1, "b": 2}))
    assert found["a", 0] == list(range(0, 30, 3))
    assert sorted(found["b", 0] + found["b", 1]) == list(range(1, 30, 3))
    assert len(found["new", None]) == TASKS * 10
    assert len(checksums) == 1
    ours, _ = read(shared(paths, topic="orders"))
    assert sorted(row for rows in ours.values() for row in rows) == list(range(30))


def test_a_null_topic_is_refused(tmp_path: Path) -> None:
    paths = two_files(tmp_path, numbered(4, topic=pa.array(["a", None, "a", "a"])))
    with pytest.raises(UnwritableRecordError, match="a record has no topic"):
        read(shared(paths, topic=None, counts={"a": 1}))


def test_a_transform_that_drops_and_adds_rows_is_shared_out(tmp_path: Path) -> None:
    def transform(records: pa.RecordBatch) -> pa.RecordBatch:
        even = [row for row in records.to_pylist() if int(row["value"]) % 2 == 0]
        return pa.RecordBatch.from_pylist(even * 2, schema=records.schema)

    found, _ = read(shared(two_files(tmp_path, numbered(40)), transform=transform))
    values = sorted(value for values in found.values() for value in values)
    assert values == sorted([*range(0, 40, 2)] * 2)


def test_a_transform_that_differs_from_task_to_task_shows_in_the_checksums(tmp_path: Path) -> None:
    calls = iter(range(1000))

    def transform(records: pa.RecordBatch) -> pa.RecordBatch:
        keys = pa.array([b"%d" % next(calls) for _ in range(records.num_rows)])
        return records.set_column(0, "key", keys)

    _, checksums = read(shared(two_files(tmp_path, numbered(40)), transform=transform))
    assert len(checksums) == TASKS


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (lambda records: records.column("no"), "transform_arrow raised KeyError: "),
        (lambda records: records.to_pylist(), "transform_arrow returned a list"),
    ],
)
def test_a_transform_that_fails_is_named(tmp_path: Path, transform: Any, says: str) -> None:
    with pytest.raises(UnwritableRecordError, match=says):
        read(shared(two_files(tmp_path, numbered(4)), transform=transform))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    paths = two_files(tmp_path, numbered(40))
    content = Path(paths[1]).read_bytes()
    assert b"user-5" in content
    Path(paths[1]).write_bytes(content.replace(b"user-5", b"user-6", 1))
    with pytest.raises(CheckpointError, match=r"b\.parquet cannot be read; if it is damaged"):
        read(shared(paths))
