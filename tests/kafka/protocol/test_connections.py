from __future__ import annotations

import asyncio
import platform
import subprocess
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from fanout.core.cancellation import TaskScope
from fanout.kafka.cluster import Server
from fanout.kafka.protocol.connections import CallTimeouts, Connections, Lane
from fanout.kafka.security import Security
from tests.support.virtual_time import in_virtual_time

# What answers of Fetch take and leave, over and over; prints the pages that it had to get anew.
_ANSWERS = """
import resource
from fanout.kafka.protocol.connections import Connections

if {connect}:
    Connections([], security=None, context=None, client_id="", options=None, scope=None)
pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(15):
    frame = bytearray({size})
    parts = [bytes(frame[at : at + {size} // 4]) for at in range(0, {size}, {size} // 4)]
    del frame, parts
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages)
"""


@pytest.mark.long
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another library keeps its own way")
@pytest.mark.parametrize("size", [4 << 20, 20 << 20])
def test_the_memory_of_one_answer_is_used_for_the_next(size: int) -> None:
    assert _pages(size, connect=True) < _pages(size, connect=False) / 5


def _pages(size: int, *, connect: bool) -> int:
    command = [sys.executable, "-c", _ANSWERS.format(connect=connect, size=size)]
    return int(subprocess.check_output(command))  # noqa: S603 - our own script


@in_virtual_time
async def test_a_connection_that_hangs_is_replaced_when_its_session_ends() -> None:
    async with TaskScope() as scope:
        connections = Connections(
            (Server("127.0.0.1", 1),),
            security=Security(protocol="PLAINTEXT"),
            context=None,
            client_id="test",
            options=CallTimeouts(1.0),
            scope=scope,
        )
        old: Any = SimpleNamespace(finish=asyncio.Event().wait, close=AsyncMock())
        opened: Any = AsyncMock()
        connections._open_connection = opened  # type: ignore[method-assign]
        begun = asyncio.get_running_loop().time()
        new = await connections._renew(Server("127.0.0.1", 1), Lane.CALLS, old)
        assert asyncio.get_running_loop().time() == begun + 1
        assert new is opened.return_value
        old.close.assert_awaited_once()
