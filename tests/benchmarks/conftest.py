from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, TypeVar

import pytest

from benchmarks import (
    consume_java,
    consume_kafka,
    consume_kinesis,
    consume_queue,
    consume_share,
    consume_typed,
    land,
    latency,
    shuffle,
)
from tests.support.groups import of_folder

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in of_folder(__file__, items):
        item.add_marker("prove")


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenarios do here what they would do in a process apart, which starts and imports first."""

    def run_here(work: Callable[[], T]) -> T:
        ForkingPickler.dumps(work)  # it can be sent to a process
        return work()

    for scenario in (
        consume_java,
        consume_kinesis,
        consume_kafka,
        consume_queue,
        consume_share,
        consume_typed,
        land,
        latency,
        shuffle,
    ):
        monkeypatch.setattr(scenario, "run_apart", run_here)
