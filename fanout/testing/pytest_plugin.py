"""pytest fixtures for users' offline tests. Importing this module imports no server."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from fanout.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fanout.testing.kafka.broker import KafkaBroker
    from fanout.testing.kafka.cluster import KafkaCluster
    from fanout.testing.kinesis.server import KinesisServer

# Set to anything, it makes tests fail that would be skipped because Kafka cannot be downloaded.
_REQUIRE = "FANOUT_REQUIRE_KAFKA"


@pytest.fixture
def fanout_fast() -> Iterator[None]:
    """Keep only short intervals towards services in one test; see `fanout.testing.fast`."""
    from fanout.testing.fast_mode import fast  # noqa: PLC0415 - only for tests that ask for it

    with fast():
        yield


@pytest.fixture
def kinesis_server() -> Iterator[KinesisServer]:
    """Run an embedded Kinesis in this process for one test, with `KinesisRules.fast()`.

    Yields:
        The running server; `server.client_options` and `server.environment` lead clients to it.
    """
    # The server imports moto, which pytest runs without this fixture should not pay for.
    from fanout.testing.kinesis.rules import KinesisRules  # noqa: PLC0415 (see above)
    from fanout.testing.kinesis.server import KinesisServer  # noqa: PLC0415 (see above)

    with KinesisServer(KinesisRules.fast()) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_broker(_kafka_jars: None) -> Iterator[KafkaBroker]:
    """Run one Kafka broker for all tests that ask for it; each makes topics of its own.

    The tests are skipped where Kafka cannot be downloaded, or fail if the environment variable
    `FANOUT_REQUIRE_KAFKA` is set.

    Yields:
        The running broker; `broker.bootstrap_servers` leads clients to it.
    """
    from fanout.testing.kafka.broker import KafkaBroker  # noqa: PLC0415 - it imports confluent_kafka

    with KafkaBroker() as broker:
        yield broker


@pytest.fixture
def start_kafka_broker(_kafka_jars: None) -> Iterator[Callable[..., KafkaBroker]]:
    """Start brokers for one test that kills, pauses or configures them.

    Yields:
        A function with the options of `KafkaBroker` that returns a running one.
    """
    from fanout.testing.kafka.broker import KafkaBroker  # noqa: PLC0415 - it imports confluent_kafka

    with ExitStack() as scope:

        def start(**options: Any) -> KafkaBroker:
            return scope.enter_context(KafkaBroker(**options))

        yield start


@pytest.fixture
def start_kafka_cluster(_kafka_jars: None) -> Iterator[Callable[..., KafkaCluster]]:
    """Start clusters for one test that kills or pauses nodes, or moves leaders.

    Yields:
        A function with the options of `KafkaCluster` that returns a running one.
    """
    from fanout.testing.kafka.cluster import KafkaCluster  # noqa: PLC0415 - as above

    with ExitStack() as scope:

        def start(**options: Any) -> KafkaCluster:
            return scope.enter_context(KafkaCluster(**options))

        yield start


@pytest.fixture(scope="session")
def _kafka_jars() -> None:
    from fanout.testing.kafka.jars import kafka_jars  # noqa: PLC0415 - only for tests with Kafka

    try:
        kafka_jars()
    except SetupError as error:
        if os.environ.get(_REQUIRE):
            raise
        # Without a network a user's other tests still run.
        pytest.skip(str(error))
