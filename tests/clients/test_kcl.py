"""The Kinesis Client Library as a client: workers that share a stream by leases in DynamoDB."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

import pytest

from fanout.testing.kinesis.server import KinesisServer
from tests.clients.orders import FIRST, FOURTH, THIRD, Orders, Record
from tests.clients.programs import Program, wait_until
from tests.clients.table import calls, calls_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A first worker waits for up to half a minute, and leases pass on after seconds.
pytestmark = [pytest.mark.prove, pytest.mark.timeout(600)]

READER = Path(__file__).parent / "KclReader.java"


class Tenure(NamedTuple):
    """What a worker read of a shard while it had the lease: records after a checkpoint."""

    shard: str
    checkpoint: str
    records: list[Record]


@final
class Worker(Program):
    """One worker, which leaves in order when its standard input is closed."""

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
                current[shard].records.append(Record(*others))
        return found

    def leave(self) -> None:
        self.end()
        assert self.lines()[-1] == ["left", "in", "order"]


@final
class Application:
    """The workers of one application, and the stream that they read together."""

    def __init__(self, orders: Orders, start: Callable[[str], Worker]) -> None:
        self.orders = orders
        self._start = start
        self._workers: list[Worker] = []

    def start(self, name: str) -> Worker:
        worker = self._start(name)
        self._workers.append(worker)
        return worker

    def tenures(self) -> list[Tenure]:
        return [tenure for worker in self._workers for tenure in worker.tenures()]

    def wait_until_all_is_read(self) -> None:
        wanted = {record for records in self.orders.written.values() for record in records}
        self.wait_until(lambda: wanted <= {r for t in self.tenures() for r in t.records})

    def wait_until(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, self._workers)


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

        def start(name: str) -> Worker:
            command = [java, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", class_path]
            command += [str(READER), "orders", name, client.rpartition(" ")[2]]
            worker = Worker(name, command, os.environ | server.environment, tmp_path)
            scope.callback(worker.kill)
            return worker

        yield Application(Orders(server), start)


def test_nothing_is_lost_whoever_has_the_leases(
    application: Application, client: str, caplog: pytest.LogCaptureFixture
) -> None:
    with calls(caplog) as seen:
        first = reshard_and_read(application)
        second = steal_and_kill(application, first)
        third = restart(application, second)
    assert seen == calls_of(client)
    assert application.orders.count == 10_000
    for tenure in application.tenures():
        assert tenure.records == following(application.orders.written[tenure.shard], tenure)
    # Who leaves in order leaves nothing to be read again.
    again = {record for tenure in third.tenures() for record in tenure.records}
    for tenure in (*first.tenures(), *second.tenures()):
        assert again.isdisjoint(tenure.records)
    # A lease may be stolen within seconds, when the service does not let another one subscribe yet.
    assert set(application.orders.server.statistics().violations) <= {"subscribed_too_soon"}


def reshard_and_read(application: Application) -> Worker:
    first = application.start("first")
    application.orders.put(2_500)
    application.wait_until_all_is_read()
    application.orders.reshard(1_250)
    application.wait_until_all_is_read()
    application.wait_until(lambda: first.shards("ended") == {FIRST, THIRD, FOURTH})
    return first


def steal_and_kill(application: Application, first: Worker) -> Worker:
    second = application.start("second")
    application.wait_until(lambda: bool(second.shards("began") & first.shards("lost")))
    application.orders.put(2_500)
    application.wait_until_all_is_read()
    assert any(tenure.records for tenure in second.tenures())
    application.orders.put(1_000)
    first.kill()
    # The order of a shard has the second worker read again what the first one may have read.
    application.orders.put(250)
    application.wait_until_all_is_read()
    return second


def restart(application: Application, second: Worker) -> Worker:
    second.leave()
    application.orders.put(1_250)
    third = application.start("third")
    application.wait_until_all_is_read()
    third.leave()
    return third


def following(written: list[Record], tenure: Tenure) -> list[Record]:
    """Return as many records of a shard as a tenure read, from its checkpoint on."""
    numbers = [record.number for record in written]
    after = 0 if tenure.checkpoint == "TRIM_HORIZON" else numbers.index(tenure.checkpoint) + 1
    return written[after : after + len(tenure.records)]
