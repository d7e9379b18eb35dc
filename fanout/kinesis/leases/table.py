"""The table of leases in DynamoDB: items that are read, and written under conditions.

Each call is made once. A retry would read the answer to a write that has been done as a refusal,
because the condition no longer holds.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import msgspec
from botocore.exceptions import ClientError

from fanout.errors import ServiceError
from fanout.kinesis.aws.client_config import go_past_proxies, pinned_config
from fanout.kinesis.aws.credentials import hide_secrets
from fanout.kinesis.aws.endpoint import check_endpoint
from fanout.kinesis.aws.error_hints import ACCESS_DENIED, code_of, explained
from fanout.kinesis.aws.repeated_calls import RepeatedCalls
from fanout.kinesis.aws.session import open_session
from fanout.kinesis.leases.lease import KEY, OWNER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import aioboto3

    from fanout.kinesis.aws.credentials import RenewableCredentials
    from fanout.kinesis.aws.role import AssumedRole
    from fanout.kinesis.leases.lease import Attributes, Item, Value

INDEX: Final = "LeaseOwnerToLeaseKeyIndex"
"""The index by which workers of the KCL find their leases."""
_CREATING: Final = 120.0  # seconds; it takes some ten
_POLL: Final = 0.5
_SLOW: Final = 30.0  # seconds that a call about the table may take
_CALLS_AT_ONCE: Final = 50


class Items(Protocol):
    """What members ask of a table; errors of the service and of the network pass unchanged."""

    async def scan(self) -> Sequence[Item]:
        """Read all items, consistently."""

    async def get(self, key: str) -> Item | None:
        """Read one item, consistently; None where there is none."""

    async def create(self, item: Item) -> bool:
        """Write an item; return whether there was none of its key."""

    async def update(
        self,
        key: str,
        expected: Attributes,
        changes: Attributes,
        add: Mapping[str, int],
    ) -> Item | None:
        """Change an item if it has what is expected; return it as it is now.

        None stands for an attribute that is not there, or is removed. The answer is None where the
        condition does not hold.
        """

    async def delete(self, key: str, expected: Mapping[str, Value]) -> bool:
        """Delete an item if it has what is expected; return whether it did."""

    async def renew_credentials(self) -> None:
        """Find credentials again."""


def table_failure(name: str, error: Exception) -> ServiceError:
    """Build the error of a table that a member cannot go on with."""
    hint = ""
    if code_of(error) in ACCESS_DENIED:
        hint = "; `fanout iam-policy --table-arn` prints what a member needs"
    return ServiceError(f"the lease table {name!r} cannot be used: ", error, hint)


@final
class DynamoTable:
    """A table of DynamoDB."""

    def __init__(
        self, client: Any, name: str, credentials: RenewableCredentials, call_timeout: float
    ) -> None:
        self._client = client
        self._calls = RepeatedCalls(client, credentials)
        self._name = name
        self._credentials = credentials
        self._call_timeout = call_timeout

    async def renew_credentials(self) -> None:
        """Find credentials again."""
        await self._credentials.renew()

    async def ensure(self) -> None:
        """Have the table be there: create it, billed by request, unless it exists.

        Raises:
            ServiceError: If it cannot be created or used, or has another key.
        """
        status = await self._status()
        if status is None:
            await self._create()
        try:
            async with asyncio.timeout(_CREATING):
                while (status := await self._status()) != "ACTIVE":
                    if status not in {"CREATING", "UPDATING", None}:
                        raise ServiceError(f"the lease table {self._name!r} is {status}")
                    await asyncio.sleep(_POLL)
        except TimeoutError as error:
            text = f"the lease table {self._name!r} was not ready within {_CREATING:g} s"
            raise TimeoutError(text) from error

    async def _status(self) -> str | None:
        try:
            answer = await self._client.describe_table(TableName=self._name)
        except ClientError as error:
            if code_of(error) == "ResourceNotFoundException":
                return None
            raise
        table = answer["Table"]
        keys = [(each["AttributeName"], each["KeyType"]) for each in table["KeySchema"]]
        if keys != [(KEY, "HASH")]:
            raise ServiceError(
                f"the table {self._name!r} is no lease table: its key is not {KEY}; name another"
            )
        return str(table["TableStatus"])

    async def _create(self) -> None:
        index = {
            "IndexName": INDEX,
            "KeySchema": [
                {"AttributeName": OWNER, "KeyType": "HASH"},
                {"AttributeName": KEY, "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "KEYS_ONLY"},
        }
        try:
            await self._client.create_table(
                TableName=self._name,
                BillingMode="PAY_PER_REQUEST",
                KeySchema=[{"AttributeName": KEY, "KeyType": "HASH"}],
                AttributeDefinitions=[
                    {"AttributeName": name, "AttributeType": "S"} for name in (KEY, OWNER)
                ],
                GlobalSecondaryIndexes=[index],
            )
        except ClientError as error:
            if code_of(error) != "ResourceInUseException":  # another member was faster
                raise

    async def scan(self) -> Sequence[Item]:
        """Read all items, consistently."""
        found: list[Item] = []
        more: dict[str, Any] = {}
        while True:
            page = await self._call("Scan", ConsistentRead=True, **more)
            found += map(_item, page["Items"])
            if "LastEvaluatedKey" not in page:
                return found
            more = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    async def get(self, key: str) -> Item | None:
        """Read one item, consistently; None where there is none."""
        answer = await self._call("GetItem", Key={KEY: {"S": key}}, ConsistentRead=True)
        return _item(answer["Item"]) if "Item" in answer else None

    async def create(self, item: Item) -> bool:
        """Write an item; return whether there was none of its key."""
        return await self._if(
            "PutItem",
            Item={name: _attribute(value) for name, value in item.items()},
            ConditionExpression=f"attribute_not_exists({KEY})",
        )

    async def update(
        self,
        key: str,
        expected: Attributes,
        changes: Attributes,
        add: Mapping[str, int],
    ) -> Item | None:
        """Change an item if it has what is expected; see `Items`."""
        names = _Names()
        sets = [f"{names(n)} = {names.value(v)}" for n, v in changes.items() if v is not None]
        gone = [names(n) for n, v in changes.items() if v is None]
        adds = [f"{names(n)} {names.value(v)}" for n, v in add.items()]
        parts = {"SET": sets, "REMOVE": gone, "ADD": adds}
        condition = names.condition(expected)
        try:
            answer = await self._call(
                "UpdateItem",
                Key={KEY: {"S": key}},
                UpdateExpression=" ".join(f"{w} {', '.join(p)}" for w, p in parts.items() if p),
                ReturnValues="ALL_NEW",
                **({"ConditionExpression": condition} if condition else {}),
                **names.used,
            )
        except ClientError as error:
            if not _refused(error):
                raise
            return None
        return _item(answer["Attributes"])

    async def delete(self, key: str, expected: Mapping[str, Value]) -> bool:
        """Delete an item if it has what is expected; return whether it did."""
        names = _Names()
        return await self._if(
            "DeleteItem",
            Key={KEY: {"S": key}},
            ConditionExpression=names.condition(expected),
            **names.used,
        )

    async def _call(self, operation: str, **arguments: Any) -> Any:
        """Make one call about items, within the time that it may take."""
        try:
            async with asyncio.timeout(self._call_timeout):
                answer = await self._calls.call(operation, {"TableName": self._name, **arguments})
        except TimeoutError as error:
            text = f"DynamoDB has not answered within {self._call_timeout:.1f} s"
            raise TimeoutError(text) from error
        return msgspec.json.decode(answer)

    async def _if(self, operation: str, **arguments: Any) -> bool:
        try:
            await self._call(operation, **arguments)
        except ClientError as error:
            if not _refused(error):
                raise
            return False
        return True


@asynccontextmanager
async def open_table(
    name: str,
    *,
    region: str | None,
    endpoint_url: str | None,
    session: aioboto3.Session | None,
    role: AssumedRole | None,
    insecure: bool,
    call_timeout: float,
) -> AsyncIterator[DynamoTable]:
    """Open a client of one table; leaving the context closes it.

    The session is not changed. A call about items ends after `call_timeout` seconds. A role that
    may not be assumed is a ServiceError.
    """
    if endpoint_url is not None:
        check_endpoint(endpoint_url, insecure=insecure)
    with explained("DynamoDB cannot be called"):
        session, region = await open_session(session, region, role, services=("dynamodb", "sts"))
    config = pinned_config(
        attempts=1,
        connect_timeout=_SLOW,
        read_timeout=_SLOW,
        parameter_validation=False,
        max_pool_connections=_CALLS_AT_ONCE,
    )
    opening = session.client(
        "dynamodb", region_name=region, endpoint_url=endpoint_url, config=config
    )
    async with opening as client:
        check_endpoint(client.meta.endpoint_url, insecure=insecure)
        go_past_proxies(client)
        hide_secrets(client)
        credentials = await session.get_credentials()
        yield DynamoTable(client, name, credentials, call_timeout)


def _refused(error: ClientError) -> bool:
    return code_of(error) == "ConditionalCheckFailedException"


class _Names:
    """The names and values of one expression; `checkpoint` and others are reserved words."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._values: dict[str, Any] = {}

    def __call__(self, name: str) -> str:
        self._names[f"#{name}"] = name
        return f"#{name}"

    def value(self, value: Value) -> str:
        placeholder = f":v{len(self._values)}"
        self._values[placeholder] = _attribute(value)
        return placeholder

    def condition(self, expected: Attributes) -> str:
        return " AND ".join(
            f"attribute_not_exists({self(name)})"
            if value is None
            else f"{self(name)} = {self.value(value)}"
            for name, value in expected.items()
        )

    @property
    def used(self) -> Mapping[str, Any]:
        """The arguments of a call."""
        values = {"ExpressionAttributeValues": self._values} if self._values else {}
        return {"ExpressionAttributeNames": self._names, **values}


def _attribute(value: Value) -> Mapping[str, Any]:
    match value:
        case str():
            return {"S": value}
        case int() | float():
            return {"N": format(Decimal(str(value)), "f")}
        case _:
            return {"SS": sorted(value)}


def _item(attributes: Mapping[str, Mapping[str, Any]]) -> Item:
    """Read an item; what is no text, number or set of texts is left out."""
    found = {name: _value(value) for name, value in attributes.items()}
    return MappingProxyType({name: value for name, value in found.items() if value is not None})


def _value(attribute: Mapping[str, Any]) -> Value | None:
    match attribute:
        case {"S": str(text)}:
            return text
        case {"N": str(digits)}:
            return int(digits) if digits.lstrip("-").isdigit() else float(digits)
        case {"SS": texts}:
            return frozenset(texts)
        case _:
            return None
