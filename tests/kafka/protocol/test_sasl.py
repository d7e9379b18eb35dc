"""The messages of SASL, against those of the RFCs, and of brokers before Kafka 1.0."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiokafka.protocol.admin import ApiVersionResponse_v0, SaslHandShakeResponse_v0

from fanout.kafka.cluster import Server
from fanout.kafka.protocol.broker_connection import BrokerConnection
from fanout.kafka.protocol.sasl import authenticate
from fanout.kafka.security import Security
from tests.kafka.protocol.peer import frame

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

# The example of RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
BOTH = f"{NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CHALLENGE = f"r={BOTH},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = f"c=biws,r={BOTH},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SIGNATURE = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
SCRAM = Security(protocol="SASL_SSL", mechanism="SCRAM-SHA-256", username="user", password="pencil")
PLAIN = Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="me", password="pencil")


def script(*answers: str) -> tuple[list[str], Callable[[bytes], Awaitable[bytes]]]:
    """Return the messages that a broker gets, and how it answers them."""
    got: list[str] = []

    async def exchange(message: bytes) -> bytes:
        got.append(message.decode())
        return answers[len(got) - 1].encode()

    return got, exchange


async def test_a_password_is_proved_by_the_messages_of_the_rfc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: NONCE)
    got, exchange = script(CHALLENGE, SIGNATURE)
    await authenticate(SCRAM, exchange)
    assert got == [f"n,,n=user,r={NONCE}", PROOF]


@pytest.mark.parametrize(
    ("challenge", "signature", "why"),
    [
        (CHALLENGE, f"v={'A' * 43}=", "the broker does not know the password"),
        (CHALLENGE, "", "the broker does not know the password"),
        ("r=another,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "", "challenge is not for this client"),
        (f"r={BOTH},s=W22Z", "", "invalid literal"),
    ],
)
async def test_a_broker_that_does_not_know_the_password_is_refused(
    monkeypatch: pytest.MonkeyPatch, challenge: str, signature: str, why: str
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: NONCE)
    _, exchange = script(challenge, signature)
    with pytest.raises(ValueError, match=why):
        await authenticate(SCRAM, exchange)


@pytest.mark.parametrize("answers", [("",), ("{}", "")])
async def test_the_reason_of_a_refused_token_is_confirmed(answers: tuple[str, ...]) -> None:
    async def token() -> str:
        return "abc"

    got, exchange = script(*answers)
    await authenticate(Security(protocol="SASL_SSL", token=token), exchange)
    assert got == ["n,,\x01auth=Bearer abc\x01\x01", "\x01"][: len(answers)]


async def test_tokens_have_no_header_before_kafka_1_0() -> None:
    answers = [
        frame(1, ApiVersionResponse_v0(0, [(17, 0, 0)]).encode()),
        frame(2, SaslHandShakeResponse_v0(0, ["PLAIN"]).encode()),
        (0).to_bytes(4),
    ]
    got = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            got.append(await reader.readexactly(int.from_bytes(await reader.readexactly(4))))
            writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address = Server(*server.sockets[0].getsockname())
        connection = BrokerConnection(
            address, PLAIN, None, client_id="me", request_timeout=40.0, max_idle=60.0
        )
        await connection.connect()
        await connection.close()
    assert got[-1] == b"me\0me\0pencil"
