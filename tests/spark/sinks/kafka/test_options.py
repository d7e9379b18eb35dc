from __future__ import annotations

from typing import Any

import pytest

from fanout.errors import OptionError
from fanout.kafka import Cluster, Security
from fanout.spark import KafkaSink


def options(**changed: Any) -> KafkaSink:
    cluster = Cluster("127.0.0.1", security=Security(protocol="PLAINTEXT"))
    given: dict[str, Any] = {"cluster": cluster, "topic": "t"}
    return KafkaSink(**given | changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"cluster": "127.0.0.1"}, "cluster must be a fanout.kafka.Cluster"),
        ({"topic": ""}, "topic=''"),
        ({"sink_name": "a/b"}, "sink_name='a/b'"),
        ({"sink_name": "_a"}, "sink_name='_a'"),
        ({"delivery_guarantee": "sometimes"}, "delivery_guarantee='sometimes'"),
        ({"partitioner": 3}, "partitioner=3 must be a function"),
        ({"transaction_timeout": 0.5}, "transaction_timeout=0.5 must be at least 1 second"),
        ({"transaction_timeout": float("inf")}, "transaction_timeout=inf"),
        ({"transaction_timeout": "1"}, "transaction_timeout='1' must be a number"),
        ({"transactional_id_prefix": ""}, "transactional_id_prefix=''"),
        ({"producer_options": {"acks": "all"}}, "acks"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        options(**changed)


def test_a_secret_is_not_sent_to_workers() -> None:
    secret = Security(username="u", password="canary-secret")
    with pytest.raises(OptionError, match="is not sent to other processes"):
        options(cluster=Cluster("broker", security=secret))
    cluster = Cluster("broker", security=lambda: secret)
    assert options(cluster=cluster).cluster == cluster


def test_a_sink_takes_no_option_that_it_does_not_know() -> None:
    with pytest.raises(TypeError, match="topics"):
        options(topics="t")


def test_transactions_are_named_after_the_query_and_the_sink() -> None:
    named = options(sink_name="out", transactional_id_prefix="team").target
    assert named.transactional_id("query") == "team-query-out"
    assert named.marker_group("query") == "team-query-out-marker"
