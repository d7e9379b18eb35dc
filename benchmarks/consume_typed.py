"""A topic of Avro on the real broker to columns: `fanout.open` with a decoder, and without.

All read the same records of 4 partitions. The peer decodes each record by fastavro, as the
deserializer of confluent-kafka does.
"""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import fanout
from benchmarks.consume_kafka import AT_ONCE, kafka_source, read_by_confluent
from benchmarks.decode_records import SHAPES, bodies_of
from benchmarks.harness import Report, measure, median_row, run_apart
from benchmarks.kafka_topic import PARTITIONS, filled_broker
from benchmarks.turns import take_turns
from fanout.decoding import Avro

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    import pyarrow as pa

    from benchmarks.harness import Measurement, Row

__all__ = ("run",)

BYTES, TYPED, FASTAVRO = "fanout", "fanout typed", "confluent and fastavro"
RECORDS: Final = {1000: 800_000}
SHARE: Final = {BYTES: 1.0, TYPED: 1.0, FASTAVRO: 0.05}


async def _by_fanout(servers: str, decode: Avro | None) -> AsyncGenerator[pa.RecordBatch, None]:
    source = replace(kafka_source(servers), decode=decode)
    async with fanout.open(source) as stream:
        async for batch in stream:
            yield batch.records


async def _by_fastavro(servers: str, avsc: Any) -> AsyncGenerator[pa.RecordBatch, None]:
    import fastavro  # noqa: PLC0415 - the development environment has it
    import pyarrow as pa  # noqa: PLC0415 - as above

    parsed = fastavro.parse_schema(json.loads(json.dumps(avsc)))
    columns = pa.schema(Avro(avsc).read(pa.array([], pa.binary()))[0].type)
    async for records in read_by_confluent(servers):
        values = records.column("value").to_pylist()
        rows = [fastavro.schemaless_reader(io.BytesIO(each), parsed, None) for each in values]
        yield pa.RecordBatch.from_pylist(rows, schema=columns)


def run(rounds: int, records: Mapping[int, int] = RECORDS) -> Report:
    """Measure flat and nested records.

    Args:
        rounds: How often each is run; the rate is the median.
        records: For each size, about that of a record as JSON, how many the topic has.
    """
    rows: list[Row] = []
    ratios: dict[str, float] = {}
    for size, count in records.items():
        for shape in SHAPES:
            with filled_broker(size, count, bodies_of(shape, size)) as servers:
                contenders = {
                    name: partial(
                        run_apart,
                        partial(_read, name, shape, servers, max(int(count * share), 2 * AT_ONCE)),
                    )
                    for name, share in SHARE.items()
                }
                readings = take_turns(f"consume Avro, {shape}, {size} B", contenders, rounds)
            of_shape = {
                name: median_row(f"{shape} {name}", taken, record_bytes=size, shards=PARTITIONS)
                for name, taken in readings.items()
            }
            rows += of_shape.values()
            rates = {name: row.records_per_second for name, row in of_shape.items()}
            ratios[f"consume/typed/{shape} {size}/vs_bytes"] = rates[TYPED] / rates[BYTES]
            ratios[f"consume/typed/{shape} {size}/vs_fastavro"] = rates[TYPED] / rates[FASTAVRO]
    return Report(scenario="consume", rows=rows, ratios=ratios)


def _read(name: str, shape: str, servers: str, wanted: int) -> Measurement:
    avsc = SHAPES[shape][1]
    if name == FASTAVRO:
        return asyncio.run(measure(_by_fastavro(servers, avsc), wanted))
    decode = Avro(avsc) if name == TYPED else None
    return asyncio.run(measure(_by_fanout(servers, decode), wanted))
