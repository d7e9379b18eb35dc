"""A bucket in memory: what a landing and its landers store, in threads that die with a process."""

from __future__ import annotations

import asyncio
import json
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import pyarrow as pa
import pyarrow.parquet as pq

from fanout.landing.log.columns import IDENTITY
from fanout.landing.log.entries import BATCHES, decode_entry
from fanout.landing.segments.bad_records import BadRecordFiles
from fanout.landing.segments.partitions import partition_values
from fanout.landing.segments.segments import SEGMENTS, OpenSegment, run_of
from fanout.landing.storage.storage import FileInfo
from fanout.testing.virtual_time.loop import running_loop
from tests.provers.simulation.errors import OracleError
from tests.provers.simulation.landers.splits import is_bad
from tests.provers.simulation.randomness import happens, stream_of
from tests.provers.simulation.spark.threads import ThreadKilled, Threads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fanout.core.drain import Drained
    from fanout.landing.log.entries import BatchEntry
    from tests.provers.simulation.landers.plan import LandersPlan
    from tests.provers.simulation.landers.storage import Row
    from tests.provers.simulation.spark.threads import SimThread

__all__ = ("BAD", "HOST", "LANDING", "Bucket", "BucketStorage", "Host", "SimExecutor", "noting")

T = TypeVar("T")

LANDING: Final = "s3://model/landing"
BAD: Final = "s3://model/bad"
# A landing that was copied from this one has its identity, and keeps bad records beside it.
_COPY: Final = "s3://model/copy"

# How long the put of a process that was killed may still take.
LATEST: Final = 20.0


class Host:
    """A process with threads, which die with it."""

    def __init__(self) -> None:
        self.threads: dict[SimThread, None] = {}
        self.dead = False

    def check_alive(self) -> None:
        """Return while it lives.

        Raises:
            ThreadKilled: If it does not.
        """
        if self.dead:
            raise ThreadKilled

    def end_threads(self) -> None:
        """Kill its threads wherever they block."""
        self.dead = True
        for thread in [*self.threads]:
            thread.kill()


HOST: ContextVar[Host] = ContextVar("the process that runs")


