from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis
import pytest
from blockbuster import blockbuster_ctx

if TYPE_CHECKING:
    from collections.abc import Iterator

# The same examples in each run. To search for hours with fresh ones, name the other profile:
# `pytest --hypothesis-profile=search --timeout=0 -k Machine`, with `--hypothesis-seed=N` to repeat.
hypothesis.settings.register_profile("fanout", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile(
    "search",
    hypothesis.settings.get_profile("fanout"),
    derandomize=False,
    max_examples=1_000,
    stateful_step_count=200,
    print_blob=True,
)
hypothesis.settings.load_profile("fanout")


@pytest.fixture(scope="session", autouse=True)
def blocking_calls_fail() -> Iterator[None]:
    """A call of fanout that would block a running event loop raises BlockingError."""
    with blockbuster_ctx("fanout"):
        yield
