from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import hypothesis
import pytest
from blockbuster import blockbuster_ctx
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.testing.kafka.broker import KafkaBroker

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


# Tests that share what takes long to start, by where they are: Spark's JVM, or Kafka's.
_TOGETHER = {
    "tests/spark/": "Spark",
    "tests/kafka/": "Kafka",
    "tests/testing/test_kafka": "Kafka",
    "tests/demo/test_kafka": "Kafka",
}
# Tests that take long, share nothing, and wait for processes of their own.
_ALONE = ("tests/provers/tests/crash/", "tests/demo/test_demo")
# What takes longest begins first, so that no process is left with it alone.
_LONGEST = (*_ALONE, "tests/kafka/", "tests/spark/", "tests/provers/tests/simulation/campaign/")


@final
class Together(LoadScopeScheduling):  # type: ignore[misc]
    """With `-n`, run the tests of a file in one process, and those of a JVM in the same one.

    So whatever a module, Spark or Kafka starts for many tests is started once. The groups of
    `--dist loadgroup` would say it too, but pytest-xdist 3.8 does not see them with pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_ALONE):
            return nodeid
        for place, scope in _TOGETHER.items():
            if nodeid.startswith(place):
                return scope
        return nodeid.partition("::")[0]


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # the order is ours


def pytest_xdist_auto_num_workers() -> int:
    """Run one more process than there are cores: tests often wait for servers."""
    return 1 + (os.cpu_count() or 1)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    return Together(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((n for n, each in enumerate(_LONGEST) if item.nodeid.startswith(each)), 99)

    items.sort(key=place)


@pytest.fixture(scope="session")
def mortal_broker(_kafka_jars: None) -> Iterator[KafkaBroker]:
    """A broker to be killed: it holds little, so it is soon back."""
    from fanout.testing.kafka.broker import KafkaBroker  # noqa: PLC0415 - it imports confluent_kafka

    with KafkaBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One certificate: each client reads all that it is given, and none speaks TLS here."""
    from botocore.httpsession import DEFAULT_CA_BUNDLE  # noqa: PLC0415 - for tests with AWS alone

    end = "-----END CERTIFICATE-----\n"
    first, *_ = Path(DEFAULT_CA_BUNDLE).read_text(encoding="utf-8").partition(end)
    path = tmp_path_factory.mktemp("authority") / "one.pem"
    path.write_text(first + end, encoding="utf-8")
    return path


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, authority: Path) -> None:
    """Keep the machine's own AWS configuration out of a test."""
    for name in (
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_PROFILE",
        "AWS_REGION",
        "AWS_SESSION_TOKEN",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority))
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(scope="session", autouse=True)
def blocking_calls_fail() -> Iterator[None]:
    """A call of fanout that would block a running event loop raises BlockingError."""
    with blockbuster_ctx("fanout"):
        yield
