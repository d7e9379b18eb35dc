"""A landing and a table that names its files, in virtual time, and all that happens to them."""

from __future__ import annotations

import asyncio
import io
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeVar
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from fanout.core.checkpoint import Checkpoint
from fanout.errors import CheckpointError, OptionError
from fanout.landing import retention as retention_module
from fanout.landing.claims import ThisProcess, claim
from fanout.landing.lander import Landing, _fence
from fanout.landing.log.columns import LandedColumns, give_identity
from fanout.landing.log.entries import BATCHES, BatchEntry, EntryLog, decode_entry
from fanout.landing.projections import delta, iceberg, table_projection
from fanout.landing.projections.delta import DeltaTable
from fanout.landing.projections.iceberg import IcebergTable
from fanout.landing.projections.table_projection import NamedFiles, TableProjection
from fanout.landing.retention import Retention, sweep_orphans
from fanout.landing.segments.segments import SEGMENTS, SegmentFile
from fanout.landing.storage.storage import FileInfo
from fanout.testing.virtual_time.loop import running_loop
from tests.provers.simulation.spark.threads import ThreadKilled, Threads
from tests.provers.simulation.tables.model import (
    CALLER,
    DELTALAKE,
    BrokenRuleError,
    Catalog,
    ModelTable,
    Referee,
)
from tests.support.manual_source import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.provers.simulation.spark.threads import SimThread

_T = TypeVar("_T")

_POSITIONS: Final = Checkpoint("model")
_KEEP: Final = timedelta(minutes=10)
_LATEST: Final = 900.0  # seconds until a late commit lands
_TAKEN_BACK: Final = "an engine has taken it back"
_OTHER_HISTORY: Final = ("it has the entries up to", "it is of another history")
_EPOCH: Final = 1_790_000_000.0


def _parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table([["a"], [1], [b"1"]], schema=SCHEMA), sink)
    return sink.getvalue()


_FILE: Final = _parquet()


@dataclass(eq=False)
class World:
    """The storage, the table, and what fails."""

    random: Random
    faults: float
    kind: str
    keep: timedelta | None
    meetings: float  # how often a second run begins while the first one looks or commits
    threads: Threads = field(init=False)
    referee: Referee = field(init=False)
    storage: ModelStorage = field(init=False)
    down: bool = False
    made: int = 0
    late: int = 0
    backup: tuple[dict[Any, Any], ...] = ()
    runs: list[Run] = field(default_factory=list)
    broken: list[BaseException] = field(default_factory=list)  # rules, and what no run may raise

    def __post_init__(self) -> None:
        self.loop = running_loop()
        self.threads = Threads(self.loop)
        self.referee = Referee(lambda: self.storage.files)
        self.storage = ModelStorage(self)

    def happens(self, part: float = 1.0) -> bool:
        return self.random.random() < self.faults * part

    def millis(self) -> int:
        return int((_EPOCH + self.loop.time()) * 1000)

    def make(self, configuration: dict[str, str]) -> None:
        """Make the table."""
        self.made += 1
        self.referee.table = ModelTable(f"table {self.made}", self.referee, dict(configuration))

    def start(self) -> None:
        """Start a run; one that goes on is taken over, and may be in the middle of a commit."""
        if self.runs:
            self.referee.causes.add("it has the entries up to")
        random = self.random
        Run(self, random.randint(0, 8), random.random() < 0.9 or self.keep is not None).start()

    def pause(self, low: float, high: float) -> None:
        self.threads.sleep(self.random.uniform(low, high))

    def call(self, work: Callable[[], _T]) -> _T:
        """Call the table's service, which may refuse, or answer late or not, or be called late."""
        if self.random.random() < self.meetings and len(self.runs) < 2:
            self.start()  # while this run is in the middle of a commit
        self.pause(0.01, self.random.choice((0.5, 0.5, 20.0)))
        if self.down or self.happens():
            raise OSError("it refuses")
        if self.happens(0.5):  # nobody waits for the answer
            self.late += 1
            self.loop.call_later(self.random.uniform(1.0, _LATEST), partial(self._late, work))
            self.pause(5.0, 30.0)
            raise TimeoutError("no answer")
        if self.happens(0.1):
            self.referee.causes.add("it does not answer for")
            self.pause(10.0, _LATEST)
        answer = work()
        self.pause(0.01, 0.5)
        if self.happens():
            raise ConnectionResetError("the answer was lost")
        return answer

    async def settled(self) -> None:
        """Wait until no run goes on, and no call is under way."""
        while self.runs or self.late:  # noqa: ASYNC110 - threads end without a notice
            await asyncio.sleep(10.0)

    def _late(self, work: Callable[[], object]) -> None:
        self.late -= 1
        try:
            work()
        except BrokenRuleError as error:
            self.broken.append(error)
        except Exception:  # noqa: BLE001, S110 - nobody hears of it
            pass

    def in_time(self, call: Callable[[], _T], seconds: float) -> _T:
        """Do what `_in_time` does, in virtual time."""
        done = self.threads.start(CALLER.get(), call)
        ended: asyncio.Future[None] = self.loop.create_future()

        def end(_: object = None) -> None:
            if not ended.done():
                ended.set_result(None)

        done.add_done_callback(end)
        done.add_done_callback(lambda future: future.cancelled() or future.exception())
        timer = self.loop.call_later(seconds, end)
        try:
            self.threads.until(ended)
        finally:
            timer.cancel()
        if not done.done():
            raise OptionError(f"it does not answer for {seconds:.0f} s")
        return done.result()


