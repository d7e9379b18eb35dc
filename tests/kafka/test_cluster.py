from __future__ import annotations

import pickle  # noqa: TID251 - what Spark does on the way to its workers
import ssl
from dataclasses import replace
from typing import Any

import pytest

from fanout.errors import OptionError
from fanout.kafka import KafkaSource
from fanout.kafka.cluster import Cluster, Server, parse_servers
from fanout.kafka.security import Security


@pytest.mark.parametrize(
    ("text", "server", "shown"),
    [
        ("kafka-1.example:9093", Server("kafka-1.example", 9093), "kafka-1.example:9093"),
        ("kafka", Server("kafka", 9092), "kafka:9092"),
        (" 127.0.0.1:1 ", Server("127.0.0.1", 1), "127.0.0.1:1"),
        ("[::1]:65535", Server("::1", 65535), "[::1]:65535"),
        ("[fe80::1]", Server("fe80::1", 9092), "[fe80::1]:9092"),
    ],
)
def test_a_server_is_a_host_and_a_port(text: str, server: Server, shown: str) -> None:
    assert parse_servers([text]) == (server,)
    assert str(server) == shown


def test_servers_stand_in_a_sequence_or_between_commas() -> None:
    both = (Server("a", 1), Server("b", 2))
    assert parse_servers("a:1, b:2") == parse_servers(["a:1", "b:2"]) == both


@pytest.mark.parametrize(
    "bad",
    [
        "",
        [],
        ["a:0"],
        ["a:65536"],
        ["a:x"],
        ["::1"],
        "a:1,,b:2",
        ["user:canary@a:1"],
        ["kafka://a:1"],
        [b"a:1"],
        ["a b"],
    ],
)
def test_anything_else_is_refused_and_not_quoted(bad: Any) -> None:
    with pytest.raises(OptionError, match="servers must") as caught:
        parse_servers(bad)
    assert "canary" not in str(caught.value)


PLAINTEXT = Security(protocol="PLAINTEXT")
SECRET = "canary-secret"


def test_a_cluster_has_its_servers_in_one_form() -> None:
    one = Cluster("localhost, 127.0.0.1:1", security=PLAINTEXT)
    assert one == Cluster(["localhost:9092", "127.0.0.1:1"], security=PLAINTEXT)
    assert one.servers == ("localhost:9092", "127.0.0.1:1")
    assert one.addresses == (Server("localhost", 9092), Server("127.0.0.1", 1))
    assert hash(one) == hash(replace(one))
    assert one.named("source").client_id == "fanout-source"


@pytest.mark.parametrize(
    ("servers", "options", "message"),
    [
        ("", {}, "must be 'host:port'"),
        ("http://here", {}, "must be 'host:port'"),
        ("broker:9092", {}, "without TLS"),
        ("localhost", {"client_id": None}, "client_id=None must be a string"),
        ("localhost", {"client_id": ""}, "client_id='' must be a string"),
        ("localhost", {"connect_timeout": 0}, "connect_timeout=0 must be more than 0 seconds"),
        ("localhost", {"connect_timeout": float("inf")}, "connect_timeout=inf must be"),
        ("localhost", {"connect_timeout": float("nan")}, "connect_timeout=nan must be"),
        ("localhost", {"connect_timeout": "5"}, "connect_timeout='5' must be a number"),
        ("localhost", {"security": None}, r"security must be a fanout\.kafka\.Security, or a"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_refused(
    servers: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        Cluster(servers, **{"security": PLAINTEXT, **options})


def test_a_function_that_returns_the_security_is_called_when_it_is_needed() -> None:
    cluster = Cluster("broker:9092", security=lambda: PLAINTEXT)
    assert cluster.load_security() is PLAINTEXT
    wrong: Any = lambda: "PLAINTEXT"  # noqa: E731 - shorter
    with pytest.raises(OptionError, match=r"must return a fanout\.kafka\.Security, not str"):
        Cluster("broker:9092", security=wrong).load_security()


@pytest.mark.parametrize(
    "secret",
    [
        Security(username="u", password=SECRET),
        Security(protocol="SSL", certificate_file="c.pem", key_password=SECRET),
        Security(protocol="SSL", ssl_context=ssl.create_default_context()),
    ],
    ids=["password", "key_password", "ssl_context"],
)
def test_a_secret_is_sent_to_workers_only_as_a_function(secret: Security) -> None:
    with pytest.raises(
        OptionError, match="is not sent to other processes: pass a function"
    ) as caught:
        Cluster("broker", security=secret).for_workers()
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(Cluster("broker", security=secret))
    assert Cluster("broker", security=lambda: secret).for_workers().load_security() is secret


def test_a_cluster_without_a_secret_is_pickled_for_workers() -> None:
    cluster = Cluster("broker", security=Security(protocol="SSL", ca_file="ca.pem"))
    made = pickle.loads(pickle.dumps(cluster.for_workers()))  # noqa: S301 - our own bytes
    assert made.load_security() == cluster.security
    assert made.servers == cluster.servers


def test_a_source_is_pickled_with_the_cluster_for_workers() -> None:
    cluster = Cluster("broker", security=Security(protocol="SSL", ca_file="ca.pem"), client_id="a")
    source = KafkaSource(cluster=cluster, topics="orders")
    made = pickle.loads(pickle.dumps(source)).cluster  # noqa: S301 - our own bytes
    assert made.load_security() == cluster.security
    assert replace(made, security=cluster.security) == cluster


def test_a_source_with_a_secret_is_not_pickled() -> None:
    security = Security(username="user", password=SECRET)
    source = KafkaSource(cluster=Cluster("broker", security=security), topics="orders")
    with pytest.raises(OptionError, match="security holds password, which is not sent"):
        pickle.dumps(source)
