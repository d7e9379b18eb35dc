from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import pytest

import fanout
from fanout.errors import DecodeFailedError, OptionError
from fanout.kafka import Cluster, KafkaShareSource, Security
from fanout.kafka.share.client_options import security_properties

if TYPE_CHECKING:
    import pyarrow as pa

NEEDED: dict[str, Any] = {
    "cluster": Cluster("127.0.0.1:9092", security=Security(protocol="PLAINTEXT")),
    "topics": "orders",
    "group_id": "billing",
}


def source(**options: Any) -> KafkaShareSource:
    return KafkaShareSource(**NEEDED | options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"topics": []}, "topics is empty"),
        ({"topics": "a/b"}, "cannot be the name of a topic"),
        ({"group_id": ""}, "group_id='' must be a string, and not empty"),
        ({"consumers": 0}, "consumers=0 must be from 1 to 1000"),
        ({"consumers": 1.5}, "must be a whole number"),
        ({"max_poll_records": 0}, "max_poll_records=0 must be"),
        ({"max_bytes_in_flight": 0}, "max_bytes_in_flight=0 must be at least 1"),
        ({"max_retries": -1}, "max_retries=-1 must be 0 or more"),
        ({"max_deliveries": 0}, "max_deliveries=0 must be at least 1"),
        ({"on_bad_record": "skip"}, "on_bad_record='skip' is not understood"),
        ({"on_bad_record": "dead_letter"}, "needs dead_letter_topic"),
        ({"dead_letter_topic": "orders"}, "would be read again, for ever"),
        ({"discovery_interval": 0}, "discovery_interval=0 must be more than 0"),
        ({"group_settings": {"isolation.level": "x"}}, "which is no setting of a share group"),
        ({"decode": 1}, "decode=1 must be a function"),
        ({"cluster": "127.0.0.1:9092"}, "cluster must be a fanout.kafka.Cluster"),
        ({"group_id": None}, "group_id=None must be a string, and not empty"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        source(**options)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("enable.auto.commit", "each record is accepted, released or rejected"),
        ("auto.offset.reset", "pass group_settings={'share.auto.offset.reset': ...}"),
        ("isolation.level", "pass group_settings={'share.isolation.level': ...}"),
        ("partition.assignment.strategy", "the broker assigns partitions, each to several members"),
        ("group.instance.id", "has no static membership"),
        ("share.acknowledgement.mode", "it is always explicit"),
        ("max.poll.records", "pass max_poll_records"),
        ("sasl.password", "security=Security("),
        ("no.such.option", "is not known"),
    ],
)
def test_options_without_meaning_in_a_share_group_are_refused_with_the_reason(
    name: str, reason: str
) -> None:
    with pytest.raises(OptionError) as caught:
        source(consumer_options={name: "canary"})
    assert reason in str(caught.value)
    assert "canary" not in str(caught.value)


def test_what_kafka_users_say_becomes_what_the_client_calls_it() -> None:
    made = source(
        topics=["b", "a"],
        client_rack="r1",
        max_poll_records=7,
        consumer_options={"fetch.max.wait.ms": "50", "request.timeout.ms": 1000},
    )
    properties = made.client_properties(3, Security(protocol="PLAINTEXT"))
    assert made.topic_names == ("a", "b")
    expected = {
        "bootstrap.servers": "127.0.0.1:9092",
        "group.id": "billing",
        "client.id": "fanout-member-3",
        "client.rack": "r1",
        "max.poll.records": 7,
        "fetch.wait.max.ms": 50,
        "socket.timeout.ms": 1000,
        "share.acknowledgement.mode": "explicit",
        "security.protocol": "PLAINTEXT",
    }
    assert properties.items() >= expected.items()


def test_the_client_is_told_how_brokers_are_talked_to() -> None:
    security = Security(
        username="me", password="canary", ca_file="ca.pem", certificate_file="c.pem"
    )
    assert security_properties(security) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": "canary",
        "ssl.ca.location": "ca.pem",
        "ssl.certificate.location": "c.pem",
        "ssl.key.location": "c.pem",
    }
    assert "canary" not in repr(source(cluster=Cluster("127.0.0.1:9092", security=security)))


async def token() -> str:
    return "canary"


def test_a_token_is_for_the_function_that_the_client_calls() -> None:
    assert security_properties(Security(token=token)) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "OAUTHBEARER",
    }


CONTEXT = Security(protocol="SSL", ssl_context=ssl.create_default_context())
REFUSED = (
    "ssl_context is not for a share group, whose client reads files: pass ca_file, "
    "certificate_file and key_file"
)


def test_what_the_client_cannot_be_told_is_refused() -> None:
    with pytest.raises(OptionError, match=f"^{REFUSED}$"):
        source(cluster=Cluster("127.0.0.1:9092", security=CONTEXT))


async def test_what_a_function_returns_is_refused_when_the_source_is_opened() -> None:
    chosen = source(cluster=Cluster("127.0.0.1:1", security=lambda: CONTEXT))
    with pytest.raises(OptionError, match=f"^{REFUSED}$"):
        async with fanout.open(chosen):
            pass


def test_a_function_to_decode_gets_the_number_of_deliveries() -> None:
    def keep(records: pa.RecordBatch) -> pa.RecordBatch:
        return records.select(["topic", "partition", "offset", "deliveryCount"])

    assert source(decode=keep).schema.names == ["topic", "partition", "offset", "deliveryCount"]
    with pytest.raises(DecodeFailedError):
        source(decode=lambda records: records.select(["nothing"]))
