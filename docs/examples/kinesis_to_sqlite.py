"""Read Kinesis with asyncio and store records and positions together: exactly once, without Spark.

The positions are stored in the same transaction as the results. A process that is killed at any
moment continues after the last transaction that was committed. Any database with transactions
will do.

Setup:

    pip install 'fanout-streams[kinesis]'
    export AWS_DEFAULT_REGION=eu-west-1            # and credentials, as for any AWS SDK
    aws kinesis create-stream --stream-name orders --shard-count 2
    python kinesis_to_sqlite.py                    # stop it with Ctrl-C, and start it again
    aws kinesis put-record --stream-name orders --partition-key customer-1 --data aGVsbG8=
    sqlite3 orders.db 'SELECT shard_id, sequence_number, data FROM orders'

README.md shows how to run it on an embedded Kinesis.
"""

import asyncio
import contextlib
import math
import os
import signal
import sqlite3

import fanout
from fanout.kinesis import KinesisSource

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (
    shard_id TEXT, sequence_number TEXT, sub_sequence_number INTEGER, customer TEXT, data BLOB
);
CREATE TABLE IF NOT EXISTS positions (id INTEGER PRIMARY KEY, json TEXT);
"""
COLUMNS = ["shardId", "sequenceNumber", "subSequenceNumber", "partitionKey", "data"]


def store(database, drained, before):
    """Store records and the positions after them, in one transaction."""
    after = drained.positions.to_json()
    with database:  # commits at its end, or rolls back
        for batch in drained.batches:
            columns = [batch.records.column(name).to_pylist() for name in COLUMNS]
            rows = zip(*columns, strict=True)
            database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", rows)
        moved = database.execute("UPDATE positions SET json = ? WHERE json = ?", (after, before))
        if moved.rowcount != 1:
            raise RuntimeError("another process has stored positions: run this one alone")
    return after


async def main():
    source = KinesisSource(stream="orders", consumer="orders-sqlite", start="TRIM_HORIZON")
    # Only one thread at a time uses the connection.
    database = sqlite3.connect(os.environ.get("DATABASE", "orders.db"), check_same_thread=False)
    database.executescript(SCHEMA)
    stored = database.execute("SELECT json FROM positions").fetchone()
    if stored is None:  # also for start="LATEST": it is resolved once, and not again after a kill
        stored = (await fanout.resolve_start(source),)
        with database:
            database.execute("INSERT INTO positions VALUES (1, ?)", stored)
    (positions,) = stored
    async with fanout.open(source, resume=positions) as stream:
        loop = asyncio.get_running_loop()

        def stop(number):
            stream.stop()
            loop.remove_signal_handler(number)  # a second signal ends the process

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        while not stream.stopping:
            drained = await stream.drain(max_records=10_000, max_wait=0.5, first_wait=math.inf)
            positions = await asyncio.to_thread(store, database, drained, positions)
            await stream.acknowledge(drained)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
