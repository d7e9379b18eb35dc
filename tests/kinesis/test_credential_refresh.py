from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fanout.core.policy import Pace
from fanout.kinesis.aws.credentials import CredentialRefresh
from fanout.testing.virtual_time.loop import simulate

if TYPE_CHECKING:
    import pytest

CANARY = "canary-secret-key"


class Keys:
    """Count the renewals; each waits until the test lets it go."""

    def __init__(self, *, fail: Exception | None = None, held: bool = False) -> None:
        self.renewals = 0
        self.begun = asyncio.Event()
        self.may_go = asyncio.Event()
        if not held:
            self.may_go.set()
        self._fail = fail

    async def renew(self) -> None:
        self.renewals += 1
        self.begun.set()
        await self.may_go.wait()
        if self._fail is not None:
            raise self._fail


async def test_shards_that_are_refused_together_renew_the_credentials_once() -> None:
    keys = Keys(held=True)
    access = CredentialRefresh(keys.renew)
    names = [str(number) for number in range(1000)]
    for name in names:
        access.calling(name)
    async with asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(access.refused(name))
        await keys.begun.wait()
        keys.may_go.set()
    assert keys.renewals == 1


async def test_a_refusal_of_older_credentials_renews_nothing() -> None:
    keys = Keys()
    access = CredentialRefresh(keys.renew)
    access.calling("a")
    access.calling("b")
    await access.refused("a")
    await access.refused("b")
    assert keys.renewals == 1
    access.calling("b")
    await access.refused("b")
    assert keys.renewals == 2


async def test_after_three_refusals_in_a_row_the_next_call_is_made_slowly() -> None:
    access = CredentialRefresh(Keys().renew)
    paces = []
    for _ in range(5):
        access.calling("a")
        paces.append(await access.refused("a"))
    assert paces == [Pace.JITTER] * 3 + [Pace.SLOW] * 2
    access.calling("b")
    assert await access.refused("b") is Pace.JITTER


async def test_an_answer_forgets_the_refusals_of_that_caller() -> None:
    access = CredentialRefresh(Keys().renew)
    for _ in range(4):
        access.calling(None)
        await access.refused(None)
    access.calling(None)
    access.allowed(None)
    assert await access.refused(None) is Pace.JITTER


async def test_credentials_that_cannot_be_renewed_are_told_without_their_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys = Keys(fail=OSError(CANARY), held=True)
    access = CredentialRefresh(keys.renew)
    async with asyncio.TaskGroup() as tasks:
        for name in "abc":
            access.calling(name)
            tasks.create_task(access.refused(name))
        await keys.begun.wait()
        keys.may_go.set()
    assert keys.renewals == 1
    assert caplog.text.count("cannot be renewed, and are kept: OSError") == 1
    assert CANARY not in caplog.text


def test_a_renewal_that_hangs_is_given_up_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        keys = Keys(held=True)
        access = CredentialRefresh(keys.renew)
        access.calling("a")
        access.calling("b")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(access.refused("a"))
            tasks.create_task(access.refused("b"))
        assert keys.renewals == 1
        assert asyncio.get_running_loop().time() == 60

    simulate(main)
    assert "cannot be renewed, and are kept: TimeoutError" in caplog.text


async def test_a_renewal_that_fails_as_it_is_cancelled_does_not_swallow_the_cancellation() -> None:
    async def renew() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("the connection cannot be closed")

    access = CredentialRefresh(renew)
    access.calling("a")
    async with asyncio.TaskGroup() as tasks:
        refused = tasks.create_task(access.refused("a"))
        await asyncio.sleep(0)
        refused.cancel()
    assert refused.cancelled()


async def test_when_the_one_that_renews_is_cancelled_the_next_takes_over() -> None:
    keys = Keys(held=True)
    access = CredentialRefresh(keys.renew)
    access.calling("a")
    access.calling("b")
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(access.refused("a"))
        await keys.begun.wait()
        second = tasks.create_task(access.refused("b"))
        await asyncio.sleep(0)
        first.cancel()
        keys.may_go.set()
    assert keys.renewals == 2
    assert second.result() is Pace.JITTER
