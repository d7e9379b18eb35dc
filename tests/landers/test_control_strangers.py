"""Strangers on the control port: they get nothing, and keep no lander out."""

from __future__ import annotations

import asyncio
import hmac
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from websockets.utils import accept_key

from fanout.errors import SetupError
from fanout.landers import control_server
from fanout.landers.control_client import connect
from fanout.landers.control_server import ControlListener, ControlServer
from tests.landers.control_peers import SECRET, UPGRADE, Received, Served, others, stranger
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator

HOST = "127.0.0.1"
OTHER_SECRET = b"another-secret-of-32-bytes-length"[:32]
MANY_HEADERS = b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 200 + b"\r\n"


@pytest.fixture
async def served() -> Served:
    return Served()


@pytest.fixture
async def server(served: Served, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ControlServer]:
    monkeypatch.setattr(control_server, "HANDSHAKE_SECONDS", PATIENCE)
    async with ControlServer(HOST, 0, SECRET, served) as server:
        yield server
    assert others() == set()


async def test_a_lander_with_a_wrong_secret_is_refused(
    server: ControlServer, served: Served
) -> None:
    with pytest.raises(SetupError, match="not as the driver of this query: it ended the conn"):
        async with connect(server.address, OTHER_SECRET):
            pass
    assert served.count == 0


@pytest.mark.parametrize("mirrored", [False, True])
async def test_a_driver_without_the_secret_is_refused(
    mirrored: bool,  # noqa: FBT001
) -> None:
    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer as a driver would that accepts every proof, and may send it back as its own."""
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = request.partition("Sec-WebSocket-Key: ")[2].partition("\r\n")[0]
        accept = accept_key(key)
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept.encode() + b"\r\n\r\n"
        )
        writer.write(bytes([0x82, 32]) + bytes(32))
        frame = await reader.readexactly(6 + 64)
        mask, masked = frame[2:6], frame[6:]
        answer = bytes(byte ^ mask[place % 4] for place, byte in enumerate(masked))
        writer.write(bytes([0x82, 32]) + (answer[32:] if mirrored else bytes(32)))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(pretend, HOST, 0) as other:
        with pytest.raises(SetupError, match="it does not know this query's secret"):
            async with connect(other.sockets[0].getsockname(), SECRET):
                pass


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\xff" * 50 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: driver\r\nContent-Length: 3\r\n\r\nabc",
        UPGRADE.replace(b"Version: 13", b"Version: 12"),
        MANY_HEADERS,
        b"GET /" + b"a" * 5_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,  # of TLS
    ],
    ids=["rubbish", "GET", "POST", "version", "headers", "path", "TLS"],
)
async def test_what_is_no_upgrade_gets_no_answer(
    sent: bytes, server: ControlServer, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_server, "HANDSHAKE_SECONDS", 0.2)
    async with stranger(server) as peer:
        peer.writer.write(sent)
        assert await peer.rest() == b""
    assert served.count == 0


@pytest.fixture
def deadline(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Make the deadline short; it has no effect before the event, also where all stands still."""
    monkeypatch.setattr(control_server, "HANDSHAKE_SECONDS", 0.2)
    turn_away, due = ControlListener._turn_away, asyncio.Event()

    def turn_away_when_due(listener: ControlListener, stranger: socket.socket) -> None:
        if not due.is_set():
            asyncio.get_running_loop().call_later(0.1, turn_away_when_due, listener, stranger)
        elif stranger in listener._strangers:
            turn_away(listener, stranger)

    monkeypatch.setattr(ControlListener, "_turn_away", turn_away_when_due)
    return due


@pytest.mark.parametrize("upgraded", [False, True])
async def test_silence_ends_after_the_deadline(
    upgraded: bool,  # noqa: FBT001
    server: ControlServer,
    served: Served,
    deadline: asyncio.Event,
) -> None:
    async with stranger(server) as peer:
        if upgraded:
            await peer.upgrade()
        deadline.set()
        assert await peer.rest() == b""
    assert served.count == 0


