"""The number of late records, read through a real SDK, held against the rule record by record."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing

import pyarrow as pa

import fanout
from fanout.core.event_time import EventTime
from fanout.core.events import Split
from tests.support.collected_metrics import Collected
from tests.support.scripted_source import Log, ScriptedSource

A, B = Split("a"), Split("b")
DELAY = 20
# The event times of both splits, in milliseconds, by sequence number.
TIMES = {
    "a": (100, 90, 110, 20, None, 300, 250, 279, 280, 281, 400, 1),
    "b": (50, 60, 10, 500, 29, 30, 31, 600, 580, 579, 700, None),
}


def times(records: pa.RecordBatch) -> pa.Array:
    rows = zip(*(records.column(name).to_pylist() for name in ("split", "sequence")), strict=True)
    found = [TIMES[split][sequence] for split, sequence in rows]
    return pa.array(found, pa.int64()).cast(pa.timestamp("ms", tz="UTC"))


def source(*splits: Split, per_event: int = 3) -> ScriptedSource:
    entries = tuple(range(12))
    logs = [Log(split=s, entries=entries, per_event=per_event, event_delay=0.001) for s in splits]
    event_time = EventTime(times, out_of_orderness=DELAY / 1000)
    return ScriptedSource(logs=logs, event_time=event_time)


class Oracle:
    """Count by the definition: a record is late that is not newer than the watermark before it."""

    def __init__(self, *splits: Split) -> None:
        self.late: defaultdict[str, int] = defaultdict(int)
        self.watermark: int | None = None
        self._newest: dict[str, int | None] = {split.id: None for split in splits}

    def take(self, batch: fanout.Batch) -> None:
        known = [TIMES[batch.split.id][n] for n in batch.records.column("sequence").to_pylist()]
        found = [each for each in known if each is not None]
        if self.watermark is not None:
            self.late[batch.split.id] += sum(each <= self.watermark for each in found)
        newest = self._newest[batch.split.id]
        self._newest[batch.split.id] = max((*found, *(() if newest is None else (newest,))))
        heights = list(self._newest.values())
        if None not in heights:
            lowest = min(each for each in heights if each is not None) - DELAY - 1
            self.watermark = lowest if self.watermark is None else max(self.watermark, lowest)


async def test_late_records_are_those_of_the_oracle() -> None:
    collected, oracle = Collected(), Oracle(A, B)
    with closing(collected):
        async with fanout.open(source(A, B)) as stream:
            with collected.metrics.watch(stream):
                assert collected.now()["fanout.late_records"] == {"": 0}
                records = 0
                while records < 24:
                    batch = await anext(stream)
                    records += batch.num_records
                    oracle.take(batch)
                    assert stream.watermark == oracle.watermark
                    late = sum(oracle.late.values())
                    assert collected.now()["fanout.late_records"] == {"": late}
                statistics = stream.statistics()
                assert {id_: each.late_records for id_, each in statistics.splits.items()} == {
                    "a": oracle.late["a"],
                    "b": oracle.late["b"],
                }
                assert min(oracle.late["a"], oracle.late["b"]) > 0
                assert statistics.totals.late_records == late


async def test_a_batch_that_is_cut_has_as_many_late_records() -> None:
    oracle = Oracle(A)
    async with fanout.open(source(A)) as whole:
        records = 0
        while records < 12:
            batch = await anext(whole)
            records += batch.num_records
            oracle.take(batch)
    async with fanout.open(source(A, per_event=3)) as stream:
        records = 0
        while records < 12:
            drained = await stream.drain(max_records=2, max_wait=0.0, first_wait=5.0)
            for one in drained.batches:
                assert one.event_times is not None
                assert len(one.event_times) == one.num_records
            records += drained.num_records
    assert oracle.late["a"] > 0
    assert stream.statistics().totals.late_records == oracle.late["a"]


async def test_without_event_times_nothing_is_counted() -> None:
    collected = Collected()
    with closing(collected):
        async with fanout.open(ScriptedSource(logs=[Log(split=A, entries=(1,))])) as stream:
            with collected.metrics.watch(stream):
                batch = await anext(stream)
                assert batch.event_times is None
                assert stream.statistics().totals.late_records is None
                assert "fanout.late_records" not in collected.now()
