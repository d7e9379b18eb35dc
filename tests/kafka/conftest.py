from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kafka.secured import Cluster


@pytest.fixture
def quick_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a loss for certain within a moment, and do not wait long for people."""
    monkeypatch.setattr("fanout.kafka.reading.losses._SURE_AFTER", 0.1)
    monkeypatch.setattr("fanout.core.source_options._SLOW", 0.1)
    monkeypatch.setattr("fanout.kafka.reading.losses._APART", 0.02)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, _kafka_jars: None) -> Iterator[Cluster]:
    """One broker for all tests of who is let in, and who may do what."""
    from tests.kafka.secured import run_cluster  # noqa: PLC0415 - it imports confluent_kafka

    with run_cluster(tmp_path_factory.mktemp("certificates")) as cluster:
        yield cluster