@dataclass(eq=False)
class ModelStorage:
    """The storage of the landing: a bucket."""

    world: World
    files: dict[str, bytes] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    location: str = "s3://model/landing"

    def read(self, name: str, *, limit: int) -> bytes | None:
        del limit
        return self.files.get(name)

    def open(self, name: str) -> Any:
        try:
            return pa.BufferReader(self.files[name])
        except KeyError:
            raise FileNotFoundError(name) from None

    def walk(self, directory: str) -> tuple[str, ...]:
        return tuple(sorted(name for name in self.files if name.startswith(f"{directory}/")))

    def list(self, directory: str) -> tuple[FileInfo, ...]:
        return tuple(
            FileInfo(name.rpartition("/")[2], len(self.files[name]), self.written[name])
            for name in self.walk(directory)
        )

    def create(self, name: str, data: bytes) -> None:
        self.world.pause(0.001, 0.1)
        if name in self.files:
            raise FileExistsError(name)
        self.files[name], self.written[name] = data, self.world.millis()
        if name.startswith(BATCHES):
            number = int(name.rpartition("/")[2].partition(".")[0])
            entry = decode_entry(data, number, location="")
            self.world.referee.entries[number] = tuple(file.name for file in entry.segments)
        self.world.pause(0.001, 0.1)

    def delete(self, name: str) -> None:
        self.world.pause(0.001, 0.1)
        self.world.referee.check_deleted(name)
        self.files.pop(name, None)
        self.world.pause(0.001, 0.1)


