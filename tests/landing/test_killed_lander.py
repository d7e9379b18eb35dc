"""`fanout land`, killed before and after each operation of its storage, and two that fight."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fanout.landing.log.entries import BatchEntry, batch_ids, read_entry
from fanout.landing.segments.bad_records import BadRecordFiles
from fanout.landing.storage.opening import open_storage
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from fanout.testing.s3_clients import BUCKET
from tests.landing.spark_reader import read_log
from tests.support.commands import ENVIRONMENT, FANOUT
from tests.support.doomed import Kill
from tests.support.s3 import s3_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from fanout.landing.storage.storage import Storage

pytestmark = [pytest.mark.prove, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
COMMAND = Path(__file__).with_name("doomed_command.py")
# Records in a wave, of which a file has at most 7.
WAVE = 10
STORAGES = {
    "disk": "fanout.landing.storage.local_storage:LocalStorage",
    "s3": "fanout.landing.storage.object_storage:ObjectStorage",
}


def run_doomed(
    kill: Kill, command: Sequence[str], environment: Mapping[str, str]
) -> tuple[int, str]:
    """Run a command of `fanout`, and kill it; return its exit code, and what it said."""
    doomed = ["-m", "tests.support.doomed", msgspec.json.encode(kill).decode(), str(COMMAND)]
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, *doomed],
        env={**environment, "PYTHONPATH": str(ROOT), "FANOUT_TEST_COMMAND": json.dumps(command)},
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,  # it is killed as a group
    )
    return done.returncode, done.stderr


@final
class Lander:
    """A stream, a location, and the processes that land the one at the other."""

    def __init__(
        self,
        server: KinesisServer,
        location: str,
        endpoint: str | None,
        *options: str,
        run: Callable[[Kill, Sequence[str], Mapping[str, str]], tuple[int, str]] = run_doomed,
        bad: str = "",
    ) -> None:
        self._run = run
        self._server = server
        self._location = location
        self._options = None if endpoint is None else s3_options(endpoint)
        self._name = f"orders-{uuid.uuid4().hex}"
        self.records = 0
        self._bad = bad  # where records are that are no JSON
        if bad:
            options += ("--decode", "json", "--schema", "id BIGINT", "--bad-records", bad)
        server.create_stream(self._name, 2)
        given = [] if endpoint is None else [f"endpoint={endpoint}", "region=us-east-1"]
        self._command = [
            "land",
            f"kinesis://{self._name}",
            location,
            "--max-records",
            "7",
            *options,
        ]
        self._command += [part for option in given for part in ("--storage-option", option)]

    def put(self) -> None:
        """Put a wave of records into the stream."""
        numbers = range(self.records, self.records + WAVE)
        data = [b'{"id": %d}' % one if self._bad and one % 3 else b"%d" % one for one in numbers]
        self._server.put_records(self._name, ((each.decode(), each) for each in data))
        self.records += WAVE

    def is_killed(self, kill: Kill, *options: str) -> bool:
        """Land what is there; return whether the moment of the kill has come."""
        command = [*self._command, *options, "--available-now"]
        code, log = self._run(kill, command, self._environment)
        assert code in {0, -signal.SIGKILL}, log
        return code != 0

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        """Start the command, which goes on until it is told to end."""
        with subprocess.Popen(  # noqa: S603 - our own code
            [*FANOUT, *self._command, "--max-wait", "0", "--json"],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def check(self) -> None:
        """Check that no record is seen twice, neither in the files nor in the entries."""
        storage = open_storage(self._location, self._options)
        files = self._records(storage, storage.walk("segments")) + self._bad_records()
        assert [number for number, count in files.items() if count > 1] == []
        named = self._records(storage, self._named(storage))
        assert [number for number, count in named.items() if count > 1] == []
        self._check_spark(storage)

    def check_all(self) -> None:
        """Check that every record is in one entry, and that there is no file besides."""
        storage = open_storage(self._location, self._options)
        named = self._named(storage)
        assert sorted(named) == sorted(storage.walk("segments"))
        bad, entries = self._bad_records(), self._read(storage)
        assert self._records(storage, named) + bad == Counter(range(self.records))
        assert {*bad} == ({*range(0, self.records, 3)} if self._bad else set())
        assert {entry.bad for entry in entries if entry.bad} == {*self._bad_files()}
        assert self._shown(storage) == named

    def landed(self) -> Counter[int]:
        """Return how often each record is in the entries."""
        storage = open_storage(self._location, self._options)
        return self._records(storage, self._named(storage))

    def check_newest(self) -> None:
        """Check that the last wave is in entries, and that their files are all that is there."""
        storage = open_storage(self._location, self._options)
        named = self._named(storage)
        assert sorted(named) == sorted(storage.walk("segments"))
        found = self._records(storage, named)
        newest = range(self.records - WAVE, self.records)
        assert {number: found[number] for number in newest} == dict.fromkeys(newest, 1)
        assert self._shown(storage) == named

    def orphans(self) -> int:
        """Return how many files no entry names."""
        storage = open_storage(self._location, self._options)
        return len({*storage.walk("segments")} - {*self._named(storage)})

    @property
    def _environment(self) -> dict[str, str]:
        return ENVIRONMENT | self._server.environment

    def _check_spark(self, storage: Storage) -> None:
        """Check that Spark sees the files of entries alone, and misses those of the last at most.

        Before they are deleted, it does not see those that are too old.
        """
        shown, entries = self._shown(storage), self._entries(storage)
        assert {*shown} <= {*storage.walk("segments")}
        before = [name for entry in entries[:-1] for name in entry]
        named = before + [name for entry in entries[-1:] for name in entry]
        assert shown in (before[-len(shown) :] if shown else [], named[-len(shown) :])
        assert len(shown) >= len(before) or "--keep" in self._command

    def _shown(self, storage: Storage) -> list[str]:
        """Return the files that Spark sees."""
        paths = [line["path"].partition("/segments/")[2] for line in read_log(storage)]
        return [f"segments/{path}" for path in paths]

    def _read(self, storage: Storage) -> list[BatchEntry]:
        numbers = batch_ids(file.name for file in storage.list("batches"))
        entries = [read_entry(storage, number) for number in numbers]
        return [entry for entry in entries if entry is not None]

    def _entries(self, storage: Storage) -> list[list[str]]:
        """Return the files of each entry that has any."""
        files = [[file.name for file in entry.segments] for entry in self._read(storage)]
        return [names for names in files if names]

    def _bad_files(self) -> dict[str, bytes]:
        """Return the files of bad records that are there, by their names."""
        stored = open_storage(self._location, self._options).read("landing.json", limit=1 << 20)
        if not self._bad or stored is None:
            return {}
        storage = open_storage(self._bad, self._options)
        identity = json.loads(stored)["id"]
        with closing(BadRecordFiles(self._bad, self._options, identity, self._location, 1)) as own:
            names = storage.walk(own.directory)
        return {name: storage.read(name, limit=1 << 20) or b"" for name in names}

    def _bad_records(self) -> Counter[int]:
        tables = [pq.read_table(pa.BufferReader(data)) for data in self._bad_files().values()]
        return Counter(int(data) for table in tables for data in table.column("data").to_pylist())

    def _named(self, storage: Storage) -> list[str]:
        return [name for entry in self._entries(storage) for name in entry]

    def _records(self, storage: Storage, names: Iterable[str]) -> Counter[int]:
        found: Counter[int] = Counter()
        for name in names:
            data = storage.read(name, limit=1 << 20)
            assert data is not None, f"{name} has gone"
            table = pq.read_table(pa.BufferReader(data))
            found.update(map(int, table.column("id" if self._bad else "data").to_pylist()))
        return found


@pytest.fixture(scope="module")
def kinesis() -> Iterator[KinesisServer]:
    with KinesisServer(KinesisRules.fast()) as server:
        yield server


def on_s3(kinesis: KinesisServer, endpoint: str) -> Lander:
    return Lander(kinesis, f"s3://{BUCKET}/{uuid.uuid4().hex}", endpoint)


@pytest.fixture(params=STORAGES)
def lander(request: pytest.FixtureRequest, kinesis: KinesisServer, tmp_path: Path) -> Lander:
    if request.param == "disk":
        return Lander(kinesis, str(tmp_path), None)
    return on_s3(kinesis, request.getfixturevalue("moto"))


@pytest.mark.parametrize("operation", ["create", "publish", "delete"])
def test_kills_at_each_operation_lose_and_repeat_nothing(
    lander: Lander, operation: str, request: pytest.FixtureRequest
) -> None:
    storage = STORAGES[request.node.callspec.params["lander"]]
    orphan = Kill(f"{storage}.publish", "after")
    for when in ("before", "after"):
        call = 1
        while True:
            lander.put()
            if operation == "delete":
                assert lander.is_killed(orphan)  # the next run has something to delete
                assert lander.orphans() == 1
            if not lander.is_killed(Kill(f"{storage}.{operation}", when, call)):
                break
            lander.check()
            call += 1
        assert call > 1, "it was never killed"
        lander.check_all()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("options", "begin"),
    [
        (("--partition-by-date", "approximateArrivalTimestamp"), "date="),
        (("--partition-by", "shardId", "--partition-by", "partitionKey"), "parti"),
    ],
)
def test_kills_while_files_are_put_into_directories(
    kinesis: KinesisServer,
    tmp_path: Path,
    when: Literal["before", "after"],
    options: tuple[str, ...],
    begin: str,
) -> None:
    lander = Lander(kinesis, str(tmp_path), None, *options)
    # The first files that a run creates are its claim, its number, and one of Spark's log.
    calls = [("publish", 1), ("create", 4)]
    if begin != "date=":  # each record has a file
        calls += [("publish", 3), ("publish", 7), ("publish", 8)]
    for operation, call in calls:
        lander.put()
        assert lander.is_killed(Kill(f"{STORAGES['disk']}.{operation}", when, call))
        lander.check()
    lander.put()
    assert not lander.is_killed(Kill(f"{STORAGES['disk']}.publish", when, 1000))
    lander.check_all()
    assert {path.parent.name[:5] for path in tmp_path.rglob("*.parquet")} == {begin}


@pytest.mark.parametrize("when", ["before", "after"])
def test_kills_while_some_files_are_put_into_a_bucket_at_the_same_time(
    kinesis: KinesisServer, moto: str, when: Literal["before", "after"]
) -> None:
    location = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    lander = Lander(kinesis, location, moto, "--partition-by", "partitionKey")
    for call in range(1, 12):
        lander.put()
        assert lander.is_killed(Kill(f"{STORAGES['s3']}.publish", when, call))
        lander.check()
    lander.put()
    assert not lander.is_killed(Kill(f"{STORAGES['s3']}.publish", when, 1000))
    lander.check_all()


@pytest.mark.parametrize("operation", ["create", "publish"])
@pytest.mark.parametrize("place", STORAGES)
def test_kills_while_bad_records_are_kept(
    kinesis: KinesisServer,
    tmp_path: Path,
    operation: str,
    place: str,
    request: pytest.FixtureRequest,
) -> None:
    """Each record is once in the entries, or once in a file of bad records, as it came."""
    if place == "disk":
        lander = Lander(kinesis, str(tmp_path / "to"), None, bad=str(tmp_path / "bad"))
    else:
        endpoint, location = request.getfixturevalue("moto"), f"s3://{BUCKET}/{uuid.uuid4().hex}"
        lander = Lander(kinesis, location, endpoint, bad=f"{location}-bad")
    for when in ("before", "after"):
        # The second put of a bucket is refused, as it tries whether the store does so.
        call = 3 if (place, operation) == ("s3", "create") else 1
        while True:
            lander.put()
            if not lander.is_killed(Kill(f"{STORAGES[place]}.{operation}", when, call)):
                break
            lander.check()
            call += 1
        assert call > 4
        lander.check_all()


@pytest.mark.parametrize("when", ["before", "after"])
def test_kills_while_too_old_entries_are_deleted(
    kinesis: KinesisServer, tmp_path: Path, when: Literal["before", "after"]
) -> None:
    lander = Lander(kinesis, str(tmp_path), None, "--keep", "1m")
    for call in (1000, 2, 2, 3, 1000):
        lander.put()
        for file in tmp_path.glob("batches/*"):
            os.utime(file, (0, 0))
        assert lander.is_killed(Kill(f"{STORAGES['disk']}.delete", when, call)) == (call < 1000)
        lander.check()
    lander.check_newest()


@pytest.mark.parametrize("busy", [False, True])
def test_of_two_landers_of_one_bucket_the_newer_goes_on(
    kinesis: KinesisServer, moto: str, *, busy: bool
) -> None:
    lander = on_s3(kinesis, moto)
    lander.put()
    with lander.running() as older:
        assert older.stdout is not None
        first = older.stdout.readline()
        with lander.running() as newer:
            while busy and older.poll() is None:
                lander.put()
                time.sleep(0.1)
            rest, stderr = older.communicate()
            assert older.returncode == 2
            assert stderr.startswith("fanout land: "), stderr
            assert stderr.endswith("; this run stops\n"), stderr
            assert stderr.count("\n") == 1, stderr
            if not busy:  # otherwise it may find the number of its next entry taken
                assert " was taken over by a newer run: " in stderr
                assert f"process {newer.pid} on " in stderr
            lander.put()
            missing = lander.records - rows(first, *rest.splitlines())
            assert newer.stdout is not None
            while missing:
                missing -= rows(newer.stdout.readline())
            newer.send_signal(signal.SIGTERM)
            stdout, stderr = newer.communicate()
            assert (newer.returncode, stderr, stdout.count("\n")) == (0, "", 1)
    lander.check_all()


def rows(*lines: str) -> int:
    """Return the records of the entries that lines of output name."""
    return sum(json.loads(line)["rows"] for line in lines)
