"""Landers that know the secret, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest

from fanout.errors import SetupError
from fanout.landers import websocket_channel
from fanout.landers.channel import ChannelClosedError
from fanout.landers.control_client import connect
from fanout.landers.control_server import ControlServer
from tests.landers.control_peers import SECRET, Received, Served, echo, others
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fanout.landers.channel import Channel

HOST = "127.0.0.1"
ROOT = Path(__file__).parents[2]


async def test_messages_pass_in_both_directions() -> None:
    async with (
        ControlServer(HOST, 0, SECRET, echo) as server,
        connect(server.address, SECRET) as channel,
    ):
        for message in (b"", b"one", bytes(range(256)), b"x" * 2**20, b"last"):
            await channel.send(message)
            assert await channel.receive() == b"echo " + message


async def test_several_landers_have_a_channel_each() -> None:
    async with (
        ControlServer(HOST, 0, SECRET, echo) as server,
        connect(server.address, SECRET) as first,
        connect(server.address, SECRET) as second,
    ):
        await first.send(b"1")
        await second.send(b"2")
        assert (await second.receive(), await first.receive()) == (b"echo 2", b"echo 1")


async def test_a_message_at_the_limit_passes_and_a_longer_one_is_refused() -> None:
    limit = websocket_channel.MAX_MESSAGE_BYTES
    received = Received()
    async with (
        ControlServer(HOST, 0, SECRET, received) as server,
        connect(server.address, SECRET) as channel,
    ):
        with pytest.raises(ValueError, match="exceeds 16777216"):
            await channel.send(bytes(limit + 1))
        await channel.send(bytes(limit))
        assert await received.messages.get() == bytes(limit)


async def test_a_longer_message_of_a_lander_ends_its_channel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received = Received()
    async with (
        ControlServer(HOST, 0, SECRET, received) as server,
        connect(server.address, SECRET) as channel,
    ):
        limit = websocket_channel.MAX_MESSAGE_BYTES
        monkeypatch.setattr(websocket_channel, "MAX_MESSAGE_BYTES", limit + 1)
        with suppress(ChannelClosedError):  # or it has been sent before it is refused
            await channel.send(bytes(limit + 1))
        assert isinstance(await received.messages.get(), ChannelClosedError)
        with pytest.raises(ChannelClosedError):
            await channel.receive()


async def test_a_lander_that_leaves_ends_the_channel_of_the_driver() -> None:
    received = Received()
    async with ControlServer(HOST, 0, SECRET, received) as server:
        async with connect(server.address, SECRET) as channel:
            await channel.send(b"sent before it left")
        assert await received.messages.get() == b"sent before it left"
        assert isinstance(await received.messages.get(), ChannelClosedError)
        for use in (channel.send(b""), channel.receive()):
            with pytest.raises(ChannelClosedError, match="the control channel has ended"):
                await use
        await channel.close()


async def test_a_driver_that_leaves_ends_the_channel_of_the_lander() -> None:
    served = Served()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ControlServer(HOST, 0, SECRET, served))
        async with connect(server.address, SECRET) as channel:
            await (await served.channels.get()).send(b"the last")
            await stack.aclose()
            assert served.ended.is_set()
            assert await channel.receive() == b"the last"
            with pytest.raises(ChannelClosedError):
                await channel.receive()
    assert others() == set()


async def test_a_connection_that_breaks_ends_both_channels() -> None:
    received = Received()
    async with (
        ControlServer(HOST, 0, SECRET, received) as server,
        connect(server.address, SECRET) as channel,
    ):
        channel._connection.transport.abort()  # type: ignore[attr-defined]
        with pytest.raises(ChannelClosedError):
            await channel.receive()
        assert isinstance(await received.messages.get(), ChannelClosedError)


async def test_the_channel_is_closed_when_its_serving_returns() -> None:
    async def greet(channel: Channel) -> None:
        await channel.send(b"hello and goodbye")

    async with (
        ControlServer(HOST, 0, SECRET, greet) as server,
        connect(server.address, SECRET) as channel,
    ):
        assert await channel.receive() == b"hello and goodbye"
        with pytest.raises(ChannelClosedError):
            await channel.receive()


async def test_an_error_while_serving_ends_the_context() -> None:
    async def fail(channel: Channel) -> None:
        await channel.receive()
        raise LookupError("a defect")

    with pytest.RaisesGroup(pytest.RaisesExc(LookupError, match="a defect")):
        async with (
            ControlServer(HOST, 0, SECRET, fail) as server,
            connect(server.address, SECRET) as channel,
        ):
            await channel.send(b"go")
            await asyncio.Event().wait()
    assert others() == set()


async def test_sending_waits_for_a_slow_receiver() -> None:
    served = Served()
    message = bytes(2**20)
    async with (
        ControlServer(HOST, 0, SECRET, served) as server,
        connect(server.address, SECRET) as lander,
    ):
        driver = await served.channels.get()
        sent = 0

        async def send_many() -> None:
            nonlocal sent
            for _ in range(25):
                await lander.send(message)
                sent += 1

        async with asyncio.TaskGroup() as group:
            senders = [group.create_task(send_many()) for _ in range(8)]
            transport = lander._connection.transport  # type: ignore[attr-defined]
            # The buffers of the operating system are full when no byte has left for 100 rounds.
            before: tuple[int, int] | None = None
            peak = 0
            while before != (now := (sent, transport.get_write_buffer_size())):
                before = now
                for _ in range(100):
                    await asyncio.sleep(0)
                    peak = max(peak, transport.get_write_buffer_size())
            assert sent < 200
            assert peak < 2 * len(message)
            for _ in range(200):
                assert await driver.receive() == message
        assert all(sender.done() for sender in senders)


@pytest.mark.parametrize("side", ["lander", "driver"])
async def test_closing_while_a_message_is_sent_ends_both(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket_channel, "CLOSE_SECONDS", 0.1)
    served = Served()
    async with (
        ControlServer(HOST, 0, SECRET, served) as server,
        connect(server.address, SECRET) as lander,
    ):
        channel = lander if side == "lander" else await served.channels.get()

        async def send_for_ever() -> None:
            while True:
                await channel.send(bytes(2**20))

        sender = asyncio.create_task(send_for_ever())
        while not channel._connection.paused:  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0)
        await channel.close()
        with pytest.raises(ChannelClosedError):
            await sender


async def test_a_port_that_nothing_listens_on_is_named() -> None:
    async with ControlServer(HOST, 0, SECRET, echo) as server:
        pass
    with pytest.raises(SetupError) as raised:
        async with connect(server.address, SECRET):
            pass
    port = server.address[1]
    assert f"cannot reach the driver at 127.0.0.1:{port}: " in str(raised.value)
    assert str(raised.value).endswith(
        "; let executors connect to that port, or name one that they may connect to: control_port="
    )
    assert isinstance(raised.value.__cause__, ConnectionRefusedError)


async def test_a_driver_that_does_not_answer_is_named() -> None:
    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    ended = asyncio.Event()
    async with await asyncio.start_server(ignore, HOST, 0) as silent:
        host, port = silent.sockets[0].getsockname()
        with pytest.raises(SetupError, match=rf"driver at {host}:{port}: no answer within 0\.2 s"):
            async with connect((host, port), SECRET, connect_timeout=0.2):
                pass
        # A connection that is still to be accepted would be left behind.
        async with asyncio.timeout(PATIENCE):
            await ended.wait()


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0\r\n", b"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:1/\r\n\r\n"]
)
async def test_another_program_on_the_port_is_named(answer: bytes) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(respond, HOST, 0) as other:
        address = other.sockets[0].getsockname()
        with pytest.raises(SetupError, match="answers, but not as the driver of this query: "):
            async with connect(address, SECRET):
                pass


async def test_a_port_that_is_taken_is_named() -> None:
    async with ControlServer(HOST, 0, SECRET, echo) as server:
        port = server.address[1]
        with pytest.raises(SetupError) as raised:
            async with ControlServer(HOST, port, SECRET, echo):
                pass
    assert str(raised.value).startswith(
        f"control_port={port}: the driver cannot listen on 127.0.0.1:{port}: "
    )
    assert str(raised.value).endswith("; choose a port that is free, or 0 for any")


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        ControlServer(HOST, 0, b"short", echo)


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[tuple[str, int]]:
    """Run a driver in a thread of its own: all tasks of the test's loop are the lander's."""
    addresses: SimpleQueue[tuple[str, int]] = SimpleQueue()
    ends: SimpleQueue[Callable[[], object]] = SimpleQueue()

    async def drive() -> None:
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        ends.put(lambda: loop.call_soon_threadsafe(end.set))
        async with ControlServer(HOST, 0, SECRET, echo) as server:
            addresses.put(server.address)
            await end.wait()
        assert others() == set()

    with ThreadPoolExecutor() as thread:
        running = thread.submit(asyncio.run, drive())
        yield addresses.get()
        ends.get()()
        running.result()


@pytest.mark.parametrize("steps", range(40))
async def test_a_lander_cancelled_at_any_await_leaves_nothing(
    steps: int, elsewhere: tuple[str, int]
) -> None:
    """Cancel after so many rounds of the loop: connecting, proving, sending, receiving, closing."""

    async def exchange() -> None:
        async with connect(elsewhere, SECRET) as channel:
            await channel.send(b"one")
            await channel.receive()

    task = asyncio.create_task(exchange())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    for _ in range(2):  # asyncio closes the socket of a connection that was being opened
        await asyncio.sleep(0)
    assert others() == set()


@pytest.mark.parametrize("steps", range(40))
async def test_a_driver_cancelled_at_any_await_leaves_nothing(steps: int) -> None:
    async def drive() -> None:
        async with (
            ControlServer(HOST, 0, SECRET, echo) as server,
            connect(server.address, SECRET) as channel,
        ):
            await channel.send(b"one")
            await channel.receive()

    task = asyncio.create_task(drive())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    for _ in range(2):
        await asyncio.sleep(0)
    assert others() == set()


@pytest.mark.parametrize("steps", range(8))
async def test_a_connection_that_comes_as_the_driver_leaves_is_over_with_it(steps: int) -> None:
    async with AsyncExitStack() as late:
        async with ControlServer(HOST, 0, SECRET, echo) as server:
            # The kernel completes the connection; the loop accepts it when it looks.
            stranger = late.enter_context(socket.socket())
            stranger.connect(server.address)
            for _ in range(steps):
                await asyncio.sleep(0)
        assert others() == set()


@pytest.mark.long
def test_the_package_needs_neither_spark_nor_a_source() -> None:
    code = (
        "import sys, pkgutil, importlib\n"
        "for name in ('pyspark', 'py4j', 'aioboto3', 'aiobotocore', 'aiokafka'):\n"
        "    sys.modules[name] = None\n"
        "import fanout.landers\n"
        "for module in pkgutil.iter_modules(fanout.landers.__path__):\n"
        "    importlib.import_module(f'fanout.landers.{module.name}')\n"
        "    print(module.name)\n"
    )
    answer = subprocess.run(  # noqa: S603 - our own interpreter and code
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert {"control_client", "control_server"} <= set(answer.stdout.split())
