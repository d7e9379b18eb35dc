from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from fanout.errors import SetupError
from fanout.landers import control_server
from fanout.landers.control_client import connect
from fanout.landers.control_handshake import (
    ControlCertificate,
    driver_tls,
    lander_tls,
    new_certificate,
    spark_encrypts,
)
from fanout.landers.control_server import ControlServer
from tests.landers.control_peers import SECRET, Served, echo, others, stranger

if TYPE_CHECKING:
    import ssl

HOST = "127.0.0.1"
UNKNOWN = "answers, but not as the driver of this query: "


@pytest.fixture(scope="module")
def made() -> ControlCertificate:
    return new_certificate()


@pytest.fixture(scope="module")
def driver(made: ControlCertificate) -> ssl.SSLContext:
    return driver_tls(made)


@pytest.fixture(scope="module")
def lander(made: ControlCertificate) -> ssl.SSLContext:
    return lander_tls(made.certificate)


async def test_messages_pass_over_tls(driver: ssl.SSLContext, lander: ssl.SSLContext) -> None:
    async with (
        ControlServer(HOST, 0, SECRET, echo, tls=driver) as server,
        connect(server.address, SECRET, tls=lander) as channel,
    ):
        for message in (b"one", b"x" * 2**20):
            await channel.send(message)
            assert await channel.receive() == b"echo " + message
        used = channel._connection.transport.get_extra_info("ssl_object")  # type: ignore[attr-defined]
        assert used.version() == "TLSv1.3"
    assert others() == set()


async def test_the_certificate_of_another_query_is_refused(driver: ssl.SSLContext) -> None:
    served = Served()
    other = lander_tls(new_certificate().certificate)
    async with ControlServer(HOST, 0, SECRET, served, tls=driver) as server:
        with pytest.raises(SetupError, match=UNKNOWN + r".*CERTIFICATE_VERIFY_FAILED"):
            async with connect(server.address, SECRET, tls=other):
                pass
        with pytest.raises(SetupError, match=UNKNOWN):
            async with connect(server.address, SECRET):
                pass
    assert served.count == 0


async def test_silent_strangers_keep_no_lander_out(
    driver: ssl.SSLContext, lander: ssl.SSLContext
) -> None:
    served = Served()
    async with AsyncExitStack() as stack:
        async with ControlServer(HOST, 0, SECRET, served, tls=driver) as server:
            flood = [await stack.enter_async_context(stranger(server)) for _ in range(100)]
            async with connect(server.address, SECRET, tls=lander) as channel:
                await (await served.channels.get()).send(b"welcome")
                assert await channel.receive() == b"welcome"
            assert await flood[0].rest() == b""
        assert await flood[-1].rest() == b""


async def test_a_stranger_in_the_handshake_of_tls_has_the_same_deadline(
    driver: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_server, "HANDSHAKE_SECONDS", 0.2)
    async with (
        ControlServer(HOST, 0, SECRET, Served(), tls=driver) as server,
        stranger(server) as silent,
    ):
        async with asyncio.timeout(30):
            assert await silent.rest() == b""


def test_the_key_is_not_shown(made: ControlCertificate) -> None:
    assert b"PRIVATE KEY" in made.key
    assert "PRIVATE" not in repr(made)
    assert "PRIVATE" not in made.certificate


def test_without_cryptography_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("fanout._exports.find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(SetupError) as raised:
        new_certificate()
    assert str(raised.value) == (
        "TLS between the driver and its landers needs cryptography, which is not installed: "
        "pip install 'fanout-streams[spark]'"
    )


@pytest.mark.parametrize(
    ("settings", "encrypts"),
    [
        ({}, False),
        ({"spark.ssl.enabled": "false", "spark.network.crypto.enabled": "false"}, False),
        ({"spark.ssl.enabled": "true"}, True),
        ({"spark.ssl.rpc.enabled": " TRUE "}, True),
        ({"spark.network.crypto.enabled": "true"}, True),
        ({"spark.authenticate.enableSaslEncryption": "true"}, True),
    ],
)
def test_tls_is_on_where_spark_encrypts(
    settings: dict[str, str],
    encrypts: bool,  # noqa: FBT001
) -> None:
    assert spark_encrypts(settings) is encrypts
