"""TLS and SASL against a broker that requires them, and secrets in errors and logs."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import (
    AuthenticationFailedError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
)

from fanout.kafka.cluster import Cluster, Server
from fanout.kafka.security import Security
from tests.kafka.certificates import KEY_PASSWORD, make_certificates
from tests.kafka.secured import PASSWORD, WRONG, token
from tests.support.kafka.brokers import create, fetch, open_client, produce

if TYPE_CHECKING:
    from tests.kafka.secured import Secured

RECORD = b"canary-record"


async def enter(server: Server, security: Security) -> str:
    async with open_client(Cluster(str(server), security=security)) as transport:
        await transport.describe([])
        return transport.cluster_id


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_user_is_let_in_by_the_password(cluster: Secured, mechanism: Any) -> None:
    assert await enter(cluster.users, cluster.login(mechanism))


@pytest.mark.fault("Access is refused, at first or later")
@pytest.mark.fault("ApiVersions and SASL")
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_wrong_password_is_an_error_that_is_final(cluster: Secured, mechanism: Any) -> None:
    with pytest.raises(SaslAuthenticationFailed) as caught:
        await enter(cluster.users, cluster.login(mechanism, WRONG))
    assert not caught.value.retriable
    assert "canary" not in "".join(traceback.format_exception(caught.value))


async def test_a_token_lets_in_and_is_asked_for_with_each_connection(
    cluster: Secured,
) -> None:
    asked = []

    async def provide() -> str:
        asked.append(1)
        return await token()

    security = Security(token=provide, ca_file=cluster.files.ca)
    await enter(cluster.users, security)
    await enter(cluster.users, security)
    assert len(asked) == 2


@pytest.mark.fault("A token of OAuth expires, or cannot be had for a while")
async def test_a_token_that_has_expired_is_refused(cluster: Secured) -> None:
    security = Security(token=lambda: token(timedelta(hours=-1)), ca_file=cluster.files.ca)
    with pytest.raises(SaslAuthenticationFailed):
        await enter(cluster.users, security)


@pytest.mark.fault("A token of OAuth expires, or cannot be had for a while")
async def test_a_token_that_cannot_be_had_is_tried_again(cluster: Secured) -> None:
    async def fail() -> str:
        raise OSError("canary")

    with pytest.raises(KafkaConnectionError, match="returns a token raised OSError") as caught:
        await enter(cluster.users, Security(token=fail, ca_file=cluster.files.ca))
    assert caught.value.retriable


async def test_a_certificate_lets_in(cluster: Secured) -> None:
    files = cluster.files
    security = Security(
        protocol="SSL",
        ca_file=files.ca,
        certificate_file=files.reader,
        key_file=files.reader_key,
        key_password=KEY_PASSWORD,
    )
    assert await enter(cluster.certificates, security)
    context = security.create_context()
    own = Security(protocol="SSL", ssl_context=context)
    assert await enter(cluster.certificates, own)


@pytest.mark.parametrize("password", [None, WRONG])
async def test_an_encrypted_key_without_its_password_is_an_error_not_a_question(
    cluster: Secured, password: str | None
) -> None:
    security = Security(
        protocol="SSL",
        certificate_file=cluster.files.reader,
        key_file=cluster.files.reader_key,
        key_password=password,
    )
    with pytest.raises(ValueError, match="key_password cannot be used") as caught:
        security.create_context()
    assert "canary" not in "".join(traceback.format_exception(caught.value))


async def test_a_broker_that_asks_for_a_certificate_refuses_for_good(
    cluster: Secured,
) -> None:
    security = Security(protocol="SSL", ca_file=cluster.files.ca)
    with pytest.raises(AuthenticationFailedError, match="cannot authenticate each other") as caught:
        await enter(cluster.certificates, security)
    assert not caught.value.retriable


async def test_a_broker_that_nobody_vouches_for_is_refused(cluster: Secured, tmp_path: Any) -> None:
    other = await asyncio.to_thread(make_certificates, tmp_path / "other")
    for authority in (None, other.ca):
        security = Security(username="reader", password=PASSWORD, ca_file=authority)
        with pytest.raises(AuthenticationFailedError, match="CERTIFICATE_VERIFY_FAILED") as caught:
            await enter(cluster.users, security)
        assert isinstance(caught.value.__cause__, ssl.SSLError)


async def test_a_broker_of_another_name_is_refused(cluster: Secured) -> None:
    server = Server("localhost", cluster.users.port)
    with pytest.raises(AuthenticationFailedError, match="Hostname mismatch"):
        await enter(server, cluster.login("PLAIN"))


async def test_plaintext_to_a_listener_with_tls_is_an_error_not_a_hang(
    cluster: Secured,
) -> None:
    with pytest.raises(KafkaError):
        await enter(cluster.users, Security(protocol="PLAINTEXT"))


@pytest.mark.fault("Errors and the log show everything but passwords and records")
async def test_no_secret_and_no_record_is_logged(
    cluster: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    first = await create(cluster.broker, "secrets")
    await produce(cluster.broker, first, RECORD)
    tokens = []

    async def provide() -> str:
        tokens.append(await token())
        return tokens[-1]

    securities = [cluster.login(m) for m in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")]
    for security in (*securities, Security(token=provide, ca_file=cluster.files.ca)):
        async with open_client(Cluster(str(cluster.users), security=security)) as transport:
            await transport.describe(["secrets"])
            assert RECORD in bytes((await fetch(transport, first, 0)).batches)
    with pytest.raises(SaslAuthenticationFailed):
        await enter(cluster.users, cluster.login("PLAIN", WRONG))
    for shown in ("SaslAuthenticateRequest", "SaslAuthenticateResponse", "FetchRequest"):
        assert shown in caplog.text
    for secret in ("canary", *tokens, base64.b64encode(RECORD).decode()):
        assert secret not in caplog.text
