"""Which tests share what takes long to start: the tests of a group run in one process, in turn.

Kafka's are several groups, as one alone would be the last to end, and so are Spark's: tests on
clusters share no JVM with the others. A file or a folder names its group; the file counts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SPARK: Final = pytest.mark.xdist_group("Spark")
SPARK_TABLES: Final = pytest.mark.xdist_group("Spark, by sinks and DataFrames")
SPARK_LAKEHOUSES: Final = pytest.mark.xdist_group("Spark, by Delta and Iceberg")
SPARK_CLUSTERS: Final = pytest.mark.xdist_group("Spark, by clusters")
KAFKA_CLUSTERS: Final = pytest.mark.xdist_group("Kafka, by clusters")
KAFKA_COMMANDS: Final = pytest.mark.xdist_group("Kafka, by commands and share groups")
KAFKA: Final = pytest.mark.xdist_group("Kafka")

# The groups that take longest begin first, so that no process is left with one of them at the end.
_FIRST: Final = tuple(
    mark.args[0]
    for mark in (
        SPARK,
        SPARK_TABLES,
        SPARK_LAKEHOUSES,
        SPARK_CLUSTERS,
        KAFKA_CLUSTERS,
        KAFKA_COMMANDS,
        KAFKA,
    )
)


def of_folder(conftest: str, items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the tests below the folder of a conftest, which is given by its `__file__`."""
    folder = f"{Path(conftest).parent}{os.sep}"
    return (item for item in items if str(item.path).startswith(folder))


def group_folder(conftest: str, items: Iterable[pytest.Item], group: pytest.MarkDecorator) -> None:
    """Put the tests of a folder into a group, if neither they nor a folder below it name one."""
    for item in of_folder(conftest, items):
        if group_of(item) is None:
            item.add_marker(group)


def group_of(item: pytest.Item) -> str | None:
    """Return the group of a test; its own name where it may run in any process, None for others."""
    if item.get_closest_marker("alone") is not None:
        return item.nodeid
    mark = item.get_closest_marker("xdist_group")
    return None if mark is None else str(mark.args[0])


def rank(item: pytest.Item) -> int:
    """Return how early a test is to begin, 0 first."""
    group = group_of(item)
    if group in _FIRST:
        return _FIRST.index(group)
    if item.get_closest_marker("alone") is not None:
        return len(_FIRST)
    return len(_FIRST) + (1 if item.get_closest_marker("prove") is not None else 2)
