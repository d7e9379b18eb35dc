from __future__ import annotations

import pickle  # noqa: TID251 - what Spark does on the way to its workers
import ssl
from typing import Any

import pytest

from fanout.errors import OptionError
from fanout.kafka import Security
from fanout.spark.sink.options import KafkaSinkOptions

PLAINTEXT = Security(protocol="PLAINTEXT")
SECRET = "canary-secret"


def options(**changed: Any) -> KafkaSinkOptions:
    given: dict[str, Any] = {"bootstrap_servers": "127.0.0.1", "topic": "t", "security": PLAINTEXT}
    return KafkaSinkOptions(**given | changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bootstrap_servers": ""}, "bootstrap_servers"),
        ({"topic": ""}, "topic=''"),
        ({"sink_name": "a/b"}, "sink_name='a/b'"),
        ({"sink_name": "_a"}, "sink_name='_a'"),
        ({"delivery_guarantee": "sometimes"}, "delivery_guarantee='sometimes'"),
        ({"partitioner": 3}, "partitioner=3 must be a function"),
        ({"transaction_timeout": 0.5}, "transaction_timeout=0.5 must be at least 1 second"),
        ({"transaction_timeout": float("inf")}, "transaction_timeout=inf"),
        ({"transaction_timeout": "1"}, "transaction_timeout='1' must be a number"),
        ({"transactional_id_prefix": ""}, "transactional_id_prefix=''"),
        ({"client_id_prefix": None}, "client_id_prefix=None"),
        ({"producer_options": {"acks": "all"}}, "acks"),
        ({"security": "PLAINTEXT"}, "security must be a fanout.kafka.Security, or return one"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        options(**changed)


@pytest.mark.parametrize(
    "secret",
    [
        Security(username="u", password=SECRET),
        Security(protocol="SSL", certificate_file="c.pem", key_password=SECRET),
        Security(protocol="SSL", ssl_context=ssl.create_default_context()),
    ],
    ids=["password", "key_password", "ssl_context"],
)
def test_a_secret_travels_only_as_a_function(secret: Security) -> None:
    with pytest.raises(
        OptionError, match="does not travel to Spark's workers: pass a function"
    ) as c:
        options(security=secret)
    assert SECRET not in str(c.value)
    assert options(security=lambda: secret).make_security() is secret


def test_what_has_no_secret_travels() -> None:
    security = Security(protocol="SSL", ca_file="ca.pem")
    made = pickle.loads(pickle.dumps(options(security=security).make_security))  # noqa: S301 - ours
    assert made() == security


def test_transactions_are_named_after_the_query_and_the_sink() -> None:
    named = options(sink_name="out", transactional_id_prefix="team")
    assert named.transactional_id("query") == "team-query-out"
    assert named.marker_group("query") == "team-query-out-marker"
