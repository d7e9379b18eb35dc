"""The Kinesis Client Library as a client: workers that share a stream by leases in DynamoDB."""

from __future__ import annotations

import os
import subprocess
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

import pytest

from fanout.testing.kinesis.server import KinesisServer
from tests.clients.table import calls, calls_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A first worker waits for up to half a minute, and leases pass on after seconds.
pytestmark = [pytest.mark.prove, pytest.mark.timeout(600)]

READER = Path(__file__).parent / "KclReader.java"
FIRST, SECOND, THIRD, FOURTH = (f"shardId-{index:012}" for index in range(4))
# A net for what takes seconds, in seconds.
DEADLINE = 120


class Tenure(NamedTuple):
    """What a worker read of a shard while it had the lease: records after a checkpoint."""

    shard: str
    checkpoint: str
    records: list[tuple[str, str, str]]


@final
class Worker:
    """One worker in a process of its own, which leaves when its standard input is closed."""

    def __init__(
        self, name: str, command: list[str], environment: dict[str, str], logs: Path
    ) -> None:
        self._lines = logs / f"{name}.lines"
        self.log = logs / f"{name}.log"
        with self._lines.open("wb") as lines, self.log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own program)
                command, env=environment, stdin=subprocess.PIPE, stdout=lines, stderr=log
            )

    def lines(self) -> list[list[str]]:
        """The words of the lines that it has printed; a kill may have torn the last one."""
        whole, _, _ = self._lines.read_text(encoding="utf-8").rpartition("\n")
        return [line.split(" ") for line in whole.splitlines()]

    def shards(self, event: str) -> set[str]:
        return {words[1] for words in self.lines() if words[0] == event}

    def tenures(self) -> list[Tenure]:
        found: list[Tenure] = []
        current: dict[str, Tenure] = {}
        for event, shard, *others in self.lines():
            if event == "began":
                current[shard] = Tenure(shard, others[0], [])
                found.append(current[shard])
            elif event == "read":
                number, key, value = others
                current[shard].records.append((number, key, value))
        return found

    def leave(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(DEADLINE) == 0
        assert self.lines()[-1] == ["left", "in", "order"]

    def kill(self) -> None:
        with self._process:  # it closes the pipe, too
            self._process.kill()


@final
class Application:
    """The workers of one application, and the records that they have to read."""

    def __init__(self, server: KinesisServer, start: Callable[[str], Worker]) -> None:
        self.server = server
        self._start = start
        self.workers: list[Worker] = []
        self.written: defaultdict[str, list[tuple[str, str, str]]] = defaultdict(list)
        self._count = 0

    def start(self, name: str) -> Worker:
        worker = self._start(name)
        self.workers.append(worker)
        return worker

    def put(self, count: int) -> None:
        records = [(f"key-{n}", str(n)) for n in range(self._count, self._count + count)]
        self._count += count
        placed = self.server.put_records("orders", [(key, text.encode()) for key, text in records])
        for (shard, number), (key, text) in zip(placed, records, strict=True):
            self.written[shard].append((number, key, text))

    def tenures(self) -> list[Tenure]:
        return [tenure for worker in self.workers for tenure in worker.tenures()]

    def wait_until_all_is_read(self) -> None:
        wanted = {record for records in self.written.values() for record in records}
        self.wait_until(lambda: wanted <= {r for t in self.tenures() for r in t.records})

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < deadline, "\n".join(
                worker.log.read_text(encoding="utf-8")[-2_000:] for worker in self.workers
            )
            time.sleep(0.2)


@pytest.fixture(params=["KCL 3, fan-out", "KCL 3, polling"])
def client(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def application(
    client: str,
    java: str,
    jars: Callable[[str], list[Path]],
    tmp_path: Path,
) -> Iterator[Application]:
    class_path = os.pathsep.join(map(str, jars("kcl")))
    with ExitStack() as scope:
        # The rules are those of the service.
        server = scope.enter_context(KinesisServer())
        server.create_stream("orders", 4)

        def start(name: str) -> Worker:
            command = [java, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", class_path]
            command += [str(READER), "orders", name, client.rpartition(" ")[2]]
            worker = Worker(name, command, os.environ | server.environment, tmp_path)
            scope.callback(worker.kill)
            return worker

        yield Application(server, start)


def test_nothing_is_lost_whoever_has_the_leases(
    application: Application, client: str, caplog: pytest.LogCaptureFixture
) -> None:
    with calls(caplog) as seen:
        first = reshard_and_read(application)
        second = steal_and_kill(application, first)
        third = restart(application, second)
    assert seen == calls_of(client)
    assert sum(map(len, application.written.values())) == 10_000
    for tenure in application.tenures():
        assert tenure.records == following(application.written[tenure.shard], tenure)
    # Who leaves in order leaves nothing to be read again.
    again = {record for tenure in third.tenures() for record in tenure.records}
    for tenure in (*first.tenures(), *second.tenures()):
        assert again.isdisjoint(tenure.records)
    # A lease may be stolen within seconds, when the service does not let another one subscribe yet.
    assert set(application.server.statistics().violations) <= {"subscribed_too_soon"}


def reshard_and_read(application: Application) -> Worker:
    first = application.start("first")
    application.put(2_500)
    application.wait_until_all_is_read()
    application.server.split_shard("orders", FIRST)
    application.put(1_250)
    application.server.merge_shards("orders", THIRD, FOURTH)
    application.put(1_250)
    application.wait_until_all_is_read()
    application.wait_until(lambda: first.shards("ended") == {FIRST, THIRD, FOURTH})
    return first


def steal_and_kill(application: Application, first: Worker) -> Worker:
    second = application.start("second")
    application.wait_until(lambda: bool(second.shards("began") & first.shards("lost")))
    application.put(2_500)
    application.wait_until_all_is_read()
    assert any(tenure.records for tenure in second.tenures())
    application.put(1_000)
    first.kill()
    # The order of a shard has the second worker read again what the first one may have read.
    application.put(250)
    application.wait_until_all_is_read()
    return second


def restart(application: Application, second: Worker) -> Worker:
    second.leave()
    application.put(1_250)
    third = application.start("third")
    application.wait_until_all_is_read()
    third.leave()
    return third


def following(written: list[tuple[str, str, str]], tenure: Tenure) -> list[tuple[str, str, str]]:
    """Return as many records of a shard as a tenure read, from its checkpoint on."""
    numbers = [number for number, *_ in written]
    after = 0 if tenure.checkpoint == "TRIM_HORIZON" else numbers.index(tenure.checkpoint) + 1
    return written[after : after + len(tenure.records)]
