"""A shuffle on a cluster that follows a script."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

from fanout.kafka import KafkaSource, Security, ShuffleSource
from fanout.kafka.cluster import Cluster
from fanout.kafka.shuffle.frames import ControlFrame, encode_control
from fanout.kafka.shuffle.source import open_shuffle
from tests.support.kafka.record_batches import BatchRow, batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fanout.kafka.shuffle.source import ShuffleConnection
    from tests.support.kafka.scripted_cluster import Log, ScriptedCluster

__all__ = ("ScriptedShuffle", "framed", "write")


def framed(value: bytes, millis: int | None = None) -> bytes:
    """Frame a record byte by byte."""
    if millis is None:
        return b"\x01\x01" + value
    return b"\x01\x00" + millis.to_bytes(8, signed=True) + value


def write(log: Log, *entries: ControlFrame | int | bytes, **how: Any) -> None:
    """Append one batch: what producers say, records at a time in milliseconds, and bytes."""
    rows = []
    record: tuple[bytes | None, bytes]
    for at, entry in enumerate(entries):
        match entry:
            case int():
                record = b"k", framed(b"%d" % entry, entry)
            case bytes():
                record = b"k", entry
            case _:
                record = None, encode_control(entry)
        rows.append(BatchRow(at, 1_700_000_000_000, *record))
    log.batches.append((log.end, log.end + len(rows), batch(rows, log.end, **how)))
    log.end += len(rows)


class ScriptedShuffle:
    """A shuffle that is connected to a scripted cluster.

    Args:
        cluster: The cluster.
        options: Those of a ShuffleSource.
        kafka: Those of its KafkaSource.
    """

    def __init__(
        self, cluster: ScriptedCluster, kafka: dict[str, Any] | None = None, **options: Any
    ) -> None:
        self._cluster = cluster
        chosen: dict[str, Any] = {"topics": "t"} if "partitions" not in (kafka or {}) else {}
        self.source = ShuffleSource(
            KafkaSource(
                cluster=Cluster("localhost", security=Security(protocol="PLAINTEXT")),
                **chosen,
                **kafka or {},
            ),
            **options,
        )
        self.schema, self.event_time = self.source.schema, self.source.event_time
        self.cursor, self.arrival = self.source.cursor, self.source.arrival

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[ShuffleConnection]:
        opening = open_shuffle(self.source, self._cluster, Random(7), available_now=available_now)
        async with opening as connection:
            yield connection
