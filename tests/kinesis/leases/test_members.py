"""Members of a lease table on the embedded services: each record once, whoever has the shards."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import aioboto3
import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from moto.dynamodb.models import DynamoDBBackend

import fanout
from fanout.errors import OptionError, ServiceError
from fanout.kafka import Cluster, KafkaSource, Security
from fanout.kinesis import LeaseTable, iam_policy
from fanout.testing.kinesis.credentials import REGION
from tests.support.kinesis.reading import FIRST, Stream, next_second
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

FAILOVER = 6.0
# Where no lease may be lost: a machine that does other work renews it within this.
UNHURRIED = 20.0
MODES = pytest.mark.parametrize("mode", ["efo", "polling"])


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that only shows in what members do, or in their table."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.1)


def dynamo(stream: Stream) -> Any:
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    url = stream.server.endpoint_url
    return boto3.client("dynamodb", region_name=REGION, endpoint_url=url, **keys)


class Application:
    """What the members of a table have read together."""

    def __init__(self, stream: Stream, failover: float = FAILOVER) -> None:
        self.stream = stream
        self.failover = failover
        self.seen: Counter[int] = Counter()
        self.owners: dict[str, str] = {}

    def table(self, worker: str | None = None, **options: Any) -> LeaseTable:
        where = {"name": "orders-app", "endpoint_url": self.stream.server.endpoint_url}
        return LeaseTable(**where | {"worker": worker, "failover_time": self.failover} | options)

    @asynccontextmanager
    async def member(self, name: str, **options: Any) -> AsyncIterator[fanout.FanOut]:
        """Read as a member while the block runs, and leave in order."""
        source = self.stream.source(**options)
        async with (
            asyncio.TaskGroup() as tasks,
            fanout.open(source, group=self.table(name)) as stream,
        ):
            reading = tasks.create_task(self._read(name, stream))
            try:
                yield stream
            finally:
                stream.stop()
                await reading

    async def _read(self, name: str, stream: fanout.FanOut) -> None:
        async for batch in stream:
            self.seen.update(map(int, batch.records.column("data").to_pylist()))
            self.owners[batch.split.id] = name
            await stream.acknowledge(batch)

    async def all_is_read(self) -> None:
        await until(lambda: len(self.seen) == self.stream.put_in_all)
        assert set(self.seen.values()) <= {1}

    def has_table(self) -> bool:
        return "orders-app" in dynamo(self.stream).list_tables()["TableNames"]

    def leases(self) -> dict[str, dict[str, Any]]:
        client = dynamo(self.stream)
        items = client.scan(TableName="orders-app")["Items"]
        rows = [{name: next(iter(v.values())) for name, v in item.items()} for item in items]
        return {row["leaseKey"]: row for row in rows if row["entityType"] == "LEASE"}


@pytest.fixture
def shards() -> int:
    return 4


@pytest.fixture
def application(stream: Stream) -> Application:
    return Application(stream)


@pytest.mark.parametrize("mode", ["efo", pytest.param("polling", marks=pytest.mark.long)])
async def test_each_record_comes_once_while_members_come_and_go(stream: Stream, mode: str) -> None:
    application = Application(stream, UNHURRIED)
    stream.put(100)
    async with application.member("a", mode=mode) as first:
        await application.all_is_read()
        async with application.member("b", mode=mode) as second:
            await until(lambda: _owned(first) == _owned(second) == 2)
            stream.put(100)
            await application.all_is_read()
            stream.server.split_shard(stream.name, FIRST)
            stream.put(100)
            await application.all_is_read()
            assert set(application.owners.values()) == {"a", "b"}
            application.owners.clear()
        stream.put(100)
        await application.all_is_read()
        assert set(application.owners.values()) == {"a"}
    leases = application.leases()
    assert not [
        each
        for each in leases.values()
        if "leaseOwner" in each and each["checkpoint"] != "SHARD_END"
    ]
    stream.put(100)
    async with application.member("c", mode=mode):
        await application.all_is_read()


def _owned(stream: fanout.FanOut) -> int:
    found = stream.statistics().membership
    assert found is not None
    return found.owned


class _Dead:
    """A table of which nothing comes back."""

    def __getattr__(self, name: str) -> Any:
        async def nothing(*_: object) -> None:
            raise EndpointConnectionError(endpoint_url=name)

        return nothing


@pytest.mark.long
async def test_the_leases_of_a_member_that_died_go_on_after_the_failover_time(
    stream: Stream,
) -> None:
    application = Application(stream, UNHURRIED)
    stream.put(50)
    group = application.table("dead")
    async with fanout.open(stream.source(), group=group) as doomed:
        batch = await anext(doomed)
        # From here on nothing that it stores arrives, as if it had been killed.
        member: Any = doomed._shared._membership  # type: ignore[union-attr]
        member._items = dead = _Dead()
        for held in member._held.values():
            held._items = dead
        async with application.member("heir") as heir:
            await until(lambda: _owned(heir) == 4)
            await application.all_is_read()
    assert batch.num_records


@pytest.mark.long
async def test_latest_is_the_moment_of_the_first_start(application: Application) -> None:
    stream = application.stream
    stream.put(20)
    await next_second()  # the service's time has no fractions
    async with application.member("a", start="LATEST"):
        await until(application.has_table)
        await until(lambda: len(application.leases()) == 4)
    stream.put(20)
    await next_second()
    async with application.member("b", start="LATEST"):
        await until(lambda: set(range(20, 40)) <= set(application.seen))
    assert set(application.seen) == set(range(20, 40))


async def refused(application: Application, group: Any, **options: Any) -> str:
    try:
        async with (
            asyncio.timeout(PATIENCE),
            fanout.open(application.stream.source(**options), group=group) as stream,
        ):
            async for _ in stream:
                pass
    except (OptionError, ServiceError) as error:
        return str(error)
    raise AssertionError("it was not refused")


async def test_what_no_group_shares_is_refused_by_a_sentence(application: Application) -> None:
    table = application.table()
    assert "decides who reads which" in await refused(application, table, shards=[FIRST])
    application.stream.server.create_stream("second", 1)
    both = await refused(application, table, stream=["orders", "second"])
    assert "a lease table is about one stream" in both
    kafka = KafkaSource(
        cluster=Cluster("127.0.0.1:1", security=Security(protocol="PLAINTEXT")), topics="orders"
    )
    with pytest.raises(OptionError, match="not of a KafkaSource"):
        async with table.join(kafka, None, None):  # type: ignore[arg-type]
            pass


def watched(event: str, handler: Callable[[], None]) -> aioboto3.Session:
    """Return a session that calls a function before each call of DynamoDB of one name."""
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    session = aioboto3.Session(region_name=REGION, **keys)
    session.events.register(f"before-call.dynamodb.{event}", lambda **_: handler())
    return session


@pytest.mark.parametrize(
    "call",
    [
        "CreateTable",
        *(
            pytest.param(call, marks=pytest.mark.long)
            for call in ("DescribeTable", "UpdateItem", "Scan")
        ),
    ],
)
async def test_a_call_that_is_not_allowed_names_the_policy(
    application: Application, call: str
) -> None:
    def deny() -> None:
        error = {"Code": "AccessDeniedException", "Message": f"not authorized: dynamodb:{call}"}
        raise ClientError({"Error": error}, call)

    sentence = await refused(application, application.table(), session=watched(call, deny))
    assert f"not authorized: dynamodb:{call}" in sentence
    assert "`fanout iam-policy --table-arn`" in sentence


@pytest.mark.long
async def test_a_table_that_is_throttled_for_now_is_opened(application: Application) -> None:
    left = {"DescribeTable": 2, "UpdateItem": 3, "Scan": 2}

    def throttle(call: str) -> None:
        if left[call]:
            left[call] -= 1
            raise ClientError({"Error": {"Code": "ThrottlingException", "Message": ""}}, call)

    session = watched("DescribeTable", partial(throttle, "DescribeTable"))
    for call in ("UpdateItem", "Scan"):
        name = f"before-call.dynamodb.{call}"
        session.events.register(name, lambda call=call, **_: throttle(call))
    application.stream.put(20)
    async with application.member("a", session=session):
        await application.all_is_read()
    assert left == dict.fromkeys(left, 0)


@pytest.mark.long
async def test_a_table_may_take_its_time_and_a_lease_is_written_again(
    application: Application, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slow = {"create_table": 1, "describe_table": 1, "scan": 1, "update_item": 2}

    def late(name: str, call: Any) -> Any:
        def answer(*arguments: Any, **named: Any) -> Any:
            if slow[name]:
                slow[name] -= 1
                time.sleep(FAILOVER / 2)  # longer than a call about a lease may take
            return call(*arguments, **named)

        return answer

    for name in slow:
        monkeypatch.setattr(DynamoDBBackend, name, late(name, getattr(DynamoDBBackend, name)))
    application.stream.put(20)
    async with application.member("a"):
        await application.all_is_read()
    assert slow == dict.fromkeys(slow, 0)
    assert "cannot use the lease table orders-app: DynamoDB has not answered within" in caplog.text


@pytest.mark.long
async def test_a_table_of_another_stream_is_refused(application: Application) -> None:
    async with application.member("a"):
        await until(lambda: len(application.leases()) == 4)
    application.stream.server.create_stream("second", 1)
    sentence = await refused(application, application.table(), stream="second")
    assert "has leases of kinesis:arn:aws" in sentence
    assert "name another table" in sentence


async def test_a_table_that_is_none_of_leases_is_refused(application: Application) -> None:
    client = dynamo(application.stream)
    client.create_table(
        TableName="orders-app",
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
    )
    assert "its key is not leaseKey" in await refused(application, application.table())


async def test_leases_of_several_streams_are_refused(application: Application) -> None:
    await _put(application, "123456789012:orders:1700000000:shardId-000000000000")
    assert "leases of several streams" in await refused(application, application.table())


@pytest.mark.long
async def test_workers_of_an_older_kcl_are_refused_while_they_run(
    application: Application,
) -> None:
    async def renew() -> None:
        for counter in range(1, 100):
            await _put(
                application, FIRST, leaseCounter={"N": str(counter)}, leaseOwner={"S": "kcl"}
            )
            await asyncio.sleep(0.3)

    renewing = asyncio.create_task(renew())
    try:
        sentence = await refused(application, application.table())
    finally:
        renewing.cancel()
    assert sentence.startswith("kcl renews leases in the table 'orders-app'")
    assert "stop the workers of the KCL first" in sentence
    # When they are stopped, members go on.
    async with application.member("a") as stream:
        await until(lambda: _owned(stream) == 4)


async def _put(application: Application, key: str, **attributes: Any) -> None:
    client = dynamo(application.stream)
    tables = client.list_tables()["TableNames"]
    if "orders-app" not in tables:
        client.create_table(
            TableName="orders-app",
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
        )
    item = {
        "leaseKey": {"S": key},
        "leaseCounter": {"N": "1"},
        "checkpoint": {"S": "TRIM_HORIZON"},
        **attributes,
    }
    client.put_item(TableName="orders-app", Item=item)


@pytest.mark.long
async def test_the_second_process_of_one_name_ends_the_first(application: Application) -> None:
    first = asyncio.create_task(refused(application, application.table("pod-0")))
    await until(lambda: not first.done() and application.has_table())
    await until(lambda: len(application.leases()) == 4)
    async with application.member("pod-0") as stream:
        assert "another process has begun as the worker 'pod-0'" in await first
        await until(lambda: _owned(stream) == 4)


async def test_a_kcl_leader_decides_while_it_lives(application: Application) -> None:
    async def lead(version: str, milliseconds: str) -> None:
        await _put(
            application,
            "Leader",
            entityType={"S": "LEADER"},
            ownerName={"S": "kcl"},
            recordVersionNumber={"S": version},
            leaseDuration={"S": milliseconds},
        )

    await lead("1", "600000")
    async with application.member("a") as stream:
        await asyncio.sleep(1.5)
        assert _owned(stream) == 0
        await lead("2", "1000")  # and never again
        await until(lambda: _owned(stream) == 4)


async def test_a_member_makes_the_calls_that_its_policy_grants(application: Application) -> None:
    made: set[str] = set()
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    watched = aioboto3.Session(region_name=REGION, **keys)
    watched.events.register("before-call.dynamodb", lambda model, **_: made.add(model.name))
    application.stream.put(10)
    async with application.member("a", session=watched):
        await application.all_is_read()
        application.stream.server.split_shard("orders", FIRST)
        application.stream.put(200)
        await application.all_is_read()
    table = "arn:aws:dynamodb:eu-west-1:111122223333:table/orders-app"
    policy = iam_policy(
        "arn:aws:kinesis:eu-west-1:111122223333:stream/orders", table_arn=table, deploy=True
    )
    (granted,) = [one["Action"] for one in policy["Statement"] if one["Sid"] == "ShareShards"]
    # An item is read alone where a write was refused.
    assert {f"dynamodb:{name}" for name in made} | {"dynamodb:GetItem"} == set(granted)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "a b"}, "must be the name of a table of DynamoDB"),
        ({"name": 3}, "must be the name of a table of DynamoDB"),
        ({"worker": ""}, "must be a string, and not empty"),
        ({"worker": "Leader"}, "is the key of another item"),
        ({"worker": "shardId-000000000000"}, "is the key of another item"),
        ({"failover_time": 0.5}, "must be at least 1 second"),
        ({"failover_time": "10"}, "must be a number"),
        ({"handover_timeout": -1}, "must be more than 0 seconds"),
        ({"endpoint_url": 8000}, "must be a string"),
    ],
)
def test_options_are_checked(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        replace(LeaseTable(name="orders-app"), **options)
