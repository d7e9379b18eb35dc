from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import boto3
from botocore.exceptions import ClientError
from moto.dynamodb.models.table import Table

from fanout.testing.kinesis.server import KinesisServer

if TYPE_CHECKING:
    import pytest

LEASES = {
    "TableName": "leases",
    "KeySchema": [{"AttributeName": "leaseKey", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "leaseKey", "AttributeType": "S"}],
    "BillingMode": "PAY_PER_REQUEST",
}


def test_of_workers_that_take_a_lease_at_once_one_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    get = Table.get_item

    def get_slowly(*args: Any, **options: Any) -> Any:
        item = get(*args, **options)
        time.sleep(0.05)  # the other workers look at the lease too
        return item

    monkeypatch.setattr(Table, "get_item", get_slowly)
    with KinesisServer() as server, closing(client_of(server)) as client:
        client.create_table(**LEASES)
        with ThreadPoolExecutor(4) as pool:
            outcomes = sorted(pool.map(lambda worker: take(server, worker), "abcd"))
    assert outcomes == ["ConditionalCheckFailedException"] * 3 + ["taken"]


def test_a_server_begins_without_the_tables_of_another() -> None:
    for _ in range(2):
        with KinesisServer() as server, closing(client_of(server)) as client:
            assert client.list_tables()["TableNames"] == []
            client.create_table(**LEASES)


def test_the_environment_leads_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with KinesisServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        with closing(boto3.client("dynamodb")) as client:
            assert client.list_tables()["TableNames"] == []


def client_of(server: KinesisServer) -> Any:
    return boto3.client("dynamodb", **server.client_options)


def take(server: KinesisServer, worker: str) -> str:
    """Take a lease that nobody has; return how it ended."""
    with closing(client_of(server)) as client:
        try:
            client.put_item(
                TableName="leases",
                Item={"leaseKey": {"S": "first"}, "worker": {"S": worker}},
                ConditionExpression="attribute_not_exists(leaseKey)",
            )
        except ClientError as error:
            return str(error.response["Error"]["Code"])
    return "taken"