@final
class Bucket:
    """The objects of a landing, of its bad records, and of another landing beside these.

    Args:
        plan: Of the run.
        root: Where processes write files before they publish them.
        entered: Called with each entry that is written, and the rows of its bad records.

    Attributes:
        objects: Their bytes by their addresses.
        files: The rows of each segment's file by its name.
        bad: The rows of each file of bad records by its name.
        named: The addresses of the files of entries.
        late: The names of files of bad records whose process was killed before they came.
        theirs: The addresses of the files of the other landing.
        swept: How many files of bad records were deleted.
        broken: The promises that were broken in threads.
        slow_until: Until when calls take seconds.
        refuses: How many of the next files it refuses, or takes without an answer.
        refused: How many it has refused.
        filled: For each run and split the last record that was put into a segment.
        putting: For each location, set when the next file is published there.
    """

    def __init__(
        self,
        plan: LandersPlan,
        root: Path,
        entered: Callable[[BatchEntry, tuple[Row, ...]], None],
    ) -> None:
        self.plan = plan
        self.objects: dict[str, bytes] = {}
        self.files: dict[str, tuple[Row, ...]] = {}
        self.bad: dict[str, tuple[Row, ...]] = {}
        self.named: set[str] = set()
        self.late: set[str] = set()
        self.theirs: set[str] = set()
        self.broken: list[OracleError] = []
        self.swept = 0
        self.slow_until = 0.0
        self.refuses = 0
        self.refused = 0
        self.filled: dict[tuple[int, str], int] = {}
        self.putting = {LANDING: asyncio.Event(), BAD: asyncio.Event()}
        self.random = stream_of(plan.seed, "bucket")
        self.loop = running_loop()
        self.threads = Threads(self.loop)
        self._entered = entered
        self.root = root

    def work(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Make a call that blocks in a thread of the process that runs."""
        return self.threads.start(HOST.get(), call)

    def pause(self) -> None:
        """Take some time."""
        slow, long = self.loop.time() < self.slow_until, happens(self.random, 0.1)
        self.threads.sleep(self.random.uniform(0.0, 2.0 if slow else 0.2 if long else 0.01))

    def broke(self, words: str) -> OracleError:
        """Note a broken promise: the library may handle the error where it is raised."""
        error = OracleError(words)
        self.broken.append(error)
        return error

    def put(self, address: str, data: bytes) -> None:
        """Keep an object, and know its rows.

        Raises:
            FileExistsError: There is one.
        """
        if address in self.objects:
            raise FileExistsError(address)
        self.objects[address] = data
        if address.startswith(f"{LANDING}/{SEGMENTS}/"):
            self.files[address.removeprefix(f"{LANDING}/")] = self._rows(address, data, bad=False)
        elif address.startswith(f"{BAD}/"):
            self._keep_bad(address, self._rows(address, data, bad=True))
        elif address.startswith(f"{LANDING}/{BATCHES}/"):
            self._enter(address, data)
        elif address == f"{LANDING}/{IDENTITY}":
            self._store_theirs(json.loads(data)["id"])

    def _rows(self, address: str, data: bytes, *, bad: bool) -> tuple[Row, ...]:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            columns = file.read(["split", "sequence"]).to_pydict()
        rows = tuple(zip(columns["split"], columns["sequence"], strict=True))
        directories = partition_values(address) if not bad else {}
        for split_id, sequence in rows:
            values = {"split": split_id, "sequence": str(sequence)}
            if is_bad(self.plan, split_id, sequence) != bad:
                raise self.broke(f"altered: record {sequence} of {split_id} is in {address}")
            if any(values[name] != value for name, value in directories.items()):
                raise self.broke(f"altered: record {sequence} of {split_id} is in {address}")
        return rows

    def _keep_bad(self, address: str, rows: tuple[Row, ...]) -> None:
        """Know bad records, of which a reader of all files sees none twice, but for late puts."""
        there = {row for name, kept in self.bad.items() if name not in self.late for row in kept}
        name = address.removeprefix(f"{BAD}/")
        if name not in self.late and not there.isdisjoint(rows):
            raise self.broke(f"duplicated: records of {address} are in another file")
        self.bad[name] = rows

    def _enter(self, address: str, data: bytes) -> None:
        number = int(address.rpartition("/")[2].partition(".")[0])
        entry = decode_entry(data, number, location="")
        if entry.bad and entry.bad not in self.bad:
            raise self.broke(f"lost: {entry.bad} is in an entry, and was never published")
        self.named |= {f"{LANDING}/{file.name}" for file in entry.segments}
        if entry.bad:
            self.named.add(f"{BAD}/{entry.bad}")
        try:
            self._entered(entry, self.bad.get(entry.bad, ()))
        except OracleError as error:
            raise self.broke(str(error)) from error

    def delete(self, address: str) -> None:
        """Delete an object, which may not be one that somebody needs.

        Raises:
            OracleError: If it is.
        """
        if address in self.theirs:
            raise self.broke(f"lost: {address} of another landing is deleted")
        if address in self.named:
            raise self.broke(f"lost: {address} is in an entry, and is deleted")
        self.swept += address.startswith(f"{BAD}/") and address in self.objects
        self.objects.pop(address, None)
        for location, rows in ((LANDING, self.files), (BAD, self.bad)):
            rows.pop(address.removeprefix(f"{location}/"), None)

    def _store_theirs(self, identity: str) -> None:
        """Let the other landing have files of bad records, of runs and entries as ours."""
        directory = BadRecordFiles(BAD, None, identity, _COPY, 1).directory
        for entry in range(3):
            address = f"{BAD}/{directory}/entry-{entry:012}-run-{1:06}.parquet"
            self.objects[address] = b"theirs"
            self.theirs.add(address)

    def left(self) -> dict[str, list[str]]:
        """Return what no entry names, by where it is."""
        unnamed = sorted(self.objects.keys() - self.named - self.theirs)
        segments = f"{LANDING}/{SEGMENTS}/"
        staged = f"{LANDING}/bad/run-"
        return {
            "segments": [each for each in unnamed if each.startswith(segments)],
            "staged": [each for each in unnamed if each.startswith(staged)],
            "bad": [each for each in unnamed if each.startswith(f"{BAD}/")],
        }


@final
@dataclass(eq=False)
class BucketStorage:
    """A storage of the library in a bucket, as one process opens it."""

    bucket: Bucket
    host: Host
    location: str
    _scratch: Path | None = field(default=None, init=False)

    def _address(self, name: str) -> str:
        return f"{self.location}/{name}"

    def read(self, name: str, *, limit: int) -> bytes | None:
        """Return an object."""
        del limit
        return self.bucket.objects.get(self._address(name))

    def open(self, name: str) -> Any:
        """Return what Parquet reads an object from."""
        try:
            return pa.BufferReader(self.bucket.objects[self._address(name)])
        except KeyError:
            raise FileNotFoundError(self._address(name)) from None

    def size(self, name: str) -> int | None:
        """Return how many bytes an object has."""
        data = self.bucket.objects.get(self._address(name))
        return None if data is None else len(data)

    def walk(self, directory: str) -> tuple[str, ...]:
        """List a directory and those in it."""
        inside = self._address(f"{directory}/")
        own = (each for each in self.bucket.objects if each.startswith(inside))
        return tuple(sorted(each.removeprefix(f"{self.location}/") for each in own))

    def list(self, directory: str) -> tuple[FileInfo, ...]:
        """List a directory."""
        names = (each.removeprefix(f"{directory}/") for each in self.walk(directory))
        return tuple(FileInfo(name, 1) for name in names if "/" not in name)

    def create(self, name: str, data: bytes) -> None:
        """Create an object."""
        self.bucket.pause()
        self.bucket.put(self._address(name), data)
        self.bucket.pause()

    def publish(self, local_file: Path, name: str) -> None:
        """Put a file; that of a process that is killed meanwhile may come later.

        Raises:
            FileExistsError: The name is taken.
            OSError: The bucket refuses, or its answer is lost.
        """
        bucket, data = self.bucket, local_file.read_bytes()
        bucket.putting[self.location].set()
        try:
            bucket.pause()
        except ThreadKilled:
            if happens(bucket.random, 0.3):
                later = partial(_put_later, bucket, self._address(name), data)
                bucket.loop.call_later(bucket.random.uniform(0.0, LATEST), later)
            raise
        refused = bucket.refuses > 0
        if refused:
            bucket.refuses -= 1
            bucket.refused += 1
        if not refused or happens(bucket.random, 0.5):
            bucket.put(self._address(name), data)
        if refused:
            raise OSError("the bucket refuses, or its answer is lost")
        local_file.unlink()
        bucket.pause()

    def delete(self, name: str) -> None:
        """Delete an object."""
        self.bucket.pause()
        self.bucket.delete(self._address(name))
        self.bucket.pause()

    def scratch(self) -> Path:
        """Return a directory of this storage."""
        if self._scratch is None:
            self._scratch = self.bucket.root / str(len([*self.bucket.root.iterdir()]))
            self._scratch.mkdir()
        return self._scratch

    def uri(self, name: str) -> str:
        """Return an address."""
        return self._address(name)

    def sweep(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _put_later(bucket: Bucket, address: str, data: bytes) -> None:
    if address not in bucket.objects:
        bucket.late.add(address.removeprefix(f"{BAD}/"))
        bucket.put(address, data)


@final
class SimExecutor:
    """A `ThreadPoolExecutor` whose threads are those of the process that runs.

    Args:
        most: How many calls it makes at the same time.
        threads: The threads of the loop.
    """

    def __init__(self, most: int, threads: Threads) -> None:
        self._most = most
        self._threads = threads
        self._calls: list[asyncio.Future[Any]] = []

    def __enter__(self) -> SimExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        for call in self._calls:
            self._threads.until(call)

    def submit(self, work: Callable[..., T], *arguments: Any) -> _Submitted:
        """Make a call when there is room."""
        running = [call for call in self._calls if not call.done()]
        before = running[-self._most] if len(running) >= self._most else None

        def made() -> T:
            if before is not None:
                self._threads.until(before)
            return work(*arguments)

        call = self._threads.start(HOST.get(), made)
        call.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._calls.append(call)
        return _Submitted(self._threads, call)


@final
class _Submitted:
    """A `Future` of `concurrent.futures`."""

    def __init__(self, threads: Threads, call: asyncio.Future[Any]) -> None:
        self._threads = threads
        self._call = call

    def result(self) -> Any:
        """Wait for what the call returns or raises."""
        self._threads.until(self._call)
        return self._call.result()


def noting(bucket: Bucket) -> Callable[[OpenSegment, Drained], None]:
    """Return `OpenSegment.add`, which notes what is put into segments."""
    add = OpenSegment.add

    def noted(segment: OpenSegment, drained: Drained) -> None:
        add(segment, drained)
        run = run_of(segment.path.name)
        assert run is not None
        for batch in drained.batches:
            if batch.num_records:
                last = batch.records.column("sequence")[-1].as_py()
                bucket.filled[run, batch.split.id] = last

    return noted
