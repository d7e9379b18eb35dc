"""Write to brokers that authenticate and authorize writers."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (
    AclOperation,
    ResourceType,
)

from fanout.errors import ServiceError
from fanout.kafka.cluster import Cluster
from fanout.kafka.security import Security
from fanout.kafka.transactions.commit_token import Incarnation
from fanout.kafka.writing.producer_id import Idempotent, Transactional, Unconfirmed
from fanout.kafka.writing.writer import open_writer
from tests.kafka.certificates import KEY_PASSWORD
from tests.kafka.secured import PASSWORD, WRONG, token
from tests.support.kafka.brokers import create
from tests.support.kafka.permissions import grant, permission
from tests.support.kafka.writing import records, values

if TYPE_CHECKING:
    from tests.kafka.secured import Secured


def securities(cluster: Secured) -> dict[str, tuple[str, Security]]:
    files = cluster.files
    users, certificates = str(cluster.users), str(cluster.certificates)
    own = Security(
        protocol="SSL",
        ca_file=files.ca,
        certificate_file=files.reader,
        key_file=files.reader_key,
        key_password=KEY_PASSWORD,
    )
    return {
        "PLAIN": (users, cluster.login("PLAIN")),
        "SCRAM-SHA-256": (users, cluster.login("SCRAM-SHA-256")),
        "SCRAM-SHA-512": (users, cluster.login("SCRAM-SHA-512")),
        "OAUTHBEARER": (users, Security(token=token, ca_file=files.ca)),
        "SSL": (certificates, own),
    }


@pytest.mark.parametrize(
    "how",
    [
        "SCRAM-SHA-512",
        "SSL",
        *(
            pytest.param(how, marks=pytest.mark.long)
            for how in ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")
        ),
    ],
)
async def test_who_is_let_in_may_write(
    cluster: Secured, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await create(cluster.broker, f"w-{how}")
    servers, security = securities(cluster)[how]
    async with open_writer(Cluster(servers, security=security), mode=Idempotent()) as writer:
        await writer.write(records(f"w-{how}", [b"x", bytes(1 << 19)]))
        await writer.flush()
    assert await values(cluster.broker, f"w-{how}") == [b"x", bytes(1 << 19)]
    assert PASSWORD not in caplog.text


async def test_a_wrong_password_is_an_error_at_once(cluster: Secured) -> None:
    security = cluster.login("SCRAM-SHA-512", WRONG)
    with pytest.raises(ServiceError, match=r"cannot be reached: .*SaslAuth") as caught:
        async with open_writer(Cluster(str(cluster.users), security=security), mode=Idempotent()):
            raise AssertionError
    assert "canary" not in "".join(traceback.format_exception(caught.value))


def opening(cluster: Secured, mode: Any) -> Any:
    return open_writer(
        Cluster(cluster.guarded, security=cluster.guarded_login("writer")), mode=mode
    )


JOINED = Transactional("w-guarded", Incarnation(0, 0))


async def test_who_may_not_write_is_told_what_to_grant(cluster: Secured) -> None:
    broker = cluster.broker
    for topic in ("w-seen", "w-unseen", "w-allowed"):
        await create(broker, topic)
    with pytest.raises(ServiceError, match=r"assigns no producer id: .*IDEMPOTENT_WRITE"):
        async with opening(cluster, Idempotent()):
            raise AssertionError
    async with opening(cluster, Unconfirmed()) as writer:
        with pytest.raises(ServiceError, match=r"w-unseen: grant the principal WRITE on the topic"):
            await writer.write(records("w-unseen", [b"x"]))
    for topic, operation in (("w-allowed", AclOperation.WRITE), ("w-seen", AclOperation.DESCRIBE)):
        grant(broker, permission("writer", ResourceType.TOPIC, topic, operation))
    async with opening(cluster, Idempotent()) as writer:
        await writer.write(records("w-allowed", [b"x"]))
        await writer.flush()
        await writer.write(records("w-seen", [b"x"]))
        with pytest.raises(ServiceError, match=r"w-seen-0: grant the principal WRITE on the topic"):
            await writer.flush()
    async with opening(cluster, JOINED) as writer:
        await writer.write(records("w-allowed", [b"x"]))
        with pytest.raises(ServiceError, match="grant the principal WRITE on the transactional id"):
            await writer.flush()
    assert await values(broker, "w-allowed") == [b"x"]
