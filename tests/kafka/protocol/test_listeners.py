"""Connections to the servers of these tests are closed, whenever a test ends."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from tests.kafka.protocol.listeners import listening, silent


@pytest.mark.parametrize("turns", range(8))
async def test_no_connection_is_left_by_a_test_that_ends_early(turns: int) -> None:
    with socket.socket() as client:
        async with listening(silent) as server:
            client.connect((server.host, server.port))
            for _ in range(turns):  # of the loop, in which the server begins to serve it
                await asyncio.sleep(0)
        for _ in range(4):
            await asyncio.sleep(0)
        gc.collect()  # what is left would warn
