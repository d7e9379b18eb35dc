"""`fanout.land(processes=2)`: processes of this machine, real ones, that die and end."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import pickle  # noqa: TID251 - as the library does
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyiceberg.catalog
import pytest

import fanout
from fanout.decoding import Avro, Json, SchemaRegistry
from fanout.errors import OptionError, SetupError
from fanout.kinesis import KinesisSource
from fanout.landers.land import land
from fanout.landers.process import START, Order
from fanout.landers.processes import _encoded
from fanout.landing.log.entries import batch_ids, read_entry
from fanout.landing.storage.opening import open_storage
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from fanout.testing.s3_clients import BUCKET
from tests.landers.armed import Armed
from tests.support.avro_records import framed, written
from tests.support.collected_metrics import Collected
from tests.support.commands import ENVIRONMENT, FANOUT
from tests.support.doomed import Kill
from tests.support.patience import PATIENCE
from tests.support.process_list import running_with
from tests.support.s3 import moto as moto  # noqa: PLC0414 - a fixture
from tests.support.s3 import s3_options
from tests.support.schema_registry import embedded_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from fanout.landing.lander import Landing
    from fanout.landing.log.followed import LandedEntry
    from fanout.landing.storage.storage import StoredFiles

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
DISK = "fanout.landing.storage.local_storage:LocalStorage"
S3 = "fanout.landing.storage.object_storage:ObjectStorage"


@pytest.fixture(scope="module")
def kinesis() -> Iterator[KinesisServer]:
    with KinesisServer(KinesisRules.fast()) as server:
        yield server


@final
class Job:
    """A stream of four shards whose records are numbers, and where it is landed."""

    def __init__(
        self, server: KinesisServer, location: str, options: dict[str, str] | None = None
    ) -> None:
        self.server = server
        self.name = f"orders-{uuid.uuid4().hex}"
        self.location = location
        self.options = options
        self.bad: str | None = None  # where bad records go
        self.records = 0
        server.create_stream(self.name, 4)

    def put(self, count: int) -> None:
        """Put numbers; where bad records are kept, as JSON, and multiples of five are bad."""
        json = b"%d" if self.bad is None else b'{"id": %d}'
        self.server.put_records(
            self.name,
            (
                (str(each), (json if each % 5 else b"%d") % each)
                for each in range(self.records, self.records + count)
            ),
        )
        self.records += count

    def source(self, **options: Any) -> KinesisSource:
        return KinesisSource(
            stream=self.name,
            mode="polling",
            start="TRIM_HORIZON",
            endpoint_url=self.server.endpoint_url,
            **options,
        )

    def land(
        self, source: KinesisSource | None = None, **options: Any
    ) -> AbstractAsyncContextManager[Landing]:
        chosen: dict[str, Any] = {
            "processes": 2,
            "storage_options": self.options,
            "bad_records": self.bad,
        }
        return land(source or self.source(), self.location, **chosen | options)

    async def land_all(
        self, source: KinesisSource | None = None, **options: Any
    ) -> list[LandedEntry]:
        async with asyncio.timeout(PATIENCE):
            async with self.land(source, available_now=True, **options) as landing:
                return [entry async for entry in landing]

    def command(self) -> list[str]:
        """Return the arguments that land what is there, and the store's options."""
        options = {} if self.options is None else self.options
        given = ["--available-now", "--processes", "2"]
        if self.bad is None:
            given += ["--max-records", "15"]
        else:
            given += ["--decode", "json", "--schema", "id INT NOT NULL", "--bad-records", self.bad]
            given += ["--column", "partitionKey", "--max-records", "5"]
        for name in {"endpoint", "region"} & {*options}:
            given += ["--storage-option", f"{name}={options[name]}"]
        return ["land", f"kinesis://{self.name}", self.location, *given]

    async def check(self, *, swept: bool = True) -> None:
        """Check that each record is in one entry, and, where it was swept, in no file besides."""
        await asyncio.to_thread(self.check_now, swept=swept)

    def check_now(self, *, swept: bool = True) -> None:
        with closing(open_storage(self.location, self.options)) as storage:
            entries = [
                entry
                for number in batch_ids(file.name for file in storage.list("batches"))
                if (entry := read_entry(storage, number)) is not None
            ]
            named = [file.name for entry in entries for file in entry.segments]
            found: Counter[int] = Counter()
            for name in named:
                table = read(storage, name)
                found.update(numbers(table["data" if self.bad is None else "partitionKey"]))
            if swept:
                assert sorted(named) == sorted(storage.walk("segments"))
                left = [file.name for file in storage.list("bad") if "location-" not in file.name]
                assert left == []
            if self.bad is not None:
                assert {number % 5 for number in found} <= {1, 2, 3, 4}
                found += self._bad_found([entry.bad for entry in entries if entry.bad], swept=swept)
            assert found == Counter(range(self.records))

    def _bad_found(self, named: list[str], *, swept: bool) -> Counter[int]:
        """Return the bad records of the files that entries name."""
        assert self.bad is not None
        with closing(open_storage(self.bad, self.options)) as storage:
            if swept and named:
                assert sorted(named) == sorted(storage.walk(named[0].partition("/")[0]))
            tables = [read(storage, name) for name in named]
            return Counter(number for each in tables for number in numbers(each["partitionKey"]))


