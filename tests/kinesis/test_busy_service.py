"""A service that refuses to describe a stream because many readers begin at once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from fanout.errors import ServiceError
from fanout.kinesis import KinesisSource
from fanout.kinesis.aws.api import StreamDescription
from fanout.kinesis.opening import open_kinesis_connection
from fanout.testing.virtual_time.loop import simulate
from tests.kinesis.test_registration import refused

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SOURCE = KinesisSource(stream="orders", mode="polling")


class Account:
    """Allow so many calls in each second."""

    def __init__(self, *, a_second: int, code: str = "LimitExceededException") -> None:
        self._a_second = a_second
        self._code = code
        self._called: list[float] = []

    async def renew_credentials(self) -> None:
        raise NotImplementedError

    async def describe_stream(self) -> StreamDescription:
        now = asyncio.get_running_loop().time()
        self._called = [at for at in self._called if at > now - 1.0]
        if len(self._called) >= self._a_second:
            raise refused(self._code, "DescribeStreamSummary")
        self._called.append(now)
        return StreamDescription("orders", "arn", "ACTIVE", NOW, NOW, 24, 1, 1, None)


async def open_at_once(account: Any, readers: int) -> float:
    """Let readers open a stream at one moment; return how long it takes all of them."""

    async def open_one(number: int) -> None:
        async with open_kinesis_connection(SOURCE, account, Random(number)):
            pass

    async with asyncio.TaskGroup() as tasks:
        for number in range(readers):
            tasks.create_task(open_one(number))
    return asyncio.get_running_loop().time()


def test_a_hundred_landers_that_begin_at_once_all_describe_the_stream() -> None:
    assert 4.0 <= simulate(open_at_once, Account(a_second=20), 100) <= 30.0


def test_a_service_that_always_refuses_is_told_after_a_minute() -> None:
    async def main() -> float:
        with pytest.raises(ServiceError, match="the stream 'orders' cannot be described"):
            async with open_kinesis_connection(SOURCE, Account(a_second=0), Random(1)):  # type: ignore[arg-type]
                pass
        return asyncio.get_running_loop().time()

    assert 55.0 <= simulate(main) <= 66.0


def test_another_refusal_is_told_at_once() -> None:
    async def main() -> float:
        account: Any = Account(a_second=0, code="AccessDeniedException")
        with pytest.raises(ServiceError):
            async with open_kinesis_connection(SOURCE, account, Random(1)):
                pass
        return asyncio.get_running_loop().time()

    assert simulate(main) == 0.0
