"""Read a shuffle to its end, and compare its records with its watermarks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import fanout
from fanout.kafka import Producers, ShuffleSource, producers_at
from tests.support.kafka.topics import seeded

if TYPE_CHECKING:
    from tests.support.kafka.topics import Topic

MS = pa.timestamp("ms", "UTC")


@dataclass
class Drained:
    """The records of each partition, as keys, values and times, and its producers.

    `late` are the records that came although the watermark of their partition had excluded them.
    """

    records: dict[int, list[tuple[str, str, int | None]]] = field(default_factory=dict)
    producers: dict[int, Producers] = field(default_factory=dict)
    late: list[int] = field(default_factory=list)
    watermark: int | None = None

    @property
    def values(self) -> list[str]:
        return sorted(value for rows in self.records.values() for _, value, _ in rows)

    def take(self, batch: fanout.Batch) -> None:
        number = int(batch.split.id.rpartition("-")[2])
        before = producers_at(batch.range.after).watermark
        columns = batch.records.select(["key", "value"]).to_pydict()
        times = batch.records["eventTime"].cast(MS).cast(pa.int64()).to_pylist()
        if before is not None:
            self.late += [time for time in times if time is not None and time <= before]
        rows = zip(columns["key"], columns["value"], times, strict=True)
        self.records.setdefault(number, []).extend(
            (key.decode(), value.decode(), time) for key, value, time in rows
        )

    def end(self, stream: fanout.FanOut) -> None:
        self.watermark = stream.watermark
        for id_, split in stream.statistics().splits.items():
            reported = producers_at(split.position)
            if reported.generation is not None:
                self.producers[int(id_.rpartition("-")[2])] = reported


async def drain(topic: Topic, kafka: dict[str, Any] | None = None, **options: Any) -> Drained:
    """Read all committed records."""
    drained = Drained()
    source = ShuffleSource(topic.source(stop="latest", **(kafka or {})), **options)
    async with asyncio.timeout(20), fanout.open(source, random=seeded()) as stream:
        async for batch in stream:
            drained.take(batch)
        drained.end(stream)
    return drained
