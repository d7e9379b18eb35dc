"""Records of Avro to a table of Delta on the local disk, from Kafka and Kinesis: `fanout.land`.

The peers are plain loops: confluent-kafka's `consume` or aioboto3, fastavro for each record, and
deltalake's `write_deltalake` whenever a file is full. All have files of the same size in their
tables; ours are flushed to the disk, and entries name them. The clock of a run starts when its
first file is in the table.
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
from benchmarks.consume_kinesis import kinesis_source, read_by_hand
from benchmarks.decode_records import SHAPES, bodies_of
from benchmarks.harness import Report, measure, median_row, run_apart
from benchmarks.kafka_topic import PARTITIONS, filled_broker
from benchmarks.kinesis_replay import Replay, replay_server
from benchmarks.land import FILE_BYTES, File
from benchmarks.turns import take_turns
from fanout.decoding import Avro

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from benchmarks.harness import Counted, Measurement
    from fanout.kafka import KafkaSource
    from fanout.kinesis import KinesisSource

__all__ = ("run", "run_kinesis")

FANOUT, CONFLUENT = "land, Avro", "confluent, fastavro and write_deltalake"
AIOBOTO3 = "aioboto3, fastavro and write_deltalake"
SHAPE: Final = "flat"
SIZE: Final = 1000
RECORDS: Final = 1_000_000
EVENTS: Final = 1000
SHARDS: Final = PARTITIONS
# The loop stops after two files, as its rate is steady.
SHARE: Final = {FANOUT: 0.85, CONFLUENT: 0.3, AIOBOTO3: 0.3}


async def _land(
    source: KafkaSource | KinesisSource, directory: Path, file_bytes: int
) -> AsyncGenerator[File, None]:
    async with fanout.land(
        source, str(directory), max_bytes=file_bytes, tables=(fanout.DeltaTable(),)
    ) as landing:
        async for entry in landing:
            yield File(entry.rows)


async def _write_by_hand(
    reading: AsyncGenerator[pa.RecordBatch, None], column: str, directory: Path, file_bytes: int
) -> AsyncGenerator[pa.Table, None]:
    """Write a file whenever enough was read. It keeps no positions, to its advantage."""
    import deltalake  # noqa: PLC0415 - the development environment has it
    import fastavro  # noqa: PLC0415 - as above

    avsc: Any = SHAPES[SHAPE][1]
    parsed = fastavro.parse_schema(json.loads(json.dumps(avsc)))
    columns = pa.schema(Avro(avsc).read(pa.array([], pa.binary()))[0].type)
    batches: list[pa.RecordBatch] = []
    async with aclosing(reading) as arriving:
        async for records in arriving:
            values = records.column(column).to_pylist()
            rows = [fastavro.schemaless_reader(io.BytesIO(each), parsed, None) for each in values]
            batches.append(pa.RecordBatch.from_pylist(rows, schema=columns))
            if sum(each.nbytes for each in batches) >= file_bytes:
                table = pa.Table.from_batches(batches)
                batches.clear()
                deltalake.write_deltalake(str(directory), table, mode="append")
                yield table


def run(rounds: int, records: int = RECORDS, file_bytes: int = FILE_BYTES) -> Report:
    """Measure with Kafka.

    Args:
        rounds: How often each is run; the rate is the median.
        records: How many the topic has.
        file_bytes: The most bytes of records in a file.
    """
    with filled_broker(SIZE, records, bodies_of(SHAPE, SIZE)) as servers:
        runs = {
            name: partial(_run, name, servers, int(records * SHARE[name]), file_bytes)
            for name in (FANOUT, CONFLUENT)
        }
        return _compare("Kafka", rounds, runs)


def run_kinesis(rounds: int, events: int = EVENTS, file_bytes: int = FILE_BYTES) -> Report:
    """Measure with Kinesis.

    Args:
        rounds: How often each is run; the rate is the median.
        events: The events of all shards together.
        file_bytes: The most bytes of records in a file.
    """
    replay = Replay(SIZE, events // SHARDS, SHARDS, SHAPE)
    with replay_server(replay) as port:
        runs = {
            name: partial(_run, name, port, int(replay.records * SHARE[name]), file_bytes)
            for name in (FANOUT, AIOBOTO3)
        }
        return _compare("Kinesis", rounds, runs)


def _compare(service: str, rounds: int, runs: Mapping[str, Callable[[], Measurement]]) -> Report:
    contenders = {name: partial(run_apart, each) for name, each in runs.items()}
    readings = take_turns(f"land Avro of {service}, {SIZE} B", contenders, rounds)
    rows = [
        median_row(name, taken, record_bytes=SIZE, shards=SHARDS)
        for name, taken in readings.items()
    ]
    ours, theirs = (row.records_per_second for row in rows)
    ratio = f"land/typed {service}/{SIZE}/vs_loop"
    return Report(scenario="land", rows=rows, ratios={ratio: ours / theirs})


def _run(name: str, address: str | int, wanted: int, file_bytes: int) -> Measurement:
    decode = Avro(SHAPES[SHAPE][1])
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        files: AsyncGenerator[Counted, None]
        if name == FANOUT:
            source = kafka_source(address) if isinstance(address, str) else kinesis_source(address)
            files = _land(replace(source, decode=decode), place, file_bytes)
        elif isinstance(address, str):
            files = _write_by_hand(read_by_confluent(address), "value", place, file_bytes)
        else:
            files = _write_by_hand(read_by_hand(address, SHARDS), "data", place, file_bytes)
        return asyncio.run(measure(files, wanted))
