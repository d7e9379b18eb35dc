"""The first contact of each part of the library with listeners of a real broker that do not fit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fanout.errors import ServiceError
from fanout.kafka.cluster import Cluster
from fanout.kafka.reading.kafka_source import KafkaSource
from fanout.kafka.security import Security
from fanout.kafka.share.group_admin import describe_group
from fanout.kafka.share.source import KafkaShareSource
from fanout.kafka.shuffle.source import ShuffleSource
from fanout.kafka.shuffle.topic import ShuffleTopic, ensure_topic
from fanout.kafka.transactions.transactions import open_transactions
from tests.kafka.protocol.listeners import listening, silent
from tests.kafka.secured import PASSWORD, WRONG

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.kafka.secured import Secured

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SOON = 10.0  # a broken peer takes half a minute otherwise
HERE = Security(protocol="PLAINTEXT")
SASL_HERE = Security(
    protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="reader", password=PASSWORD
)
SCRAM_HERE = Security(protocol="SASL_PLAINTEXT", username="reader", password=PASSWORD)
NO_AUTHORITY = Security(username="reader", password=PASSWORD)


async def open_source(cluster: Cluster) -> None:
    async with KafkaSource(cluster=cluster, topics="orders").connect():
        pass


def address(cluster: Secured, listener: str) -> str:
    return {
        "PLAINTEXT": cluster.broker.bootstrap_servers,
        "SASL_SSL": str(cluster.users),
        "SSL": str(cluster.certificates),
        "SASL_PLAINTEXT": cluster.guarded,
    }[listener]


def client(cluster: Secured, kind: str) -> Security:
    ca_file = cluster.files.ca
    return {
        "PLAINTEXT": HERE,
        "SSL": Security(protocol="SSL", ca_file=ca_file),
        "SASL_PLAINTEXT": SASL_HERE,
        "SASL_SSL": cluster.login("SCRAM-SHA-512"),
    }[kind]


async def refusal(server: str, security: Security) -> str:
    async with asyncio.timeout(SOON):
        with pytest.raises(ServiceError) as caught:
            await open_source(Cluster(server, security=security, connect_timeout=600))
    assert "canary" not in str(caught.value)
    return str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize("kind", PROTOCOLS)
@pytest.mark.parametrize("listener", PROTOCOLS)
async def test_a_client_of_another_protocol_than_the_listener_learns_which_it_is(
    cluster: Secured, kind: str, listener: str
) -> None:
    server, security = address(cluster, listener), client(cluster, kind)
    if kind == listener and kind in {"PLAINTEXT", "SASL_SSL"}:
        await open_source(Cluster(server, security=security))
        return
    text = await refusal(server, security)
    assert text.startswith(f"the cluster cannot be reached: {server}: ")
    assert text.endswith(f"(tried with the protocol {kind})")
    if kind == listener == "SASL_PLAINTEXT":
        assert "the broker refuses the credentials, by PLAIN" in text
    elif listener == "SSL" and kind.endswith("SSL"):
        assert "where it asks for client certificates, set certificate_file" in text
    elif listener == "SSL":
        assert f"a listener with TLS answers; set the protocol to {kind[:-9]}SSL" in text
    else:
        assert f"a Kafka listener of the protocol {listener} answers" in text
        assert f"set the protocol to {listener}, or use the port of {kind}" in text


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_refused_credentials_are_final(cluster: Secured, mechanism: str) -> None:
    text = await refusal(str(cluster.users), cluster.login(mechanism, WRONG))
    assert f"the broker refuses the credentials, by {mechanism}: Authentication failed" in text


async def test_a_mechanism_that_the_listener_has_not_is_final(cluster: Secured) -> None:
    text = await refusal(cluster.guarded, SCRAM_HERE)
    assert "does not take the mechanism SCRAM-SHA-512; set the mechanism to one of PLAIN" in text


async def test_a_certificate_that_is_not_trusted_is_final(cluster: Secured) -> None:
    text = await refusal(str(cluster.users), NO_AUTHORITY)
    assert "its certificate is not trusted (unable to get local issuer certificate)" in text
    assert "pass its authority's as ca_file" in text


async def test_a_certificate_for_another_host_is_final(cluster: Secured) -> None:
    text = await refusal(f"localhost:{cluster.users.port}", cluster.login("PLAIN"))
    assert "its certificate is for another host (Hostname mismatch" in text


async def ensure(cluster: Cluster) -> None:
    topic = ShuffleTopic(name="s", partition_count=1, retention=None, replication_factor=1)
    await ensure_topic(cluster, topic)


async def use_transactions(cluster: Cluster) -> None:
    async with open_transactions(cluster):
        pass


async def open_shuffle(cluster: Cluster) -> None:
    async with ShuffleSource(KafkaSource(cluster=cluster, topics="s")).connect():
        pass


async def open_share(cluster: Cluster) -> None:
    async with KafkaShareSource(cluster=cluster, topics="s", group_id="g").connect():
        pass


@pytest.mark.parametrize(
    "contact",
    [
        open_source,
        open_shuffle,
        open_share,
        ensure,
        use_transactions,
        lambda cluster: describe_group(cluster, "g"),
    ],
)
async def test_every_first_contact_has_the_bound(
    contact: Callable[[Cluster], Awaitable[Any]],
) -> None:
    async with listening(silent) as server, asyncio.timeout(SOON):
        cluster = Cluster(str(server), security=HERE, connect_timeout=0.2)
        with pytest.raises(ServiceError, match=f"{server}: .* for connect_timeout=0.2 seconds"):
            await contact(cluster)
