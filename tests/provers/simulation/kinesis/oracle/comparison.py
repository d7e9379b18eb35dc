"""Compare the rows that a reader got with those that it must get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fanout.core.events import Batch
    from tests.provers.simulation.kinesis.service.stream_log import KinesisRow

__all__ = ("difference", "tuple_of", "tuples_of")


def tuple_of(row: KinesisRow) -> tuple[Any, ...]:
    """Return a row as a reader has to get it."""
    return (str(row.sequence), row.sub, row.key, row.arrival, row.data)


def tuples_of(batch: Batch) -> Iterable[tuple[Any, ...]]:
    """Return the rows of a batch, as a reader has got them."""
    columns = batch.records
    arrivals = columns.column("approximateArrivalTimestamp").view("int64").to_pylist()
    return zip(
        columns.column("sequenceNumber").to_pylist(),
        columns.column("subSequenceNumber").to_pylist(),
        columns.column("partitionKey").to_pylist(),
        [micros // 1000 for micros in arrivals],
        columns.column("data").to_pylist(),
        strict=True,
    )


def difference(
    shard_id: str,
    got: list[tuple[Any, ...]],
    expected: list[tuple[Any, ...]],
    rows: list[KinesisRow],
    following: int,
) -> str:
    """Name what is wrong, without quoting data.

    Args:
        shard_id: Of which shard.
        got: The rows that a reader has got.
        expected: Those that it has to get.
        rows: All rows of the shard, in order.
        following: The place of the row that comes next.
    """
    numbers = [row[:2] for row in got]
    wanted = [row[:2] for row in expected]
    known = {(str(row.sequence), row.sub): i for i, row in enumerate(rows)}
    places = [known.get((number, sub)) for number, sub in numbers]
    text = f"{shard_id} from row {following} on: rows {places}, not {[known[w] for w in wanted]}"
    if None in places:
        return f"altered: {text}"
    found = [place for place in places if place is not None]
    if len(set(found)) < len(found) or any(place < following for place in found):
        return f"duplicated: {text}"
    if found != sorted(found):
        return f"out of order: {text}"
    if numbers == wanted:
        return f"altered: {text}"
    if numbers[: len(wanted)] == wanted:
        return f"duplicated: {text}, as the next batch begins before them"
    return f"lost: {text}"
