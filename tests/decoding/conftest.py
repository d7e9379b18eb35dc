"""Clients of a registry: they are quick to make, and are closed when a test ends."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def few_authorities_of_the_system(monkeypatch: pytest.MonkeyPatch, authority: Path) -> None:
    """Let Python trust one certificate: it takes 25 ms to read those of the system."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))


@pytest.fixture
def confluents_client() -> Iterator[Callable[[str], Any]]:
    confluent = pytest.importorskip("confluent_kafka.schema_registry")
    with ExitStack() as clients:
        yield lambda url: clients.enter_context(confluent.SchemaRegistryClient({"url": url}))
