"""The Kinesis Client Library as a client: workers that share a stream by leases in DynamoDB."""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

import pytest

import fanout
from fanout.kinesis import KinesisSource, LeaseTable
from fanout.kinesis.writing.kpl_format import encode_aggregate
from fanout.testing.kinesis.server import KinesisServer
from tests.clients.orders import FIRST, FOURTH, SECOND, THIRD, Orders, Record
from tests.clients.programs import DEADLINE, Program, wait_until
from tests.clients.table import calls, calls_of
from tests.support.kinesis.reading import session

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


def test_an_application_moves_to_members_of_fanout_and_back(
    application: Application, client: str
) -> None:
    orders = application.orders
    first = application.start("first")
    orders.put(1_000)
    application.wait_until_all_is_read()
    first.leave()
    orders.put(1_000)
    # The leases of a worker that has left have to expire.
    member = Member(orders, client)
    read = asyncio.run(member.read(1_000))
    orders.server.split_shard("orders", SECOND)
    orders.put(1_000)
    read += asyncio.run(member.read(1_000, parts=3))
    second = application.start("second")
    orders.put(500)
    after = [text for _, text in PARTS[3:]]
    application.wait_until(lambda: 500 + len(after) <= len(values(second)))
    second.leave()
    every = values(first) + [int(value) for value in read] + values(second)
    parts = range(PARTS_FROM, PARTS_FROM + len(PARTS))
    assert sorted(every) == [*range(orders.count), *parts]


def test_members_join_workers_of_the_kcl_and_stay(application: Application, client: str) -> None:
    orders, member = application.orders, Member(application.orders, client)
    first = application.start("first")
    orders.put(500)
    application.wait_until_all_is_read()
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(asyncio.run, member.follow())
        try:
            # The worker leads, and gives the member leases when there is something to read.
            while not member.found:
                orders.put(50)
                time.sleep(0.2)
                assert not reading.done(), reading.exception()
                assert orders.count < 50 * 5 * DEADLINE
            first.leave()
            orders.put(500)
            application.wait_until(lambda: len(member.found) + len(values(first)) >= orders.count)
        finally:
            member.stop()
        reading.result()
    assert sorted([*values(first), *map(int, member.found)]) == [*range(orders.count)]


# Of an aggregated record, three are read here, and two by the KCL.
PARTS_FROM = 1_000_000
PARTS = [(f"key-{n}", str(PARTS_FROM + n).encode()) for n in range(5)]
# The KCL drops sub-records whose hash keys are not those of the shard.
AGGREGATE = encode_aggregate(PARTS, hash_keys=[2**127] * len(PARTS))


def values(worker: Worker) -> list[int]:
    return [int(record.value) for tenure in worker.tenures() for record in tenure.records]


@final
class Member:
    """A member of fanout in the application of the KCL."""

    def __init__(self, orders: Orders, client: str) -> None:
        self.found: list[bytes] = []
        self.stop: Callable[[], object] = bool
        self._server = orders.server
        self._source = KinesisSource(
            stream="orders",
            consumer="kcl",
            mode="polling" if client.endswith("polling") else "efo",
            start="TRIM_HORIZON",
            endpoint_url=orders.server.endpoint_url,
            session=session(),
        )

    async def follow(self) -> None:
        """Read and acknowledge until it is stopped, from any thread."""
        async with fanout.open(self._source, group=self._group) as stream:
            loop = asyncio.get_running_loop()
            self.stop = partial(loop.call_soon_threadsafe, stream.stop)
            async for batch in stream:
                self.found += batch.records.column("data").to_pylist()
                await stream.acknowledge(batch)

    @property
    def _group(self) -> LeaseTable:
        return LeaseTable(name="kcl", failover_time=3.0, endpoint_url=self._server.endpoint_url)

    async def read(self, count: int, *, parts: int = 0) -> list[bytes]:
        """Read and acknowledge so many records, and parts of an aggregate after them, and leave."""
        found: list[bytes] = []
        opening = fanout.open(self._source, group=self._group)
        async with asyncio.timeout(DEADLINE), opening as stream:
            while len(found) < count:
                found += await self._take(stream, 1_000)
            if parts:
                self._server.put_records("orders", [("a", AGGREGATE)], shard=THIRD)
                found += await self._take(stream, parts)
        assert len(found) == count + parts
        return found

    async def _take(self, stream: fanout.FanOut, most: int) -> list[bytes]:
        drained = await stream.drain(max_records=most, max_wait=0.5, first_wait=DEADLINE)
        await stream.acknowledge(drained)
        return [d for b in drained.batches for d in b.records.column("data").to_pylist()]
