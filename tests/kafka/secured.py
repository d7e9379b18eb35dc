"""A broker that asks who comes in, and lets some of them do nothing but what tests allow."""

from __future__ import annotations

import base64
import json
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from fanout.kafka.cluster import parse_servers
from fanout.kafka.security import Security
from fanout.testing.kafka.broker import KafkaBroker
from tests.kafka.certificates import Certificates, make_certificates

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PASSWORD, WRONG = "canary-password", "canary-wrong-password"
# Each test that grants permissions has a user of its own: none finds the permissions of another.
_GUARDED = ("writer", "job", "sharer", "examiner", "exact")


class Secured:
    """A broker with a listener that asks for a user, and one that asks for a certificate.

    A third one, `guarded`, is for users who may do nothing by themselves.
    """

    def __init__(self, broker: KafkaBroker, files: Certificates) -> None:
        self.broker = broker
        (self.users,) = parse_servers(broker.address("USERS"))
        (self.certificates,) = parse_servers(broker.address("CERTIFICATES"))
        self.guarded = broker.address("GUARDED")
        self.files = files

    def login(self, mechanism: Any, password: str = PASSWORD) -> Security:
        return Security(
            mechanism=mechanism, username="reader", password=password, ca_file=self.files.ca
        )

    def guarded_login(self, user: str) -> Security:
        return Security(
            protocol="SASL_PLAINTEXT", mechanism="PLAIN", username=user, password=PASSWORD
        )


@contextmanager
def run_cluster(directory: Path, session: float | None = None) -> Iterator[Secured]:
    """Run it, with files in a directory; users have to log in again after so many seconds."""
    files = make_certificates(directory)
    modules = "org.apache.kafka.common.security"
    plain = f"{modules}.plain.PlainLoginModule required"
    guarded = " ".join(f'user_{user}="{PASSWORD}"' for user in _GUARDED)
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:reader;User:CN=reader",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(files.broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files.ca),
        "listener.name.certificates.ssl.client.auth": "required",
        "listener.name.users.sasl.enabled.mechanisms": (
            "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
        ),
        "listener.name.users.plain.sasl.jaas.config": f'{plain} user_reader="{PASSWORD}";',
        "listener.name.users.scram-sha-256.sasl.jaas.config": (
            f"{modules}.scram.ScramLoginModule required;"
        ),
        "listener.name.users.scram-sha-512.sasl.jaas.config": (
            f"{modules}.scram.ScramLoginModule required;"
        ),
        "listener.name.users.oauthbearer.sasl.jaas.config": (
            f"{modules}.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";'
        ),
        "listener.name.guarded.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.guarded.plain.sasl.jaas.config": f"{plain} {guarded};",
    }
    if session is not None:
        settings |= {
            f"listener.name.users.{mechanism}.connections.max.reauth.ms": f"{session * 1000:.0f}"
            for mechanism in ("scram-sha-512", "oauthbearer")
        }
    listeners = {"USERS": "SASL_SSL", "CERTIFICATES": "SSL", "GUARDED": "SASL_PLAINTEXT"}
    with KafkaBroker(settings=settings, listeners=listeners) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            credential = ScramCredentialInfo(mechanism, 4096)
            change = UserScramCredentialUpsertion("reader", credential, PASSWORD.encode())
            for done in admin.alter_user_scram_credentials([change]).values():
                done.result(10)
        yield Secured(broker, files)


async def token(lifetime: timedelta = timedelta(hours=1)) -> str:
    """Return an unsigned token, which a broker of tests accepts."""
    now = datetime.now(UTC)
    claims = {"sub": "reader", "iat": int(now.timestamp()), "exp": (now + lifetime).timestamp()}

    def encode(part: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")

    return f"{encode({'alg': 'none'})}.{encode(claims)}."
