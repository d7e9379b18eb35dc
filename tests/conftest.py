from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis
import pytest
from blockbuster import blockbuster_ctx

if TYPE_CHECKING:
    from collections.abc import Iterator

hypothesis.settings.register_profile("fanout", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("fanout")


@pytest.fixture(scope="session", autouse=True)
def blocking_calls_fail() -> Iterator[None]:
    """A call of fanout that would block a running event loop raises BlockingError."""
    with blockbuster_ctx("fanout"):
        yield
