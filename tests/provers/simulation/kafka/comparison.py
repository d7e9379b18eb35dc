"""Compare the records that a reader of a simulated cluster got with those it must get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.kafka.partition_log import KafkaRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fanout.core.events import Batch
    from fanout.kafka.partitions import Partition
    from tests.provers.simulation.kafka.partition_log import LogEra

__all__ = ("difference", "records_of")

_EVENT_TIME: Final = "eventTime"


def records_of(batch: Batch, partition: Partition) -> Iterable[KafkaRecord]:
    """Return the records of a batch, as a reader has got them.

    Raises:
        OracleError: If they name another partition.
    """
    columns: dict[str, list[Any]] = {
        name: batch.records.column(name).to_pylist()
        for name in ("offset", "key", "value", "topic", "partition")
    }
    whose = set(zip(columns["topic"], columns["partition"], strict=True))
    if whose != {(partition.topic, partition.number)}:
        raise OracleError(f"altered: records of {partition} name {whose}")
    micros = batch.records.column("timestamp").view("int64").to_pylist()
    headers = batch.records.column("headers").to_pylist()
    happened: list[int | None] = [None] * batch.num_records
    if _EVENT_TIME in batch.records.schema.names:
        happened = batch.records.column(_EVENT_TIME).view("int64").to_pylist()
    return (
        KafkaRecord(
            offset,
            micro // 1000,
            key,
            value,
            tuple((header["key"], header["value"]) for header in some or ()),
            None if time is None else time // 1000,
        )
        for offset, micro, key, value, some, time in zip(
            columns["offset"],
            micros,
            columns["key"],
            columns["value"],
            headers,
            happened,
            strict=True,
        )
    )


def difference(
    partition: Partition,
    era: LogEra,
    got: list[KafkaRecord],
    first: int,
    until: int,
    *,
    committed: bool,
) -> str:
    """Name what is wrong, without quoting data.

    Args:
        partition: Of which partition.
        era: Of which of its eras, most likely.
        got: The records that a reader has got.
        first: The offset that it had to get next.
        until: The offset after what it reports now.
        committed: Whether it reads only what is committed.
    """
    due = era.records(first, until, committed=committed)
    offsets, wanted = [r.offset for r in got], [r.offset for r in due]
    text = f"{partition} from {first} on: {offsets}, not {wanted}"
    if offsets == wanted or not set(era.everything).issuperset(got):
        return f"altered: {text}"
    if len(set(offsets)) < len(offsets) or offsets[0] < first:
        return f"duplicated: {text}"
    if offsets != sorted(offsets):
        return f"out of order: {text}"
    if not set(era.records(0, until, committed=committed)).issuperset(got):
        return f"broke a rule: something of an aborted transaction: {text}"
    return f"lost: {text}"