@dataclass(eq=False)
class Run:
    """A process that lands entries."""

    world: World
    entries: int
    has_table: bool = True
    dead: bool = False
    told: Any = None
    threads: dict[SimThread, None] = field(default_factory=dict)

    def start(self) -> asyncio.Future[None]:
        self.world.runs.append(self)
        ended = self.world.threads.start(self, self._live)
        ended.add_done_callback(self._end)
        return ended

    def _end(self, ended: asyncio.Future[None]) -> None:
        if not ended.cancelled() and (error := ended.exception()):
            self.world.broken.append(error)

    def check_alive(self) -> None:
        if self.dead:
            raise ThreadKilled

    def kill(self) -> None:
        self.dead = True
        for thread in list(self.threads):
            thread.kill()

    def _live(self) -> None:
        CALLER.set(self)
        try:
            with ExitStack() as claims:
                self._land(claims)
        except CheckpointError:
            pass  # a newer run has taken over
        finally:
            self.world.runs.remove(self)

    def _land(self, claims: ExitStack) -> None:
        world: World = self.world
        owned: Any = world.storage
        ownership = claims.enter_context(claim(owned, ThisProcess("model"), 0.0))
        log = EntryLog(owned, ownership)
        positions = log.positions() or log.write_origin(_POSITIONS.to_json())
        _fence(owned, log, positions)
        give_identity(owned, SCHEMA)
        retention = Retention(owned, log, world.keep, timedelta(days=7))
        files = NamedFiles(owned, {}, LandedColumns(SCHEMA))
        option: Any = DeltaTable() if world.kind == "delta" else IcebergTable("lab", "db.orders")
        tables = [TableProjection(option.open(files), log, ownership)] if self.has_table else []
        nothing: Any = None
        sweep_orphans(owned, log, ownership)
        landing = Landing(
            nothing,
            nothing,
            owned,
            log,
            retention=retention,
            spark_log=None,
            partitions=(),
            tables=tables,
        )
        self._complete(log, tables)
        for number in range(self.entries):
            world.pause(0.1, 90.0)
            segments = self._publish(ownership.run, number)
            entry = BatchEntry(log.next_number, "", segments, positions)
            landing._after(*landing._enter(entry))
            self._check(log, tables)
        self._complete(log, tables)

    def _publish(self, run: int, number: int) -> tuple[SegmentFile, ...]:
        count = self.world.random.choice((0, 1, 1, 2, 3))
        names = [
            f"{SEGMENTS}/date=2026-11-{day + 1:02}/run-{run:06}-{number + 1:08}.parquet"
            for day in range(count)
        ]
        for name in names:
            self.world.storage.create(name, _FILE)
        return tuple(SegmentFile(name, 1, len(_FILE)) for name in names)

    def _complete(self, log: EntryLog, tables: list[TableProjection]) -> None:
        for table in tables:
            while table.complete():
                pass
        self._check(log, tables)

    def _check(self, log: EntryLog, tables: list[TableProjection]) -> None:
        for table in tables:
            self.told = table.statistics()
            seen: Any = table._table
            known = seen._table
            newest = log.next_number - 1
            self.world.referee.check_told(self.told, known and known.table, newest)


def _append(world: World, table: ModelTable) -> None:
    table.commit({f"other-{world.random.random()}": frozenset()})


def _compact(world: World, table: ModelTable) -> None:
    files = table.newest.files
    if chosen := [name for name in files if world.random.random() < 0.7]:
        rows = frozenset[str]().union(*(files[name] for name in chosen))
        table.commit({f"compacted-{world.random.random()}": rows}, chosen)


def _delete_rows(world: World, table: ModelTable) -> None:
    """Delete the rows of a file, as an engine does for one's rights."""
    files = [name for name, rows in table.newest.files.items() if rows]
    if files:
        chosen = world.random.choice(files)
        rows = sorted(table.newest.files[chosen])
        kept = frozenset(rows[1:])
        table.commit({f"rewritten-{world.random.random()}": kept}, [chosen])


def _vacuum(world: World, table: ModelTable) -> None:
    """Delete the files that were compacted."""
    if gone := (table.added.keys() - table.newest.files.keys()) & world.storage.files.keys():
        world.referee.causes.add("an engine has deleted")
        for name in gone:
            del world.storage.files[name]


def _take_back(world: World, table: ModelTable) -> None:
    """Take the table back, or forward again, to a version whose files are all there."""
    stored = world.storage.files.keys()
    fit = [
        number
        for number, version in enumerate(table.versions)
        if all(name in stored for name in version.files if name.startswith(SEGMENTS))
    ]
    if fit and world.keep is None:  # retention could delete what is there again
        world.referee.causes.add(_TAKEN_BACK)
        table.take_back(world.random.choice(fit))


def _restore(world: World, table: ModelTable) -> None:
    """Back the landing up, or restore it as it was then; the table stays as it is."""
    storage, referee = world.storage, world.referee
    if not world.backup or world.random.random() < 0.5:
        world.backup = ({**storage.files}, {**storage.written}, {**referee.entries})
        return
    storage.files, storage.written, referee.entries = ({**one} for one in world.backup)
    if table.added.keys() - {name for names in referee.entries.values() for name in names}:
        table.foreign = True
        referee.causes |= {*_OTHER_HISTORY}


