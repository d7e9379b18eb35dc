"""A stand-in for Spark's session: its reader, its lock, and its loop of micro-batches."""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Self, final

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError

from fanout.errors import CheckpointError
from tests.provers.simulation.randomness import happens
from tests.provers.simulation.spark.process import current_process

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from random import Random

    from tests.provers.simulation.spark.arriving_source import Row
    from tests.provers.simulation.spark.process import SimJvm

__all__ = ("DriverClock", "Locks", "SimDataFrame", "SimSparkSession", "SparkCheckpointLog")

_QUERY_ID = "5d0c1e0a-simulated"


@final
@dataclass(slots=True)
class SparkCheckpointLog:
    """The log that Spark itself writes: the offsets of a batch before it, the commit after it."""

    offsets: list[int] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)

    @property
    def next_id(self) -> int:
        """The batch that a new query begins with: the last one, unless it was committed."""
        last = max(self.offsets, default=-1)
        return last + 1 if last in self.commits or last < 0 else last

    def add(self, entries: list[int], batch_id: int, what: str) -> None:
        """Write a log file, unless there is one.

        Raises:
            RuntimeError: If there is: another query is at work here.
        """
        current_process.get().operation(f"spark {what}", str(batch_id))
        if batch_id in entries:
            raise RuntimeError(f"Concurrent update to the log: batch {batch_id}")
        entries.append(batch_id)

    def restore(self, newest: int) -> None:
        """Have every file again up to the offsets of a batch."""
        self.offsets = list(range(newest + 1))
        self.commits = list(range(newest))

    def forget(self, count: int) -> None:
        """Lose the last files, as they were written: a commit, its offsets, the commit before."""
        for _ in range(count):
            last = max(self.offsets, default=None)
            if self.commits and (last is None or max(self.commits) >= last):
                self.commits.remove(max(self.commits))
            elif last is not None:
                self.offsets.remove(last)


@final
class SimDataFrame:
    """A DataFrame of Parquet files, which are read when something asks for its rows."""

    def __init__(self, *reads: Callable[[], bytes]) -> None:
        self._reads = reads

    def table(self) -> pa.Table:
        """Read the files whole, with their checksums, as a job of Spark does.

        Raises:
            Py4JError: If one is missing or damaged.
        """
        try:
            sources = [io.BytesIO(read()) for read in self._reads]
            files = [pq.ParquetFile(each, page_checksum_verification=True) for each in sources]
            return pa.concat_tables(file.read(use_threads=False) for file in files)
        except (OSError, pa.ArrowException) as error:
            raise Py4JError(f"the job failed: {error}") from error

    def rows(self) -> list[Row]:
        """Return the records."""
        columns = self.table().to_pydict()
        return list(zip(columns["split"], columns["sequence"], columns["data"], strict=True))

    @property
    def columns(self) -> list[str]:
        """The columns that the file has, as Spark infers them of one that is read without a schema.

        Raises:
            Py4JError: If it is missing or damaged.
        """
        names: list[str] = self._footer().schema.to_arrow_schema().names
        return names

    def count(self) -> int:
        """Return the number of rows, which the end of the file holds."""
        rows: int = self._footer().num_rows
        return rows

    def _footer(self) -> pq.FileMetaData:
        try:
            (read,) = self._reads
            return pq.read_metadata(io.BytesIO(read()))
        except (OSError, pa.ArrowException) as error:
            raise Py4JError(f"the job failed: {error}") from error

    @property
    def write(self) -> _NoopWriter:
        """Return a writer that reads everything and writes nothing."""
        return _NoopWriter(self)


@final
class _NoopWriter:
    def __init__(self, frame: SimDataFrame) -> None:
        self._frame = frame

    def format(self, name: str) -> Self:
        assert name == "noop"
        return self

    def mode(self, _: str) -> Self:
        return self

    def save(self) -> None:
        self._frame.table()


