from __future__ import annotations

from typing import Any

import pytest

from fanout.errors import OptionError
from fanout.kafka.reading.consumer_options import ConsumerOptions

LARGEST = 2**31 - 1


def test_the_defaults_are_those_of_kafka_but_for_how_much_is_fetched_at_once() -> None:
    assert ConsumerOptions.parse({}) == ConsumerOptions(
        fetch_min_bytes=1,
        fetch_max_bytes=16777216,
        fetch_max_wait=0.5,
        max_partition_fetch_bytes=2097152,
        request_timeout=30.0,
        connections_max_idle=540.0,
    )


@pytest.mark.parametrize(
    ("name", "value", "field", "meaning"),
    [
        ("fetch.min.bytes", 7, "fetch_min_bytes", 7),
        ("fetch.max.bytes", "1048576", "fetch_max_bytes", 1048576),
        ("fetch.max.wait.ms", 250, "fetch_max_wait", 0.25),
        ("max.partition.fetch.bytes", LARGEST, "max_partition_fetch_bytes", LARGEST),
        ("request.timeout.ms", 1500, "request_timeout", 1.5),
        ("connections.max.idle.ms", "60000", "connections_max_idle", 60.0),
    ],
)
def test_an_option_is_read_by_the_name_that_kafka_has_for_it(
    name: str, value: Any, field: str, meaning: Any
) -> None:
    parsed = ConsumerOptions.parse({name: value})
    assert getattr(parsed, field) == meaning
    assert parsed == ConsumerOptions(**{field: meaning})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fetch.min.bytes", 0),
        ("fetch.max.bytes", -1),
        ("fetch.max.bytes", LARGEST + 1),
        ("fetch.max.bytes", 1.5),
        ("fetch.max.bytes", "1 MB"),
        ("fetch.max.bytes", "-1"),
        ("fetch.max.bytes", True),
        ("request.timeout.ms", None),
        ("connections.max.idle.ms", 999),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"^{name}=.* must be "):
        ConsumerOptions.parse({name: value})


@pytest.mark.parametrize("timeout", [400, 500])
def test_a_broker_must_answer_before_the_request_times_out(timeout: int) -> None:
    with pytest.raises(OptionError, match=r"must be less than request\.timeout\.ms"):
        ConsumerOptions.parse({"request.timeout.ms": timeout})
    ConsumerOptions.parse({"request.timeout.ms": timeout, "fetch.max.wait.ms": timeout - 1})


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("enable.auto.commit", "group_id"),
        ("auto.offset.reset", "on_data_loss"),
        ("group.id", "group_id"),
        ("isolation.level", "isolation_level"),
        ("key.deserializer", "decode"),
        ("value.deserializer", "decode"),
        ("bootstrap.servers", "cluster="),
        ("client.id", "client_id=..."),
        ("check.crcs", "always checked"),
        ("client.rack", "client_rack"),
        ("retry.backoff.ms", "backoff="),
        ("metadata.max.age.ms", "discovery_interval"),
        ("session.timeout.ms", "without group membership"),
        ("sasl.jaas.config", "Security"),
        ("ssl.truststore.password", "ca_file"),
        ("security.protocol", "Security"),
    ],
)
def test_a_refused_option_says_what_to_say_instead_and_not_its_value(
    name: str, instead: str
) -> None:
    with pytest.raises(OptionError, match=f"'{name}' is refused: .*{instead}") as caught:
        ConsumerOptions.parse({name: "canary"})
    assert "canary" not in str(caught.value)


def test_a_prefix_of_sparks_is_to_be_left_out() -> None:
    with pytest.raises(OptionError, match=r"write 'fetch\.min\.bytes'"):
        ConsumerOptions.parse({"kafka.fetch.min.bytes": 1})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("fetch.mim.bytes", "fetch.min.bytes"),
        ("fetch_max_bytes", "fetch.max.bytes"),
        ("Request.Timeout.Ms", "request.timeout.ms"),
    ],
)
def test_an_unknown_option_is_refused_with_those_that_are_close(name: str, meant: str) -> None:
    with pytest.raises(OptionError, match=f"'{name}' is not known; did you mean .*'{meant}'"):
        ConsumerOptions.parse({name: 1})


def test_an_unknown_option_that_is_like_no_other_is_refused_without_a_guess() -> None:
    with pytest.raises(OptionError, match=r"'qqq' is not known$"):
        ConsumerOptions.parse({"qqq": 1})


@pytest.mark.parametrize("options", [["check.crcs"], None, {1: 2}])
def test_options_that_are_no_mapping_of_names_are_refused(options: Any) -> None:
    with pytest.raises(OptionError, match="consumer_options must be"):
        ConsumerOptions.parse(options)
