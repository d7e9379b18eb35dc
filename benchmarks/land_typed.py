"""A topic of Avro on the real broker to a table of Delta on the local disk: `fanout.land`.

The peer is a plain loop: confluent-kafka's `consume`, fastavro for each record, and deltalake's
`write_deltalake` whenever a file is full. Both have files of the same size in their tables; ours
are flushed to the disk, and entries name them. The clock of a run starts when its first file is in
the table.
"""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

import fanout
from benchmarks.consume_kafka import kafka_source, read_by_confluent
from benchmarks.decode_records import SHAPES, bodies_of
from benchmarks.harness import Report, measure, median_row, run_apart
from benchmarks.kafka_topic import PARTITIONS, filled_broker
from benchmarks.land import FILE_BYTES, File
from benchmarks.turns import take_turns
from fanout.decoding import Avro

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from benchmarks.harness import Counted, Measurement

__all__ = ("run",)

FANOUT, LOOP = "land, Avro", "confluent, fastavro and write_deltalake"
SHAPE: Final = "flat"
SIZE: Final = 1000
RECORDS: Final = 1_000_000
# The loop stops after two files, as its rate is steady.
SHARE: Final = {FANOUT: 0.85, LOOP: 0.3}


async def _land(servers: str, directory: Path, file_bytes: int) -> AsyncGenerator[File, None]:
    source = replace(kafka_source(servers), decode=Avro(SHAPES[SHAPE][1]))
    async with fanout.land(
        source, str(directory), max_bytes=file_bytes, tables=(fanout.DeltaTable(),)
    ) as landing:
        async for entry in landing:
            yield File(entry.rows)


async def _write_by_hand(
    servers: str, directory: Path, file_bytes: int
) -> AsyncGenerator[pa.Table, None]:
    """Write a file whenever enough was read. It keeps no positions, to its advantage."""
    import deltalake  # noqa: PLC0415 - the development environment has it
    import fastavro  # noqa: PLC0415 - as above

    avsc: Any = SHAPES[SHAPE][1]
    parsed = fastavro.parse_schema(json.loads(json.dumps(avsc)))
    columns = pa.schema(Avro(avsc).read(pa.array([], pa.binary()))[0].type)
    batches: list[pa.RecordBatch] = []
    async with aclosing(read_by_confluent(servers)) as arriving:
        async for records in arriving:
            values = records.column("value").to_pylist()
            rows = [fastavro.schemaless_reader(io.BytesIO(each), parsed, None) for each in values]
            batches.append(pa.RecordBatch.from_pylist(rows, schema=columns))
            if sum(each.nbytes for each in batches) >= file_bytes:
                table = pa.Table.from_batches(batches)
                batches.clear()
                deltalake.write_deltalake(str(directory), table, mode="append")
                yield table


def run(rounds: int, records: int = RECORDS, file_bytes: int = FILE_BYTES) -> Report:
    """Measure both.

    Args:
        rounds: How often each is run; the rate is the median.
        records: How many the topic has.
        file_bytes: The most bytes of records in a file.
    """
    with filled_broker(SIZE, records, bodies_of(SHAPE, SIZE)) as servers:
        contenders = {
            name: partial(run_apart, partial(_run, name, servers, int(records * share), file_bytes))
            for name, share in SHARE.items()
        }
        readings = take_turns(f"land Avro, {SIZE} B", contenders, rounds)
    rows = [
        median_row(name, taken, record_bytes=SIZE, shards=PARTITIONS)
        for name, taken in readings.items()
    ]
    ours, theirs = (row.records_per_second for row in rows)
    return Report(scenario="land", rows=rows, ratios={f"land/typed/{SIZE}/vs_loop": ours / theirs})


def _run(name: str, servers: str, wanted: int, file_bytes: int) -> Measurement:
    with tempfile.TemporaryDirectory() as directory:
        files: AsyncGenerator[Counted, None]
        if name == FANOUT:
            files = _land(servers, Path(directory), file_bytes)
        else:
            files = _write_by_hand(servers, Path(directory), file_bytes)
        return asyncio.run(measure(files, wanted))
