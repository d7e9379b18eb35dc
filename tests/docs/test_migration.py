"""The examples of the pages about moving a job from other libraries."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiobotocore.httpchecksum  # it reads files as it is imported, which no loop may do
import boto3
import pytest

import fanout
from fanout.core.events import Split
from fanout.core.positions import Cursor, Horizon
from fanout.core.starts import PerSplit
from tests.support.pages import defined_by, python_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from fanout.testing.kinesis.server import KinesisServer

__all__ = ("aiobotocore",)

SPARK_SQL_KINESIS = python_blocks("from-spark-sql-kinesis.md")
KCL = python_blocks("from-kcl.md")
SPARK_KAFKA = python_blocks("from-spark-kafka.md")


def run(blocks: list[str]) -> dict[str, Any]:
    (code,) = blocks
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - the page is ours
    return names


def source_of(blocks: list[str]) -> Any:
    return run(blocks)["source"]


def serve(
    server: KinesisServer, monkeypatch: pytest.MonkeyPatch, shards: int
) -> dict[str, list[str]]:
    """Put a record into each shard twice; return their sequence numbers by shard."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    server.create_stream("orders", shards=shards)
    return {
        shard: [put(data, shard) for data in ("old", "new")]
        for shard in (f"shardId-{number:012}" for number in range(shards))
    }


async def read(source: Any, count: int) -> list[tuple[str, bytes]]:
    rows: list[tuple[str, bytes]] = []
    async with fanout.open(source) as stream:
        async for batch in stream:
            data = batch.records.column("data").to_pylist()
            rows += [(batch.split.id[-1], each) for each in data]
            if len(rows) >= count:
                break
    return sorted(rows)


@pytest.mark.long
def test_a_job_of_spark_sql_kinesis_goes_on_after_its_sequence_number(
    kinesis_server: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (reached, _), _ = serve(kinesis_server, monkeypatch, shards=2).values()
    (code,) = SPARK_SQL_KINESIS
    given = "49590338271490256608559692538361571095921575989136588898"
    source = source_of([code.replace(given, reached)])
    assert asyncio.run(read(source, 3)) == [("0", b"new"), ("1", b"new"), ("1", b"old")]


def keep_leases(leases: dict[str, str], filler: int = 0) -> None:
    """Create the lease table of an application; each lease has so many bytes more."""
    client = boto3.client("dynamodb")
    client.create_table(
        TableName="orders-application",
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    for key, checkpoint in leases.items():
        item = {"leaseKey": key, "checkpoint": checkpoint, "leaseOwner": "x" * filler}
        client.put_item(
            TableName="orders-application", Item={name: {"S": text} for name, text in item.items()}
        )


def put(data: str, shard: str) -> str:
    """Put a record into a shard, and return its sequence number."""
    client = boto3.client("kinesis")
    shards = client.list_shards(StreamName="orders")["Shards"]
    (keys,) = [each["HashKeyRange"] for each in shards if each["ShardId"] == shard]
    put: dict[str, str] = client.put_record(
        StreamName="orders",
        PartitionKey="k",
        ExplicitHashKey=keys["StartingHashKey"],
        Data=data,
    )
    return put["SequenceNumber"]


async def cancelled_after(program: Coroutine[Any, Any, None], done: Callable[[], bool]) -> None:
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(program)
        while not done():  # noqa: ASYNC110 - the program stores, and signals nothing
            await asyncio.sleep(0.05)
        running.cancel()


def printed_by_kcl_page(capsys: pytest.CaptureFixture[str], wanted: dict[str, str]) -> list[str]:
    """Run the page's program until it has stored so far by shard; return what it prints."""
    positions = Path("positions.json")

    def done() -> bool:
        splits = json.loads(positions.read_text())["splits"] if positions.exists() else {}
        reached = {shard: splits.get(shard, {}).get("position", {}) for shard in wanted}
        return all(int(reached[shard].get("sequence", 0)) >= int(wanted[shard]) for shard in wanted)

    main = defined_by("\n".join(KCL))["main"]
    asyncio.run(cancelled_after(main(), done))
    return sorted(capsys.readouterr().out.splitlines())


@pytest.mark.long
@pytest.mark.parametrize("deleted", [(), ("0",), ("0", "2")], ids=str)
def test_a_consumer_of_the_kcl_goes_on_after_its_leases(
    kinesis_server: KinesisServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    deleted: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    _, (reached, new) = serve(kinesis_server, monkeypatch, shards=2).values()
    kinesis_server.split_shard("orders", "shardId-000000000000")
    kinesis_server.split_shard("orders", "shardId-000000000002")
    time.sleep(2.0)  # "LATEST" is a whole second, and what came in it is read
    put_last = {
        "shardId-000000000001": new,
        "shardId-000000000003": put("newer", "shardId-000000000003"),
        "shardId-000000000004": put("child", "shardId-000000000004"),
    }
    leases = {"0": "SHARD_END", "1": reached, "2": "SHARD_END", "4": "TRIM_HORIZON"}
    keep_leases(
        {
            f"shardId-00000000000{shard}": checkpoint
            for shard, checkpoint in leases.items()
            if shard not in deleted
        }
        | {"shardId-of-long-ago": "SHARD_END"}
    )
    assert printed_by_kcl_page(capsys, put_last) == [
        "shardId-000000000001 [b'new']",
        "shardId-000000000003 [b'newer']",
        "shardId-000000000004 [b'child']",
    ]
    later = {"shardId-000000000004": put("later", "shardId-000000000004")}
    assert printed_by_kcl_page(capsys, later) == ["shardId-000000000004 [b'later']"]


def test_all_pages_of_a_lease_table_are_read(
    kinesis_server: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(kinesis_server, monkeypatch, shards=2)
    keep_leases({f"shardId-00000000000{number}": "SHARD_END" for number in range(8)}, 300_000)
    assert "LastEvaluatedKey" in boto3.client("dynamodb").scan(TableName="orders-application")
    chosen = source_of(KCL[:1]).start([Split(f"shardId-00000000000{each}") for each in range(8)])
    assert set(chosen.values()) == {"LATEST"}


def test_leases_of_several_streams_and_of_a_time_are_understood(
    kinesis_server: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(kinesis_server, monkeypatch, shards=1)
    keep_leases({"123456789012:orders:1700000000:shardId-0": "AT_TIMESTAMP"})
    names = run(KCL[:1])
    moment = datetime(2026, 11, 25, tzinfo=UTC)
    start = names["from_leases"]("orders-application", at_timestamp=moment)
    found = start([Split("orders/shardId-0"), Split("payments/shardId-0")])
    assert found == {"orders/shardId-0": moment, "payments/shardId-0": "TRIM_HORIZON"}


def test_a_job_of_sparks_kafka_source_goes_on_at_its_offsets() -> None:
    start = source_of(SPARK_KAFKA).start
    assert isinstance(start, PerSplit)
    assert dict(start.named) == {"orders-0": Cursor(22), "orders-1": Cursor(41)}
    assert start.others in {None, Horizon()}
