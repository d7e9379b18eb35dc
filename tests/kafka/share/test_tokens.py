"""Members of a share group get tokens (OAUTHBEARER), on a broker that asks for them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fanout.errors import FanOutError, ServiceError
from fanout.kafka.cluster import Cluster
from fanout.kafka.security import Security
from tests.kafka.secured import token
from tests.support.kafka.sharing import Group, first, new_group, offsets
from tests.support.kafka.topics import eventually
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kafka.secured import Secured

RAISED = "the function that returns a token raised OSError"


class Tokens:
    """A user's function: it gives short tokens, fails, or does not return."""

    def __init__(self) -> None:
        self.given: list[str] = []
        # A broker refuses a connection that authenticates again within a second, and the client
        # does so when nine tenths of a token's time are over.
        self.lifetime = timedelta(seconds=8)
        self.failure: Exception | None = None
        self.hangs = False
        self.hanging = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self) -> str:
        if self.failure is not None:
            raise self.failure
        if self.hangs:
            self.hanging.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        self.given.append(await token(self.lifetime))
        return self.given[-1]


def options(
    cluster: Secured, tokens: Tokens, connect_timeout: float = 10.0, **more: Any
) -> dict[str, Any]:
    security = Security(token=tokens, ca_file=cluster.files.ca)
    there = Cluster(str(cluster.users), security=security, connect_timeout=connect_timeout)
    return {"cluster": there, **more}


def causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


async def a_group(cluster: Secured) -> Group:
    return await new_group(cluster.broker, 3)


@pytest.mark.long
async def test_a_member_reads_on_with_new_tokens_and_shows_none(
    cluster: Secured, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    group, tokens = await a_group(cluster), Tokens()
    tokens.lifetime = timedelta(seconds=30)
    async with group.open(**options(cluster, tokens)) as stream:
        batch = await first(stream)
        assert offsets(batch) == [0, 1, 2]
        await stream.acknowledge(batch)
        before = len(tokens.given)
        # Only the client asks now: every connection that the stream needs is open.
        await eventually(lambda: len(tokens.given) > before)
        await group.put(2)
        assert offsets(await first(stream)) == [3, 4]
        assert not stream.statistics().totals.resubscriptions
    shown = "".join((caplog.text, *capfd.readouterr()))
    assert [one for one in tokens.given if one in shown] == []


@pytest.mark.long
async def test_a_function_that_fails_ends_the_member_when_its_token_has_expired(
    cluster: Secured,
) -> None:
    group, tokens = await a_group(cluster), Tokens()
    async with group.open(**options(cluster, tokens, max_retries=0)) as stream:
        await stream.acknowledge(await first(stream))
        tokens.failure = OSError("canary")
        with pytest.raises(FanOutError, match=RAISED) as caught:
            await first(stream)
    assert tokens.failure in causes(caught.value)
    assert "canary" not in str(caught.value)


@pytest.mark.long
async def test_a_function_that_fails_for_a_while_loses_nothing(cluster: Secured) -> None:
    group, tokens = await a_group(cluster), Tokens()
    async with group.open(**options(cluster, tokens)) as stream:
        await stream.acknowledge(await first(stream))
        tokens.failure = OSError("canary")
        await eventually(lambda: stream.statistics().totals.resubscriptions)
        tokens.failure, tokens.lifetime = None, timedelta(minutes=1)
        await group.put(2)
        assert offsets(await first(stream)) == [3, 4]


@pytest.mark.long
async def test_a_token_that_is_refused_for_a_while_loses_nothing(cluster: Secured) -> None:
    group, tokens = await a_group(cluster), Tokens()
    async with group.open(**options(cluster, tokens)) as stream:
        await stream.acknowledge(await first(stream))
        tokens.failure = OSError("canary")
        await eventually(lambda: stream.statistics().totals.resubscriptions)
        tokens.failure, tokens.lifetime = None, timedelta(hours=-1)
        await eventually(lambda: "RefusedTokenError" in stream.statistics().totals.resubscriptions)
        tokens.lifetime = timedelta(minutes=1)
        await group.put(2)
        assert offsets(await first(stream)) == [3, 4]


@pytest.mark.long
async def test_a_stream_ends_at_once_while_a_token_is_waited_for(cluster: Secured) -> None:
    group, tokens = await a_group(cluster), Tokens()
    async with AsyncExitStack() as stack:
        stream = await stack.enter_async_context(group.open(**options(cluster, tokens)))
        await stream.acknowledge(await first(stream))
        tokens.hangs = True
        async with asyncio.timeout(PATIENCE):
            await tokens.hanging.wait()
        assert not tokens.cancelled.is_set()
        async with asyncio.timeout(20):  # a call for a token may take 30 seconds
            await stack.aclose()
    assert tokens.cancelled.is_set()


@pytest.mark.long
async def test_a_function_that_fails_at_first_is_an_error_at_once(cluster: Secured) -> None:
    group, tokens = await a_group(cluster), Tokens()
    tokens.failure = OSError("canary")
    with pytest.raises(ServiceError, match=RAISED) as caught:
        async with group.open(**options(cluster, tokens, connect_timeout=4.0)):
            pass
    assert tokens.failure in causes(caught.value)
