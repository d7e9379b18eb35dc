from __future__ import annotations

import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

import fanout
from fanout.core.positions import Committed, Cursor, Horizon, Latest, Timestamp
from fanout.core.starts import PerSplit
from fanout.errors import OptionError
from fanout.kafka import KafkaSource, Partition, Security
from fanout.kafka.cluster import Cluster
from fanout.kafka.reading.kafka_options import KafkaOptions
from tests.support.kafka.topics import PLAINTEXT


def options(**given: Any) -> KafkaOptions:
    chosen: dict[str, Any] = {"topics": "orders"}
    if {"pattern", "partitions"} & given.keys():
        chosen = {}
    where = {"cluster": Cluster("localhost:9092", security=PLAINTEXT)}
    return KafkaOptions(**{**where, **chosen, **given})


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ("earliest", Horizon()),
        ("Latest", Latest()),
        (fanout.Committed(), Committed()),
        ("committed", Committed()),
        (datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), Timestamp(5000)),
        ({"orders-0": 5, "*": "latest"}, PerSplit((("orders-0", Cursor(4)),), Latest())),
        ({"orders-0": 0}, PerSplit((("orders-0", Cursor(-1)),))),
        ({"orders-0": Cursor(5)}, PerSplit((("orders-0", Cursor(5)),))),
    ],
)
def test_a_start_is_said_in_words_times_and_offsets(given: Any, start: object) -> None:
    assert options(start=given, group_id="g").start == start


def test_earliest_is_the_start_and_there_is_no_stop_where_nothing_is_said() -> None:
    assert options().start == Horizon()
    assert options().stop is None
    assert options().isolation_level == "read_committed"
    assert options().on_data_loss == "fail"
    assert options().group_id is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"start": 5}, "start=5 is not understood; use 'earliest'"),
        ({"start": {"orders-0": -1}}, r"start\['orders-0'\]=-1 is not understood"),
        ({"start": {"orders-0": 2**63}}, r"start\['orders-0'\]=9223372036854775808 is not"),
        ({"start": {"orders-0": "5"}}, r"start\['orders-0'\]='5' is not understood"),
        ({"start": {"orders-0": True}}, r"start\['orders-0'\]=True is not understood"),
        ({"start": datetime(2026, 1, 1)}, "has no time zone"),  # noqa: DTZ001 - that is the point
        ({"start": "committed"}, "start='committed' needs group_id"),
        ({"start": {"*": "committed"}}, "start='committed' needs group_id"),
        ({"start": {"orders-0": "committed"}}, "start='committed' needs group_id"),
        ({"stop": "committed"}, "stop='committed' needs group_id"),
        ({"stop": "earliest"}, "stop='earliest' would read nothing"),
        ({"stop": {"*": "earliest"}}, "stop='earliest' would read nothing"),
        ({"stop": 5}, "stop=5 is not understood"),
        ({"topics": None}, "exactly one of topics, pattern and partitions, not by none"),
        ({"topics": "a", "pattern": "b"}, "exactly one .* not by topics and pattern"),
        ({"topics": []}, "topics is empty"),
        ({"topics": "a b"}, "'a b' cannot be the name of a topic"),
        ({"topics": ".."}, r"'\.\.' cannot be the name of a topic"),
        ({"topics": [5]}, "5 cannot be the name of a topic"),
        ({"pattern": "("}, r"pattern='\(' is no regular expression"),
        ({"pattern": ""}, "pattern='' must be a regular expression"),
        ({"pattern": re.compile(b"a")}, "must be a regular expression"),
        ({"partitions": ["orders"]}, "partitions holds 'orders'; name a partition like 'orders-0'"),
        ({"partitions": [("orders", 0)]}, "partitions holds"),
        ({"cluster": "localhost:9092"}, r"cluster must be a fanout\.kafka\.Cluster"),
        ({"consumer_options": {"group.id": "g"}}, "pass group_id"),
        ({"consumer_options": {"fetch.max.byte": 1}}, "did you mean 'fetch.max.bytes'"),
        ({"isolation_level": "none"}, "isolation_level='none' is not understood"),
        ({"on_data_loss": "ignore"}, "use 'fail' or 'earliest'"),
        ({"group_id": ""}, "group_id='' must be a string, and not empty"),
        ({"client_rack": 1}, "client_rack=1 must be a string"),
        ({"decode": "json"}, "decode='json' must be a function"),
        ({"discovery_interval": 0}, "discovery_interval=0 must be more than 0 seconds"),
        ({"silence_timeout": None}, "silence_timeout=None must be a number"),
        ({"silence_timeout": math.inf}, "silence_timeout=inf must be .* finite"),
        ({"max_retries": -1}, "max_retries=-1 must be 0 or more"),
        ({"max_retries": 1.5}, "max_retries=1.5 must be a whole number, or None"),
        ({"max_event_bytes": 0}, "max_event_bytes=0 must be at least 1"),
        ({"max_bytes_in_flight": 10}, "at most max_bytes_in_flight=10"),
        (
            {"max_event_bytes": 2**31, "max_bytes_in_flight": 2**33},
            "max_event_bytes=2147483648 must be less than 2 GiB",
        ),
        ({"silence_timeout": 35}, "silence_timeout=35 must be more than 35 seconds"),
        (
            {"consumer_options": {"request.timeout.ms": 60_000}},
            r"silence_timeout=60\.0 must be more than 65 seconds: .* request\.timeout\.ms",
        ),
        ({"backoff": 50}, r"backoff=50 must be a fanout\.Backoff"),
    ],
)
def test_a_mistake_is_said_in_one_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        options(**given)
    assert "\n" not in str(caught.value)


