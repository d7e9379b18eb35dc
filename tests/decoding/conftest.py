"""Confluent's client of a registry, whose connections are closed when a test ends."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def confluents_client() -> Iterator[Callable[[str], Any]]:
    confluent = pytest.importorskip("confluent_kafka.schema_registry")
    with ExitStack() as clients:
        yield lambda url: clients.enter_context(confluent.SchemaRegistryClient({"url": url}))
