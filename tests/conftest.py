from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import hypothesis
import pytest
from blockbuster import blockbuster_ctx
from xdist.scheduler import LoadScopeScheduling

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


_JVMS = ("tests/spark/", "tests/kafka/", "tests/testing/test_kafka", "tests/demo/test_kafka")


@final
class Together(LoadScopeScheduling):  # type: ignore[misc]
    """With `-n`, run the tests of a file in one process, and those of the JVMs in the same one.

    So whatever a module, Spark or Kafka starts for many tests is started once. The groups of
    `--dist loadgroup` would say it too, but pytest-xdist 3.8 does not see them with pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_JVMS):
            return "JVMs"
        return nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    return Together(config, log)


@pytest.fixture(scope="session", autouse=True)
def blocking_calls_fail() -> Iterator[None]:
    """A call of fanout that would block a running event loop raises BlockingError."""
    with blockbuster_ctx("fanout"):
        yield
