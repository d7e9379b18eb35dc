"""A stream over real sockets to Parquet files, on the local disk and on S3: `fanout.land`.

The peer is a plain loop: aioboto3, then pyarrow, and for S3 boto3's `upload_file`. Both write files
of the same size with the same compression; ours are flushed to the disk, and entries name them.
Two more contenders show what is left to gain: `fanout.open` without files, and obstore alone, which
uploads the files of a landing. Others show what a landing costs that is a table of Delta, or of
Iceberg with a catalog in SQLite, and one by two processes.

The clock of a run starts when its first file is durable, so that every file counts as a whole. The
S3 is moto's, in a process that is started anew for each run.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.store import S3Store

import fanout
from benchmarks.consume_kinesis import CREDENTIALS, kinesis_source, read_by_fanout, read_by_hand
from benchmarks.harness import Report, measure, median_row, run_apart
from benchmarks.kinesis_replay import Replay, replay_server
from benchmarks.s3_server import STORAGE_OPTIONS, s3_server
from benchmarks.turns import take_turns
from fanout import DeltaTable, IcebergTable  # their libraries read files when they are loaded
from fanout.testing.s3_clients import BUCKET

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from benchmarks.harness import Counted, Measurement

__all__ = ("BRIEF_CONTENDERS", "CONTENDERS", "File", "Place", "land_by_fanout", "run")

CONSUME = "fanout.open"
LOCAL, LOCAL_LOOP = "land, local", "loop, local"
DELTA, ICEBERG, PROCESSES = "land, local, Delta", "land, local, Iceberg", "land, local, 2 processes"
S3, S3_LOOP, UPLOAD = "land, S3", "loop, S3", "obstore alone, S3"

RECORD_BYTES: Final = 1024
SHARDS: Final = 4
# Events of all shards together: six files of 128 MiB; the rest fills none.
EVENTS: Final = 768
SHARE: Final = 0.85
# The loops stop after two files, as their rate is steady.
LOOP_SHARE: Final = 0.25
FILE_BYTES: Final = 128 << 20
COMPRESSION: Final = "zstd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run reads and writes.

    Args:
        port: Of the server that replays the stream.
        directory: A directory of the run.
        landed: The directory of a landing whose files are uploaded.
        endpoint: Of the S3; None for the local disk.
        file_bytes: The most bytes of records in a file.
    """

    port: int
    directory: Path
    landed: Path
    endpoint: str | None
    file_bytes: int


@dataclass(frozen=True, slots=True)
class File:
    """A file that was written."""

    num_rows: int


def consume(place: Place) -> AsyncGenerator[pa.RecordBatch, None]:
    """Read and write nothing."""
    return read_by_fanout(place.port, SHARDS)


async def land_by_fanout(
    place: Place, table: str | None = None, processes: int = 1
) -> AsyncGenerator[File, None]:
    """Land as a user of fanout does."""
    if place.endpoint is None:
        location, options = str(place.directory / "landing"), None
    else:
        location = f"s3://{BUCKET}/landing"
        options = STORAGE_OPTIONS | {"endpoint": place.endpoint}
    async with fanout.land(
        replace(kinesis_source(place.port), session=None, region=CREDENTIALS["region_name"]),
        location,
        max_bytes=place.file_bytes,
        compression=COMPRESSION,
        storage_options=options,
        tables=() if table is None else (_table(table, place.directory),),
        processes=processes,
    ) as landing:
        async for entry in landing:
            yield File(entry.rows)


def _table(kind: str, directory: Path) -> fanout.DeltaTable | fanout.IcebergTable:
    if kind == DELTA:
        return DeltaTable()
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}/warehouse",
    }
    return IcebergTable(catalog="benchmark", table="db.orders", properties=catalog)


async def land_by_hand(place: Place) -> AsyncGenerator[File, None]:
    """Write a file whenever enough was read. It keeps no positions, to its advantage."""
    s3 = boto3.client("s3", endpoint_url=place.endpoint, **CREDENTIALS) if place.endpoint else None
    batches: list[pa.RecordBatch] = []
    number = 0
    async with aclosing(read_by_hand(place.port, SHARDS)) as arriving:
        async for batch in arriving:
            batches.append(batch)
            if sum(each.nbytes for each in batches) < place.file_bytes:
                continue
            table = pa.Table.from_batches(batches)
            batches.clear()
            path = place.directory / f"{number:06}.parquet"
            number += 1
            pq.write_table(table, path, compression=COMPRESSION)
            if s3 is not None:
                s3.upload_file(str(path), BUCKET, path.name)
                path.unlink()
            yield File(table.num_rows)


