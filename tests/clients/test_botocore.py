"""boto3 and aioboto3 with every operation."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import aioboto3
import boto3
import pytest
from botocore import xform_name

from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.clients.every_operation import every_operation
from tests.clients.table import calls, calls_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[KinesisServer]:
    with KinesisServer(KinesisRules.fast()) as server:
        yield server


def test_boto3(server: KinesisServer, caplog: pytest.LogCaptureFixture) -> None:
    def call(operation: str, arguments: dict[str, Any]) -> Any:
        answer = getattr(client, xform_name(operation))(**arguments)
        if "EventStream" not in answer:
            return answer
        with closing(answer["EventStream"]) as events:
            return next(iter(events))["SubscribeToShardEvent"]

    with (
        closing(boto3.client("kinesis", **server.client_options)) as client,
        calls(caplog) as seen,
        suppress(StopIteration),
    ):
        steps = every_operation()
        following = next(steps)
        while True:
            following = steps.send(call(*following))
    assert seen == calls_of("boto3")


async def test_aioboto3(server: KinesisServer, caplog: pytest.LogCaptureFixture) -> None:
    async def call(operation: str, arguments: dict[str, Any]) -> Any:
        answer = await getattr(client, xform_name(operation))(**arguments)
        if "EventStream" not in answer:
            return answer
        with closing(answer["EventStream"]) as events:
            return (await anext(aiter(events)))["SubscribeToShardEvent"]

    async with aioboto3.Session().client("kinesis", **server.client_options) as client:
        with calls(caplog) as seen, suppress(StopIteration):
            steps = every_operation()
            following = next(steps)
            while True:
                following = steps.send(await call(*following))
    assert seen == calls_of("aioboto3")
