from __future__ import annotations

import pickle  # noqa: TID251 - nothing is unpickled here
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from fanout.errors import OptionError
from fanout.kafka.cluster import Server
from fanout.kafka.security import Security

if TYPE_CHECKING:
    from pathlib import Path

LOGIN: dict[str, Any] = {"username": "reader", "password": "canary-password"}
HERE = [Server("127.0.0.1", 9092), Server("::1", 9092), Server("localhost", 9092)]
ELSEWHERE = [Server("kafka.example", 9092), Server("10.0.0.1", 9092)]


async def token() -> str:
    return "canary-token"


class Talkative:
    """A function that shows its secret."""

    async def __call__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return "canary-token"


def test_the_default_is_tls_with_scram() -> None:
    security = Security(**LOGIN)
    assert (security.protocol, security.sasl, security.tls) == ("SASL_SSL", "SCRAM-SHA-512", True)
    context = security.create_context()
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_a_token_is_oauthbearer() -> None:
    assert Security(token=token).sasl == "OAUTHBEARER"


@pytest.mark.parametrize("protocol", ["SSL", "PLAINTEXT"])
def test_a_protocol_without_sasl_has_no_mechanism(protocol: Any) -> None:
    assert Security(protocol=protocol).sasl is None


@pytest.mark.parametrize(
    "options", [{"protocol": "PLAINTEXT"}, {"protocol": "SASL_PLAINTEXT"} | LOGIN]
)
def test_plaintext_stays_on_this_machine_unless_it_is_said_in_so_many_words(
    options: dict[str, Any],
) -> None:
    for server in HERE:
        Security(**options).check_host(server.host)
    for server in ELSEWHERE:
        with pytest.raises(OptionError, match=f"{server.host} would be used without TLS"):
            Security(**options).check_host(server.host)
        Security(**options, insecure=True).check_host(server.host)
    assert Security(**options).create_context() is None


def test_tls_may_go_anywhere() -> None:
    for server in HERE + ELSEWHERE:
        Security(**LOGIN).check_host(server.host)
        Security(protocol="SSL").check_host(server.host)


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({}, "needs a username and a password, or a token"),
    ({"username": "reader"}, "needs a username and a password"),
    ({"password": "canary-password"}, "needs a username and a password"),
    (LOGIN | {"password": ""}, "needs a username and a password"),
    (LOGIN | {"token": token, "mechanism": "PLAIN"}, "leave token out"),
    (LOGIN | {"token": token}, "leave username and password out"),
    (LOGIN | {"mechanism": "OAUTHBEARER"}, "needs token="),
    ({"token": "canary-token"}, "token must be an async function"),
    (LOGIN | {"protocol": "SSL"}, "leave username and password out, or use SASL_SSL"),
    ({"protocol": "PLAINTEXT", "mechanism": "PLAIN"}, "leave mechanism out, or use SASL_PLAINTEXT"),
    ({"protocol": "PLAINTEXT", "ca_file": "ca.pem"}, "leave ca_file out, or use SSL"),
    (
        LOGIN | {"protocol": "SASL_PLAINTEXT", "ssl_context": ssl.create_default_context()},
        "leave ssl_context out, or use SASL_SSL",
    ),
    (
        {"protocol": "SSL", "ssl_context": ssl.create_default_context(), "ca_file": "ca.pem"},
        "ssl_context stands instead of files, so leave ca_file out",
    ),
    ({"protocol": "SSL", "ssl_context": "canary"}, "ssl_context must be an ssl.SSLContext"),
    ({"protocol": "SSL", "key_file": "key.pem"}, "key_file belongs to a certificate_file"),
    ({"protocol": "SSL", "key_password": "canary"}, "key_password belongs to a certificate_file"),
    ({"protocol": "SSL", "insecure": True}, "insecure=True allows a plaintext protocol"),
    ({"protocol": "TLS"}, "protocol='TLS' is not understood; use 'SASL_SSL' or"),
    (LOGIN | {"mechanism": "GSSAPI"}, "mechanism='GSSAPI' is not understood; use 'PLAIN' or"),
    (LOGIN | {"password": b"canary"}, "password must be a string, not bytes"),
    (LOGIN | {"username": 1}, "username must be a string, not int"),
]


@pytest.mark.parametrize(("options", "says"), CONTRADICTIONS)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        Security(**options)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("option", ["ca_file", "certificate_file"])
def test_a_file_that_cannot_be_used_is_named(option: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no certificate")
    for path in (broken, tmp_path / "missing.pem"):
        files: dict[str, Any] = {option: path}
        security = Security(protocol="SSL", **files)
        with pytest.raises(OptionError, match=f"^{option}=.*{path.name}.* cannot be used"):
            security.create_context()


def test_a_context_of_the_users_is_taken_as_it_is() -> None:
    context = ssl.create_default_context()
    assert Security(protocol="SSL", ssl_context=context).create_context() is context


def test_no_secret_is_shown_or_pickled() -> None:
    for security in (
        Security(**LOGIN),
        Security(token=Talkative()),
        Security(protocol="SSL", certificate_file="c.pem", key_password="canary-key"),
    ):
        assert "canary" not in repr(security) + str(security)
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(security)