@final
class SimSparkSession:
    """The part that the library uses of a SparkSession.

    Args:
        log: Spark's own files in the checkpoint.
        random: Whether a stop comes before a commit.
        objects: What the remote store holds.
    """

    def __init__(self, log: SparkCheckpointLog, random: Random, objects: dict[str, bytes]) -> None:
        self.log = log
        self.random = random
        self._objects = objects
        self.conf = SimpleNamespace(get=lambda _: "false")  # of spark.sql.caseSensitive
        self.sparkContext = SimpleNamespace(appName="simulated", applicationId="local-1")
        handle = SimpleNamespace(pid=lambda: 1)
        process = SimpleNamespace(current=lambda: handle)
        lang = SimpleNamespace(ProcessHandle=process)
        self._jvm = SimpleNamespace(java=SimpleNamespace(lang=lang))

    @property
    def read(self) -> Self:
        """Return the reader."""
        return self

    def schema(self, _: object) -> Self:
        """Take the schema, which the file has anyway."""
        return self

    def option(self, name: str, value: str) -> Self:
        """Take an option: the reader refuses what is damaged, as these say."""
        expected = {
            "parquet.page.verify-checksum.enabled": "true",
            "datetimeRebaseMode": "CORRECTED",
            "int96RebaseMode": "CORRECTED",
        }.get(name, "false")
        assert value == expected, f"{name}={value} would hide or alter something"
        return self

    def parquet(self, *uris: str) -> SimDataFrame:
        """Return files as a DataFrame.

        Raises:
            Py4JError: If there is no such file.
        """
        disk = current_process.get().disk

        def read(uri: str) -> bytes:
            if uri.startswith("file://"):
                return disk.file(uri.removeprefix("file://")).data
            _, found, name = uri.partition("/fanout/")
            if not found or name not in self._objects:
                raise FileNotFoundError(uri)
            return self._objects[name]

        return SimDataFrame(*(functools.partial(read, uri) for uri in uris))


@final
class DriverClock:
    """The part that the library uses of Spark's streaming query: it runs one batch after the other.

    Args:
        session: Where it runs.
    """

    name = None
    id = _QUERY_ID

    def __init__(self, session: SimSparkSession) -> None:
        self._session = session
        self._stopping = False
        self._error: Exception | None = None
        self._committed: int | None = None
        self._process = current_process.get()
        self._done: asyncio.Future[None]

    def foreachBatch(self, function: Callable[[object, int], None]) -> Self:  # noqa: N802 - Spark's
        """Take the function that is called with each batch."""
        self._function = function
        return self

    def start(self) -> Self:
        """Begin with the first batch that was not committed."""
        self._done = self._process.scheduler.start(self._process, self._run)
        return self

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's
        """Whether batches go on."""
        return not self._stopping and not self._done.done()

    @property
    def lastProgress(self) -> dict[str, int] | None:  # noqa: N802 - Spark's
        """The report of the newest batch that was committed."""
        return None if self._committed is None else {"batchId": self._committed}

    @property
    def recentProgress(self) -> list[dict[str, int]]:  # noqa: N802 - Spark's
        """The newest reports."""
        return [] if self.lastProgress is None else [self.lastProgress]

    @property
    def status(self) -> dict[str, bool]:
        """Whether a batch is at work: one follows the other."""
        return {"isTriggerActive": self.isActive}

    def stop(self) -> None:
        """End after the running batch, and wait for that."""
        self._stopping = True
        self._process.scheduler.until(self._done)

    def exception(self) -> Exception | None:
        """Return what ended it."""
        return self._error

    def _run(self) -> None:
        log = self._session.log
        batch_id = log.next_id
        known = batch_id in log.offsets
        try:
            while not self._stopping:
                if not known:
                    log.add(log.offsets, batch_id, "offsets")
                self._function(None, batch_id)
                if self._stopping and happens(self._session.random, 0.5):
                    return
                log.add(log.commits, batch_id, "commit")
                self._committed = batch_id
                batch_id, known = batch_id + 1, False
        except Exception as error:  # noqa: BLE001 - Spark's query ends with it
            self._error = error


@final
class Locks:
    """The locks on files, each of which a JVM holds as long as it lives.

    Args:
        holders: The JVM that has locked a path.
    """

    def __init__(self) -> None:
        self.holders: dict[str, SimJvm] = {}

    def try_acquire(self, _: object, path: object) -> _Lock | None:
        """Lock a path, unless a JVM that lives has."""
        process = current_process.get()
        try:
            process.slow_operation("lock", str(path))
        except OSError as error:
            raise CheckpointError(f"cannot lock {path}: {error}") from error
        holder = self.holders.get(str(path))
        if holder is not None and holder.alive:
            return None
        self.holders[str(path)] = process.jvm
        return _Lock(self, str(path), process.jvm)

    def held_here(self, _: object, path: object) -> bool:
        """Say whether the JVM of the running process has it."""
        return self.holders.get(str(path)) is current_process.get().jvm


@final
@dataclass(frozen=True, slots=True)
class _Lock:
    locks: Locks
    path: str
    jvm: SimJvm

    @property
    def held(self) -> bool:
        """Whether it is still held."""
        return self.locks.holders.get(self.path) is self.jvm

    def release(self) -> None:
        """Free it."""
        process = current_process.get()
        if process.alive:  # a process that was killed frees nothing; its JVM does, by ending
            del self.locks.holders[self.path]