def read(storage: StoredFiles, name: str) -> pa.Table:
    data = storage.read(name, limit=1 << 24)
    assert data is not None, name
    return pq.read_table(pa.BufferReader(data))


def numbers(column: pa.ChunkedArray) -> list[int]:
    return [int(one) for one in column.to_pylist()]


NUMBERED = Json("id INT NOT NULL", columns=["partitionKey"])


@pytest.fixture
def job(
    kinesis: KinesisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    aws: None,  # noqa: ARG001 - used for what it does
) -> Job:
    for name, value in kinesis.environment.items():
        monkeypatch.setenv(name, value)
    return Job(kinesis, str(tmp_path / "landing"))


@pytest.fixture(params=["disk", "s3"])
def storage(request: pytest.FixtureRequest, job: Job) -> str:
    """Return the class of the job's storage, on a disk and on S3."""
    if request.param == "disk":
        return DISK
    job.location = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    job.options = s3_options(request.getfixturevalue("moto"))
    return S3


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pids(landing: Landing) -> set[int]:
    return {one.pid for one in landing.statistics().landers}


async def test_processes_share_the_shards_and_land_each_record_once(job: Job) -> None:
    job.put(400)
    collected = Collected()
    async with asyncio.timeout(PATIENCE), job.land(max_records=30, available_now=True) as landing:
        with closing(collected), collected.metrics.watch(landing):
            entries = [entry async for entry in landing]
            landers = landing.statistics().landers
            assert [(one.lander, one.splits) for one in landers] == [(0, 2), (1, 2)]
            assert os.getpid() not in pids(landing)
            assert len(pids(landing)) == 2
            now = collected.now()
            assert now["fanout.landers"] == {"": 2}
            assert now["messaging.client.consumed.messages"] == {"": 400}
        processes = pids(landing)
    assert [entry.number for entry in entries] == [*range(1, len(entries) + 1)]
    assert len(entries) > 2
    assert not any(map(alive, processes))
    await job.check()


