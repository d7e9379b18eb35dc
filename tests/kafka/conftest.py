from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.groups import KAFKA, group_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kafka.secured import Secured


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    group_folder(__file__, items, KAFKA)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, _kafka_jars: None) -> Iterator[Secured]:
    """One broker for all tests of who is let in, and who may do what."""
    from tests.kafka.secured import run_cluster  # noqa: PLC0415 - it imports confluent_kafka

    with run_cluster(tmp_path_factory.mktemp("certificates")) as cluster:
        yield cluster