async def upload_by_obstore(place: Place) -> AsyncGenerator[File, None]:
    """Upload the files of a landing, one after the other."""
    assert place.endpoint is not None
    config: Any = STORAGE_OPTIONS | {"endpoint": place.endpoint}
    store: Any = S3Store(BUCKET, config=config, client_options={"allow_http": True})
    for path in sorted(place.landed.glob("landing/segments/*.parquet")):
        store.put(path.name, path)
        yield File(pq.read_metadata(path).num_rows)


CONTENDERS: Mapping[str, Callable[[Place], AsyncGenerator[Counted, None]]] = {
    CONSUME: consume,
    LOCAL: land_by_fanout,
    DELTA: partial(land_by_fanout, table=DELTA),
    ICEBERG: partial(land_by_fanout, table=ICEBERG),
    PROCESSES: partial(land_by_fanout, processes=2),
    LOCAL_LOOP: land_by_hand,
    S3: land_by_fanout,
    S3_LOOP: land_by_hand,
    UPLOAD: upload_by_obstore,
}
# Those of a quick look: the others start a server, or import a library of tables, for each run.
BRIEF_CONTENDERS: Final = (CONSUME, LOCAL, LOCAL_LOOP, PROCESSES)

RATIOS: Final = {
    f"local/{RECORD_BYTES}/vs_loop": (LOCAL, LOCAL_LOOP),
    f"local/{RECORD_BYTES}/vs_consume": (LOCAL, CONSUME),
    f"delta/{RECORD_BYTES}/vs_no_table": (DELTA, LOCAL),
    f"iceberg/{RECORD_BYTES}/vs_no_table": (ICEBERG, LOCAL),
    f"processes/{RECORD_BYTES}/vs_one": (PROCESSES, LOCAL),
    f"s3/{RECORD_BYTES}/vs_loop": (S3, S3_LOOP),
    f"s3/{RECORD_BYTES}/vs_upload": (S3, UPLOAD),
}


def run(
    rounds: int,
    events: int = EVENTS,
    file_bytes: int = FILE_BYTES,
    names: Sequence[str] = tuple(CONTENDERS),
) -> Report:
    """Measure contenders with records of 1 KB on 4 shards.

    Args:
        rounds: How often each is run; the rate is the median.
        events: The events of all shards together.
        file_bytes: The most bytes of records in a file.
        names: The contenders.
    """
    replay = Replay(RECORD_BYTES, events // SHARDS, SHARDS)
    with replay_server(replay) as port, tempfile.TemporaryDirectory() as landed:
        directory = Path(landed)
        place = Place(
            port=port, directory=directory, landed=directory, endpoint=None, file_bytes=file_bytes
        )
        run_apart(partial(_land, LOCAL, place, replay.records))
        contenders = {name: partial(_measured, name, place, replay.records) for name in names}
        readings = take_turns(f"land, {RECORD_BYTES} B", contenders, rounds)
    rows = {
        name: median_row(name, taken, record_bytes=RECORD_BYTES, shards=SHARDS)
        for name, taken in readings.items()
    }
    rate = {name: row.records_per_second for name, row in rows.items()}
    ratios = {
        f"land/{name}": rate[one] / rate[other]
        for name, (one, other) in RATIOS.items()
        if one in rate and other in rate
    }
    return Report(scenario="land", rows=list(rows.values()), ratios=ratios)


def _measured(name: str, place: Place, records: int) -> Measurement:
    """Run a contender once, in a directory and on an S3 of its own."""
    with ExitStack() as resources:
        directory = Path(resources.enter_context(tempfile.TemporaryDirectory()))
        on_s3 = name in (S3, S3_LOOP, UPLOAD)
        there = Place(
            port=place.port,
            directory=directory,
            landed=place.landed,
            endpoint=resources.enter_context(s3_server()) if on_s3 else None,
            file_bytes=place.file_bytes,
        )
        return run_apart(partial(_land, name, there, records))


def _land(name: str, place: Place, records: int) -> Measurement:
    os.environ["AWS_ACCESS_KEY_ID"] = CREDENTIALS["aws_access_key_id"]
    os.environ["AWS_SECRET_ACCESS_KEY"] = CREDENTIALS["aws_secret_access_key"]
    wanted = int(records * (LOOP_SHARE if name in (LOCAL_LOOP, S3_LOOP) else SHARE))
    return asyncio.run(measure(CONTENDERS[name](place), wanted))
