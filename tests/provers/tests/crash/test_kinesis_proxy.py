from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.provers.crash.kinesis_proxy import open_kinesis_proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.provers.crash.kinesis_proxy import KinesisProxy

ANSWER = bytes(range(256)) * 20_000


@asynccontextmanager
async def fronted() -> AsyncIterator[KinesisProxy]:
    """Stand before a service that answers "?" with much and closes, and "." with little."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match await reader.read(1):
            case b"?":
                writer.write(ANSWER)
            case b".":
                writer.write(b".")
                await reader.read()
            case _:
                pass
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as service:
        port = service.sockets[0].getsockname()[1]
        async with open_kinesis_proxy("127.0.0.1", port) as front:
            yield front


async def connect(front: KinesisProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(front.url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def ask(front: KinesisProxy) -> bytes:
    reader, writer = await connect(front)
    writer.write(b"?")
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_what_a_service_answers_comes_whole_although_it_closes_then() -> None:
    async with fronted() as front:
        assert await ask(front) == ANSWER


@pytest.mark.parametrize("kill", [True, False])
async def test_a_connection_is_reset(kill: bool) -> None:  # noqa: FBT001 - a parameter
    async with fronted() as front:
        reader, writer = await connect(front)
        writer.write(b".")
        assert await reader.readexactly(1) == b"."
        await (front.kill() if kill else front.cut())
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


async def test_a_killed_front_refuses_until_it_is_back_where_it_was() -> None:
    async with fronted() as front:
        url = front.url
        await front.kill()
        with pytest.raises(ConnectionRefusedError):
            await connect(front)
        await front.start()
        assert front.url == url
        assert await ask(front) == ANSWER


async def test_a_front_that_was_cut_takes_new_connections() -> None:
    async with fronted() as front:
        await front.cut()
        assert await ask(front) == ANSWER
