"""The tokens of a share group's client, without a client: a thread asks as librdkafka does."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import KafkaConnectionError

from fanout.errors import OptionError
from fanout.kafka.share.client_tokens import ClientTokens
from tests.kafka.secured import token

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

RAISED = "the function that returns a token raised OSError"


async def ask(tokens: ClientTokens) -> tuple[str, float]:
    """Ask for a token as librdkafka does, from a thread."""
    return await asyncio.to_thread(tokens, "")


def given(*answers: str | Exception) -> Callable[[], Awaitable[Any]]:
    """Return a user's function that returns or raises one after the other."""
    left = iter(answers)

    async def provide() -> str:
        await asyncio.sleep(0)
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return provide


def seconds_from_now(expires: float) -> float:
    return expires - datetime.now(UTC).timestamp()


async def test_the_first_token_is_there_and_the_next_comes_from_the_loop() -> None:
    loops = []

    async def provide() -> str:
        loops.append(asyncio.get_running_loop())
        return f"token-{len(loops)}"

    tokens = ClientTokens(provide, timeout=30)
    await tokens.get_first()
    assert len(loops) == 1
    assert [(await ask(tokens))[0] for _ in range(3)] == ["token-1", "token-2", "token-3"]
    assert set(loops) == {asyncio.get_running_loop()}


async def test_a_token_that_says_when_it_expires_is_asked_for_again_before() -> None:
    tokens = ClientTokens(lambda: token(timedelta(hours=2)), timeout=30)
    await tokens.get_first()
    for _ in range(2):
        _, expires = await ask(tokens)
        assert seconds_from_now(expires) == pytest.approx(7200, abs=60)


@pytest.mark.parametrize("text", ["opaque", "a.b.c", "a.W10.c", "a.eyJleHAiOiJuZXZlciJ9.c", ""])
async def test_any_other_token_is_asked_for_within_five_minutes(text: str) -> None:
    tokens = ClientTokens(given(text), timeout=30)
    await tokens.get_first()
    found, expires = await ask(tokens)
    assert found == text
    assert seconds_from_now(expires) == pytest.approx(300, abs=60)


async def test_whether_a_token_has_expired_is_for_the_broker_to_say() -> None:
    tokens = ClientTokens(lambda: token(timedelta(hours=-1)), timeout=30)
    await tokens.get_first()
    _, expires = await ask(tokens)
    assert seconds_from_now(expires) > 0


async def test_an_error_of_the_function_is_typed_and_has_its_cause() -> None:
    tokens = ClientTokens(given(OSError("canary")), timeout=30)
    with pytest.raises(KafkaConnectionError, match=RAISED) as caught:
        await tokens.get_first()
    assert isinstance(caught.value.__cause__, OSError)
    assert "canary" not in str(caught.value)
    with pytest.raises(OptionError, match="the token must be a string, not int"):
        await ClientTokens(given(7), timeout=30).get_first()  # type: ignore[arg-type]


async def test_a_function_that_takes_too_long_is_an_error() -> None:
    async def hang() -> str:
        await asyncio.Event().wait()
        return ""

    tokens = ClientTokens(hang, timeout=0.01)
    says = "the function that returns a token took more than 0.01 seconds"
    with pytest.raises(KafkaConnectionError, match=says):
        await tokens.get_first()
    with pytest.raises(KafkaConnectionError, match=says):
        await ask(tokens)


async def test_a_failure_counts_when_the_last_token_has_expired(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr("fanout.kafka.share.client_tokens.time.monotonic", lambda: now[0])
    failure = OSError("canary")
    tokens = ClientTokens(given("canary-1", failure, "canary-2", failure), timeout=30)
    await tokens.get_first()  # each is valid for 300 seconds
    await ask(tokens)
    with pytest.raises(KafkaConnectionError):
        await ask(tokens)
    now[0] = 299.0
    tokens.raise_if_expired()
    await ask(tokens)
    with pytest.raises(KafkaConnectionError):
        await ask(tokens)
    now[0] = 598.0
    tokens.raise_if_expired()
    now[0] = 599.0
    with pytest.raises(KafkaConnectionError, match=RAISED) as caught:
        tokens.raise_if_expired()
    assert caught.value.__cause__ is failure
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert all(record.getMessage().endswith(RAISED) for record in caplog.records)


async def test_closing_cancels_a_call_and_refuses_others() -> None:
    calls = []
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def provide() -> str:
        calls.append(1)
        if len(calls) == 1:
            return "first"
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    tokens = ClientTokens(provide, timeout=30)
    await tokens.get_first()
    await ask(tokens)
    asking = asyncio.create_task(ask(tokens))
    await began.wait()
    tokens.close()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert cancelled.is_set()
    with pytest.raises(KafkaConnectionError, match="leaves its group"):
        await ask(tokens)
    assert len(calls) == 2


async def test_cancelling_the_first_call_cancels_the_function() -> None:
    began, cancelled = asyncio.Event(), asyncio.Event()

    async def provide() -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    task = asyncio.create_task(ClientTokens(provide, timeout=30).get_first())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()