@pytest.mark.parametrize(
    "sent",
    [
        (b"", 2, None),
        (bytes(64), 2, None),
        (bytes(65), 2, None),
        (bytes(64), 1, None),
        (b"\xff" * 64, 1, None),
        (bytes(100), 2, 2**40),
        (bytes(100), 2, 2**24),
        (bytes(64), 3, None),
    ],
    ids=["empty", "zeros", "long", "text", "not UTF-8", "1 TiB", "16 MiB", "unknown opcode"],
)
async def test_what_is_no_proof_is_refused(
    sent: tuple[bytes, int, int | None],
    server: ControlServer,
    served: Served,
    deadline: asyncio.Event,
) -> None:
    async with stranger(server) as peer:
        await peer.upgrade()
        deadline.set()
        peer.send(*sent)
        rest = await peer.rest()
    assert rest == b"" or rest[0] == 0x88  # at most a close frame
    assert served.count == 0


async def test_a_stranger_cannot_fill_the_memory(server: ControlServer, served: Served) -> None:
    """A frame within the limit of messages, and pings without end, are cut after 4 KiB."""
    for sent in ((bytes(2**16), 2, 2**24), (b"ping", 9, None)):
        async with stranger(server) as peer:
            await peer.upgrade()
            for _ in range(1_000):
                peer.send(*sent)
            await peer.rest()  # long before the deadline
    assert served.count == 0


async def test_a_recorded_proof_is_refused(server: ControlServer, served: Served) -> None:
    async with stranger(server) as lander:
        nonce = await lander.upgrade()
        mine = bytes(range(32))
        label = b"fanout control channel 1, lander"
        proof = mine + hmac.digest(SECRET, label + nonce + mine, "sha256")
        lander.send(proof)
        answer = await lander.frame()
        await served.channels.get()
        async with stranger(server) as thief:
            assert await thief.upgrade() != nonce
            thief.send(proof)
            assert await thief.rest() == b""
        async with stranger(server) as thief:
            await thief.upgrade()
            thief.send(mine + answer[1])  # the driver's proof is not a lander's
            assert await thief.rest() == b""
    assert served.count == 1


async def test_text_after_the_proof_ends_the_channel() -> None:
    received = Received()
    async with (
        ControlServer(HOST, 0, SECRET, received) as server,
        connect(server.address, SECRET) as channel,
    ):
        await channel._connection.send("text")  # type: ignore[attr-defined]
        assert "sent text" in str(await received.messages.get())


async def test_a_flood_of_silent_strangers_keeps_no_lander_out(
    server: ControlServer, served: Served
) -> None:
    async with AsyncExitStack() as stack:
        flood = [await stack.enter_async_context(stranger(server)) for _ in range(200)]
        async with connect(server.address, SECRET) as lander:
            driver = await served.channels.get()
            await driver.send(b"welcome")
            assert await lander.receive() == b"welcome"
            bound = control_server.MAX_STRANGERS
            for early in flood[: 200 - bound]:
                assert await early.rest() == b""
            assert not any(late.reader.at_eof() for late in flood[-bound + 1 :])
            # The oldest went first, and the lander, who has proved itself, is no stranger.
            more = [await stack.enter_async_context(stranger(server)) for _ in range(100)]
            await flood[-1].rest()
            await more[0].rest()
            await lander.send(b"still here")
            assert await driver.receive() == b"still here"
    assert served.count == 1


async def test_strangers_are_gone_when_the_context_is_left(served: Served) -> None:
    async with AsyncExitStack() as stack:
        async with ControlServer(HOST, 0, SECRET, served) as server:
            silent = await stack.enter_async_context(stranger(server))
            upgraded = await stack.enter_async_context(stranger(server))
            await upgraded.upgrade()
        assert await silent.rest() == b""
        await upgraded.rest()
    assert others() == set()


async def test_neither_secret_nor_nonce_is_logged_or_shown(
    server: ControlServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with stranger(server) as peer:
        nonce = await peer.upgrade()
        peer.send(bytes(64))
        await peer.rest()
    with pytest.raises(SetupError) as raised:
        async with connect(server.address, OTHER_SECRET):
            pass
    async with connect(server.address, SECRET) as channel:
        await channel.send(b"canary message")
        shown = repr(channel) + repr(server) + str(raised.value) + repr(server.__dict__.keys())
    text = caplog.text + shown
    assert "refused a control connection from" in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    assert {record.name.partition(".")[0] for record in caplog.records} <= {"fanout", "asyncio"}
    for hidden in (SECRET, OTHER_SECRET, nonce, b"canary message"):
        for form in (hidden.hex(), hidden.hex(" "), repr(hidden)[2:-1], hidden.hex(" ")[:11]):
            assert form not in text