@pytest.mark.long
async def test_a_killed_process_is_replaced_and_its_records_come_again(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    rows = 0
    async with asyncio.timeout(PATIENCE), job.land(max_wait=0.5) as landing:
        await until(lambda: len(pids(landing)) == 2)
        first = pids(landing)
        for victim in sorted(first):
            job.put(100)
            await asyncio.sleep(0.2)  # it may have read, and told of nothing yet
            os.kill(victim, signal.SIGKILL)
            while rows < job.records:
                rows += (await anext(landing)).rows
        await until(lambda: len(pids(landing)) == 2)
        assert not pids(landing) & first
        assert landing.statistics().lander_sessions == 4
    assert rows == job.records
    await job.check(swept=False)
    assert f"process {victim} of lander" in caplog.text
    assert "was killed by SIGKILL; another one takes its place" in caplog.text
    await job.land_all()
    await job.check()


@pytest.mark.long
async def test_bad_records_are_in_files_once(job: Job, tmp_path: Path) -> None:
    """Also those of files that have no others."""
    job.bad = str(tmp_path / "bad")
    for count in (40, 3):
        job.put(count)
        await job.land_all(job.source(decode=NUMBERED), max_records=2)
        await job.check()


Moment: TypeAlias = tuple[str, Literal["before", "after"], int]
MOMENTS: list[Moment] = [
    ("{storage}.publish", "before", 1),
    ("{storage}.publish", "after", 1),
    ("{storage}.publish", "after", 2),
    ("fanout.landers.lander:Lander._send", "before", 5),
    ("fanout.landers.lander:Lander._tell", "before", 1),
    ("fanout.landers.lander:Lander._tell", "after", 1),
    ("fanout.landers.lander:Lander._tell", "after", 3),
]


@pytest.mark.prove
@pytest.mark.parametrize("moment", MOMENTS)
async def test_kills_of_a_process_at_each_step_lose_and_repeat_nothing(
    job: Job, tmp_path: Path, storage: str, moment: Moment
) -> None:
    where, when, call = moment
    mark = tmp_path / "killed"
    kill = Kill(where.format(storage=storage), when, call)
    job.put(200)
    await job.land_all(job.source(decode=Armed(kill, mark)), max_records=15)
    assert mark.exists(), "no process was killed"
    await job.check(swept=False)
    job.put(10)
    await job.land_all()
    await job.check()


BAD_MOMENTS: list[Moment] = [
    ("{storage}.publish", when, call) for call in range(1, 5) for when in ("before", "after")
]
BAD_MOMENTS += [
    ("fanout.landers.lander:Lander._tell", "before", 1),
    ("fanout.landers.lander:Lander._tell", "after", 1),
]


@pytest.mark.prove
@pytest.mark.parametrize("moment", BAD_MOMENTS)
async def test_kills_of_a_process_lose_and_repeat_no_bad_record(
    job: Job, tmp_path: Path, storage: str, moment: Moment
) -> None:
    where, when, call = moment
    job.bad = str(tmp_path / "bad") if storage == DISK else f"s3://{BUCKET}/{uuid.uuid4().hex}"
    mark = tmp_path / "killed"
    armed = Armed(Kill(where.format(storage=storage), when, call), mark, NUMBERED)
    job.put(200)
    await job.land_all(job.source(decode=armed), max_records=15)
    assert mark.exists(), "no process was killed"
    await job.check(swept=False)
    job.put(10)
    await job.land_all(job.source(decode=NUMBERED))
    await job.check()


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", ["create", "publish", "delete"])
def test_kills_of_the_process_that_was_started_lose_and_repeat_nothing(
    job: Job, tmp_path: Path, storage: str, method: str, when: Literal["before", "after"]
) -> None:
    """It is killed alone: the others end by themselves, and may have landed files meanwhile."""
    if method != "create":  # what it does with bad records
        job.bad = str(tmp_path / "bad") if storage == DISK else f"s3://{BUCKET}/{uuid.uuid4().hex}"
    script = (
        "import sys, msgspec; from pathlib import Path; from tests.landers.armed import arm\n"
        "from tests.support.doomed import Kill\n"
        "arm(msgspec.json.decode(sys.argv.pop(1), type=Kill), Path(sys.argv.pop(1)))\n"
        "from fanout.cli import main; main()"
    )
    kills = 0
    for call in itertools.count(1, 2):
        job.put(50)
        kill = Kill(f"{storage}.{method}", when, call)
        mark = tmp_path / f"killed-{call}"
        done = subprocess.run(  # noqa: S603 - our own code
            [
                sys.executable,
                "-c",
                script,
                msgspec.json.encode(kill).decode(),
                mark,
                *job.command(),
            ],
            env=ENVIRONMENT | job.server.environment | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in {0, -signal.SIGKILL}, done.stderr
        if not mark.exists():
            break
        kills += 1
    assert kills > 3
    job.check_now()


@pytest.mark.long
async def test_a_shard_that_is_split_is_read_on_by_both(job: Job) -> None:
    rows = 0
    async with asyncio.timeout(PATIENCE), job.land(max_wait=0.2) as landing:
        for number in range(3):
            job.put(60)
            while rows < job.records:
                rows += (await anext(landing)).rows
            shard = f"shardId-{number:012}"
            await asyncio.to_thread(job.server.split_shard, job.name, shard)
        job.put(60)
        while rows < job.records:
            rows += (await anext(landing)).rows
        await until(lambda: sum(one.splits for one in landing.statistics().landers) == 7)
        assert {one.splits for one in landing.statistics().landers} == {3, 4}
    await job.check(swept=False)


@pytest.mark.long
async def test_what_was_read_is_landed_when_it_is_told_to_stop(job: Job) -> None:
    job.put(100)
    async with asyncio.timeout(PATIENCE), job.land(max_wait=3600.0) as landing:

        async def stop() -> None:
            await until(lambda: all(one.bytes for one in landing.statistics().splits.values()))
            landing.stop()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stop())
            rows = sum([entry.rows async for entry in landing])
    assert rows == 100
    await job.check()


@pytest.mark.long
async def test_processes_have_ended_when_a_cancelled_block_is_left(job: Job) -> None:
    job.put(10)
    found: set[int] = set()

    async def landed() -> None:
        async with job.land(max_wait=0.1) as landing:
            await until(lambda: len(pids(landing)) == 2)
            found.update(pids(landing))
            async for _ in landing:
                pass

    task = asyncio.create_task(landed())
    await until(lambda: len(found) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(map(alive, found))


def hold(*_: int) -> None:
    print("begun", file=sys.stderr, flush=True)  # noqa: T201 - the test waits for it
    threading.Event().wait()


@pytest.mark.long
def test_a_process_ends_when_the_one_that_started_it_does() -> None:
    """Its input ends then; without that it would look for the coordinator for a minute."""
    order = _encoded(Order(pickle.dumps(hold), 0, 1, logging.WARNING))
    command = [sys.executable, "-c", START]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:  # noqa: S603 - our own code
        try:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(order)
            process.stdin.flush()
            assert process.stderr.readline() == b"begun\n"
            process.stdin.close()
            assert process.wait(PATIENCE) == 1
        finally:
            process.kill()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_the_command(
    job: Job, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal of a terminal or a service manager goes to all processes; SIGKILL to one."""
    monkeypatch.setenv("FANOUT_TEST_MARK", mark := uuid.uuid4().hex)
    job.put(40)
    command = ["land", f"kinesis://{job.name}", job.location, "--processes", "2", "--json"]
    with subprocess.Popen(  # noqa: S603 - our own code
        [*FANOUT, *command, "--max-wait", "0"],
        env=ENVIRONMENT | job.server.environment | {"FANOUT_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert '"processes":2' in process.stdout.readline()
            assert len(running_with(mark)) == 3
            if number is signal.SIGKILL:
                process.kill()
            else:
                os.killpg(process.pid, number)
            _, stderr = process.communicate(timeout=PATIENCE)
            assert (process.returncode, stderr) == (
                (-number, "") if number is signal.SIGKILL else (0, "")
            )
        finally:
            process.kill()
    # Their output is closed: the pipe of stderr was theirs, too.
    assert running_with(mark) == {}


@pytest.mark.long
@pytest.mark.parametrize("date", [None, "approximateArrivalTimestamp"])
async def test_tables_and_directories(job: Job, tmp_path: Path, date: str | None) -> None:
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    tables = (
        fanout.DeltaTable(),
        fanout.IcebergTable(catalog="test", table="db.orders", properties=catalog),
    )
    for _ in range(2):
        job.put(100)
        await job.land_all(max_records=20, tables=tables, partition_by_date=date)
    await job.check()
    delta = deltalake.DeltaTable(f"{job.location}/segments").to_pyarrow_table()
    opened = pyiceberg.catalog.load_catalog("test", **catalog).load_table("db.orders")
    for table in (delta, opened.scan().to_arrow()):
        assert sorted(map(int, table["data"].to_pylist())) == [*range(200)]
    directories = {Path(file).parent.name[:5] for file in delta_files(job)}
    assert directories == ({"segme"} if date is None else {"date="})


@pytest.mark.long
async def test_a_process_that_dies_between_two_directories(job: Job, tmp_path: Path) -> None:
    """Its replacement lands the records anew, and what it has published goes."""
    mark = tmp_path / "killed"
    tables = (fanout.DeltaTable(),)
    options: dict[str, Any] = {"partition_by": "partitionKey", "tables": tables, "max_records": 15}
    job.put(200)
    await job.land_all(
        job.source(decode=Armed(Kill(f"{DISK}.publish", "after", 7), mark)), **options
    )
    assert mark.exists(), "no process was killed"
    await job.check(swept=False)
    job.put(10)
    await job.land_all(**options)
    await job.check()
    delta = deltalake.DeltaTable(f"{job.location}/segments").to_pyarrow_table()
    assert sorted(map(int, delta["data"].to_pylist())) == [*range(210)]
    assert not [*(Path(job.location) / "_scratch").iterdir()]


def delta_files(job: Job) -> list[str]:
    return deltalake.DeltaTable(f"{job.location}/segments").file_uris()


SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "item", "type": "string"}],
}


@pytest.mark.long
async def test_typed_records_with_a_registry(job: Job) -> None:
    with embedded_registry() as registry:
        number = registry.register("orders-value", SCHEMA)
        rows = [{"id": each, "item": f"fig {each}"} for each in range(50)]
        payloads = framed(number, written(SCHEMA, rows))
        job.server.put_records(job.name, ((str(n), one) for n, one in enumerate(payloads)))
        known = SchemaRegistry(registry.url)
        latest = await asyncio.to_thread(known.latest, "orders-value")
        decode = Avro(latest, registry=known)
        await job.land_all(job.source(decode=decode))
    table = pq.read_table(f"{job.location}/segments").sort_by("id")
    assert table.select(["id", "item"]).to_pylist() == rows
    assert pc.count_distinct(table["shardId"]).as_py() == 4


def here(records: pa.RecordBatch) -> pa.RecordBatch:
    return records


async def test_what_cannot_be_sent_is_refused(job: Job) -> None:
    source = job.source(decode=lambda records: records)
    with pytest.raises(OptionError) as caught:
        await job.land_all(source)
    text = str(caught.value)
    assert text.startswith("the source cannot be sent to other processes: ")
    assert text.endswith(
        "; define functions in a module, and leave out what this process alone has, such as "
        "session=; or leave out processes="
    )
    with pytest.raises(OptionError, match="processes=0 must be at least 1"):
        await job.land_all(processes=0)


@pytest.mark.long
async def test_what_other_processes_cannot_import_ends_the_run(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "__module__", "__main__")
    monkeypatch.setattr("__main__.here", here, raising=False)
    with pytest.raises(SetupError) as caught:
        await job.land_all(job.source(decode=here))
    text = str(caught.value)
    assert text.startswith("a process cannot read the source that it was sent: Can't get ")
    assert text.endswith(
        "; define what the source has of yours, such as a decode function, in a module that can "
        "be imported, and not in the program that is run"
    )


def noisy(records: pa.RecordBatch) -> pa.RecordBatch:
    if records.num_rows:
        print("to the standard output")  # noqa: T201 - users do
        logging.getLogger("orders").warning("%d rows", records.num_rows)
    return records


@pytest.mark.long
async def test_what_processes_log_is_logged_here(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job.put(100)
    await job.land_all(job.source(decode=noisy))
    said = [one for one in caplog.records if one.name == "orders"]
    assert {one.getMessage().partition(": ")[0] for one in said} == {"lander 0", "lander 1"}
    assert {one.levelno for one in said} == {logging.WARNING}
    assert {one.getMessage().rpartition(" ")[2] for one in said} == {"rows"}
    await job.check()


def failing(records: pa.RecordBatch) -> pa.RecordBatch:
    if records.num_rows:
        raise ValueError("no such order")
    return records


@pytest.mark.long
async def test_an_error_of_a_process_ends_the_run(job: Job) -> None:
    job.put(10)
    with pytest.raises(fanout.FanOutError, match="cannot go on: decode failed"):
        await job.land_all(job.source(decode=failing))
    await job.land_all()
    await job.check()