def _drop(world: World, table: ModelTable) -> None:
    # Another run may make it anew, or a late call to make it may arrive.
    world.referee.causes |= {"it was dropped", "it was replaced by another table"}
    table.dropped = True
    world.referee.table = None


def _replace(world: World, table: ModelTable) -> None:
    _drop(world, table)
    world.make({})


_OTHERS: Final = {
    "append": _append,
    "compact": _compact,
    "delete rows": _delete_rows,
    "vacuum": _vacuum,
    "take back": _take_back,
    "restore": _restore,
    "drop": _drop,
    "replace": _replace,
}


async def _step(world: World, others: tuple[str, ...]) -> None:
    random = world.random
    what = random.choice(("start", "kill", "outage", *others))
    if what == "start" and len(world.runs) < 2:
        world.start()
    elif what == "kill" and world.runs and world.faults:
        random.choice(world.runs).kill()
    elif what == "outage" and world.faults:
        world.down = True
        await asyncio.sleep(random.uniform(1.0, 200.0))
        world.down = False
    if what == "restore":
        await world.settled()
    if what in _OTHERS and world.referee.table is not None:
        _OTHERS[what](world, world.referee.table)
    await asyncio.sleep(random.choice((0.05, 0.5, 5.0, 60.0)))


async def _run(world: World) -> None:
    random = world.random
    if random.random() < 0.3:
        keep, world.keep = world.keep, None
        await Run(world, random.randint(1, 12), has_table=False).start()
        world.keep = keep
    others = tuple(name for name in _OTHERS if random.random() < 0.4)
    for _ in range(random.randint(5, 30)):
        await _step(world, others)
    world.meetings = 0.0
    await world.settled()
    world.faults = 0.0
    await asyncio.sleep(2 * _LATEST)
    last = Run(world, 2)
    await last.start()
    _check_end(world, last)


def _check_end(world: World, last: Run) -> None:
    table, storage = world.referee.table, world.storage
    assert not world.broken, world.broken
    if table is not None and (table.lost or table.foreign):
        reasons = (_TAKEN_BACK,) if table.lost else _OTHER_HISTORY
        assert last.told.stopped and last.told.failure.startswith(reasons), last.told  # noqa: PT018
        return
    if last.told.stopped and last.told.failure.startswith("an engine has deleted"):
        return
    assert table is not None
    assert (last.told.entries_behind, last.told.failure) == (0, ""), last.told
    newest = max(world.referee.entries)
    assert world.referee.missing(table, newest) == []
    named = {name for name in table.newest.files if name.startswith(f"{SEGMENTS}/")}
    assert named <= storage.files.keys(), "files that it names were deleted"


async def run_seed(seed: int) -> World:
    """Run processes on a landing, with or without faults, and hold the rules."""
    random = Random(seed)
    kind = random.choice(("delta", "iceberg"))
    world = World(
        random,
        random.choice((0.0, 0.03, 0.15)),
        kind,
        random.choice((None, _KEEP)),
        random.choice((0.0, 0.1)),
    )
    clock = SimpleNamespace(monotonic=world.loop.time, time_ns=lambda: world.millis() * 1_000_000)
    with ExitStack() as patches:
        for owner, name, value in (
            (table_projection, "_in_time", world.in_time),
            (table_projection, "time", clock),
            (table_projection, "_ENTRIES", random.choice((3, 100))),
            (table_projection, "_FILES", random.choice((2, 1_000))),
            (retention_module, "time", clock),
            (delta, "deltalake", DELTALAKE),
            # Files of an entry share a name, as of partitions, which the table does not have.
            (delta, "partition_values", lambda _: {}),
            (iceberg, "load_catalog", lambda *_, **__: Catalog(world)),
        ):
            patches.enter_context(patch.object(owner, name, value))
        await _run(world)
    return world
