"""The examples of the pages about moving a job from other libraries."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import aiobotocore.httpchecksum  # it reads files as it is imported, which no loop may do
import boto3

import fanout
from fanout.core.positions import Cursor, Horizon
from fanout.core.starts import PerSplit
from tests.pages import python_blocks

if TYPE_CHECKING:
    import pytest

    from fanout.testing.kinesis.server import KinesisServer

__all__ = ("aiobotocore",)

SPARK_SQL_KINESIS = python_blocks("from-spark-sql-kinesis.md")
KCL = python_blocks("from-kcl.md")
SPARK_KAFKA = python_blocks("from-spark-kafka.md")


def source_of(blocks: list[str]) -> Any:
    (code,) = blocks
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - the page is ours
    return names["source"]


def serve(server: KinesisServer, monkeypatch: pytest.MonkeyPatch, shards: int) -> list[str]:
    """Put a record into each shard twice; return the sequence numbers of the first ones."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    server.create_stream("orders", shards=shards)
    client = boto3.client("kinesis")
    found: dict[str, str] = {}
    for shard in client.list_shards(StreamName="orders")["Shards"]:
        key = shard["HashKeyRange"]["StartingHashKey"]
        for data in ("old", "new"):
            put = client.put_record(
                StreamName="orders", PartitionKey="k", ExplicitHashKey=key, Data=data
            )
            assert put["ShardId"] == shard["ShardId"]
            found.setdefault(shard["ShardId"], put["SequenceNumber"])
    return [found[shard] for shard in sorted(found)]


async def read(source: Any, count: int) -> list[tuple[str, bytes]]:
    rows: list[tuple[str, bytes]] = []
    async with fanout.open(source) as stream:
        async for batch in stream:
            data = batch.records.column("data").to_pylist()
            rows += [(batch.split.id[-1], each) for each in data]
            if len(rows) >= count:
                break
    return sorted(rows)


def test_a_job_of_spark_sql_kinesis_goes_on_after_its_sequence_number(
    kinesis_server: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, _ = serve(kinesis_server, monkeypatch, shards=2)
    (code,) = SPARK_SQL_KINESIS
    given = "49590338271490256608559692538361571095921575989136588898"
    source = source_of([code.replace(given, reached)])
    assert asyncio.run(read(source, 3)) == [("0", b"new"), ("1", b"new"), ("1", b"old")]


def test_a_consumer_of_the_kcl_goes_on_after_its_leases(
    kinesis_server: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = serve(kinesis_server, monkeypatch, shards=2)
    kinesis_server.split_shard("orders", "shardId-000000000000")
    time.sleep(2.0)  # "LATEST" is a whole second, and what came in it is read
    client = boto3.client("kinesis")
    client.put_record(StreamName="orders", PartitionKey="k", ExplicitHashKey="0", Data="child")
    leases = [
        {"leaseKey": "shardId-000000000000", "checkpoint": "SHARD_END"},
        {"leaseKey": "shardId-000000000001", "checkpoint": reached[1]},
        {"leaseKey": "shardId-000000000002", "checkpoint": "TRIM_HORIZON"},
    ]

    class Leases:
        """DynamoDB, as far as the example uses it."""

        def __init__(self, service: str) -> None:
            assert service == "dynamodb"

        def Table(self, name: str) -> Leases:  # noqa: N802 - boto3's name
            assert name == "orders-application"
            return self

        def scan(self) -> dict[str, Any]:
            return {"Items": leases}

    monkeypatch.setattr(boto3, "resource", Leases)
    assert asyncio.run(read(source_of(KCL), 2)) == [("1", b"new"), ("2", b"child")]


def test_a_job_of_sparks_kafka_source_goes_on_at_its_offsets() -> None:
    start = source_of(SPARK_KAFKA).start
    assert isinstance(start, PerSplit)
    assert dict(start.named) == {"orders-0": Cursor(22), "orders-1": Cursor(41)}
    assert start.others in {None, Horizon()}
