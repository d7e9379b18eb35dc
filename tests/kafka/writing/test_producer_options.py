from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from fanout.errors import OptionError
from fanout.kafka import open_writer
from fanout.kafka.writing.write_options import ProducerOptions, WriteOptions

LARGEST = 2**31 - 1


@pytest.mark.parametrize("name", ["acks", "enable.idempotence", "transactional.id"])
def test_what_is_refused_names_no_argument_that_the_caller_lacks(name: str) -> None:
    arguments = inspect.signature(open_writer).parameters
    for parse, known in (
        (ProducerOptions.parse, WriteOptions.__dataclass_fields__),
        (ProducerOptions.parse_for_writer, arguments),
    ):
        with pytest.raises(OptionError, match=f"'{name}' is refused: ") as caught:
            parse({name: "1"})
        advised = re.findall(r"pass (\w+)", str(caught.value))
        assert set(advised) <= set(known)


def test_the_defaults_are_those_of_kafka_but_for_larger_batches() -> None:
    assert ProducerOptions.parse({}) == ProducerOptions(
        compression_type="none",
        batch_size=524288,
        max_request_size=1048576,
        buffer_memory=33554432,
        request_timeout=30.0,
        delivery_timeout=120.0,
        connections_max_idle=540.0,
    )


@pytest.mark.parametrize(
    ("name", "value", "field", "meaning"),
    [
        ("batch.size", 16384, "batch_size", 16384),
        ("buffer.memory", "67108864", "buffer_memory", 67108864),
        ("compression.type", "zstd", "compression_type", "zstd"),
        ("connections.max.idle.ms", 1000, "connections_max_idle", 1.0),
        ("delivery.timeout.ms", LARGEST, "delivery_timeout", 2147483.647),
        ("max.request.size", "10485760", "max_request_size", 10485760),
        ("request.timeout.ms", 1500, "request_timeout", 1.5),
    ],
)
def test_an_option_is_read_by_the_name_that_kafka_has_for_it(
    name: str, value: Any, field: str, meaning: Any
) -> None:
    parsed = ProducerOptions.parse({name: value})
    assert getattr(parsed, field) == meaning
    assert parsed == ProducerOptions(**{field: meaning})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("batch.size", 0, "a whole number from 1 to"),
        ("max.request.size", LARGEST + 1, "a whole number from 1 to"),
        ("request.timeout.ms", 1.5, "a whole number from 1 to"),
        ("compression.type", "brotli", "one of none, gzip, snappy, lz4, zstd"),
        ("compression.type", ["gzip"], "one of none, gzip, snappy, lz4, zstd"),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_refused(
    name: str, value: Any, says: str
) -> None:
    with pytest.raises(OptionError, match=f"^{name}=.* must be {says}"):
        ProducerOptions.parse({name: value})


def test_delivery_takes_one_attempt_at_least() -> None:
    with pytest.raises(OptionError, match=r"must be at least request\.timeout\.ms=30000"):
        ProducerOptions.parse({"delivery.timeout.ms": 29999})
    ProducerOptions.parse({"delivery.timeout.ms": 30000})


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("acks", "delivery_guarantee"),
        ("enable.idempotence", "delivery_guarantee"),
        ("transactional.id", "transactional_id_prefix"),
        ("transaction.timeout.ms", "transaction_timeout"),
        ("partitioner.class", "partitioner"),
        ("key.serializer", "bytes already"),
        ("linger.ms", r"batch\.size"),
        ("retries", r"delivery\.timeout\.ms"),
        ("max.in.flight.requests.per.connection", "order is kept"),
        ("metadata.max.age.ms", "refreshed when they move"),
        ("bootstrap.servers", "cluster="),
        ("sasl.jaas.config", "Security"),
        ("ssl.truststore.password", "ca_file"),
    ],
)
def test_a_refused_option_says_what_to_say_instead_and_not_its_value(
    name: str, instead: str
) -> None:
    with pytest.raises(OptionError, match=f"'{name}' is refused: .*{instead}") as caught:
        ProducerOptions.parse({name: "canary"})
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("kafka.batch.size", "write 'batch.size'"),
        ("compression.typ", "did you mean 'compression.type'"),
        (7, "must be named by strings"),
    ],
)
def test_a_name_that_is_not_known_is_refused_with_a_hint(name: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        ProducerOptions.parse({name: 1})


def test_options_that_are_no_mapping_are_refused() -> None:
    options: Any = ["acks"]
    with pytest.raises(OptionError, match="producer_options must be a mapping"):
        ProducerOptions.parse(options)