def test_limits_that_are_just_kept_are_taken() -> None:
    assert options(silence_timeout=35.1).pacing.silence_timeout == 35.1
    quick = options(silence_timeout=6.1, consumer_options={"request.timeout.ms": 1000})
    assert quick.pacing.silence_timeout == 6.1
    large = options(max_event_bytes=2**31 - 1, max_bytes_in_flight=2**33)
    assert large.pacing.max_bytes_in_flight == 2**33


@pytest.mark.parametrize(("millis", "timeout"), [(1000, 60), (30_000, 120), (100_000, 400)])
def test_each_call_of_a_subscription_times_out_before_the_subscription_does(
    millis: int, timeout: float
) -> None:
    reported = {"request.timeout.ms": millis}
    assert (
        options(silence_timeout=600, consumer_options=reported).pacing.subscribe_timeout == timeout
    )


@pytest.mark.parametrize(
    ("given", "inside", "outside"),
    [
        ({"topics": "a"}, [("a", 0), ("a", 7)], [("ab", 0)]),
        ({"topics": ["a", "b"]}, [("a", 0), ("b", 0)], [("c", 0)]),
        ({"pattern": "a+"}, [("a", 0), ("aaa", 1)], [("ab", 0), ("ba", 0)]),
        ({"pattern": re.compile("A", re.IGNORECASE)}, [("a", 0)], [("b", 0)]),
        ({"pattern": ".*"}, [("a", 0), ("__mine", 0)], [("__consumer_offsets", 0)]),
        ({"topics": "__consumer_offsets"}, [("__consumer_offsets", 0)], []),
        ({"partitions": ["a-1", Partition("b", 2)]}, [("a", 1), ("b", 2)], [("a", 2), ("b", 1)]),
        ({"partitions": "a-1"}, [("a", 1)], [("a", 0)]),
    ],
)
def test_what_is_read_is_said_by_topics_a_pattern_or_partitions(
    given: dict[str, Any], inside: list[tuple[str, int]], outside: list[tuple[str, int]]
) -> None:
    selection = options(**given).selection
    assert all(selection.includes(Partition(*one)) for one in inside)
    assert not any(selection.includes(Partition(*one)) for one in outside)


def test_equal_options_are_equal_and_no_secret_is_in_their_repr() -> None:
    security = Security(username="me", password="canary")
    cluster = Cluster("localhost:9092", security=security)
    one = options(cluster=cluster, consumer_options={"fetch.min.bytes": 5})
    assert one == options(cluster=cluster, consumer_options={"fetch.min.bytes": 5})
    assert hash(one) == hash(replace(one))
    assert "canary" not in repr(one)


def test_a_source_takes_the_options_as_they_are() -> None:
    source = KafkaSource(
        cluster=Cluster(["localhost:9092"], security=PLAINTEXT), topics="orders", stop="latest"
    )
    assert source.stop == Latest()
    assert source.selection.names == {"orders"}
