"""Land a source in Parquet files, exactly once and without Spark."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, final

from fanout.core.cancellation import TaskScope, in_thread
from fanout.core.error_text import text_of
from fanout.core.opening import ResumePoint, resolved_start
from fanout.core.record_decoder import reader_of
from fanout.errors import CheckpointError, OptionError, PositionError, StreamStateError
from fanout.landing.claims import ThisProcess, claim
from fanout.landing.log.bad_places import BadRecordPlaces
from fanout.landing.log.columns import (
    continued,
    give_identity,
    keep_columns,
    stored_columns,
)
from fanout.landing.log.entries import BatchEntry, EntryLog
from fanout.landing.log.evolution import without_new_columns
from fanout.landing.log.followed import LandedEntry
from fanout.landing.log.gaps import check_whole
from fanout.landing.log.reading import LandingPlace
from fanout.landing.projections.table_projection import NamedFiles, TableProjection
from fanout.landing.retention import (
    Retention,
    check_no_files,
    sweep_files_of_landers,
    sweep_orphans,
)
from fanout.landing.segments.partitions import publish_segment
from fanout.landing.segments.segment_filler import NoRecords
from fanout.landing.segments.segments import Filled, LandedBatch
from fanout.landing.spark_log import SparkLog
from fanout.landing.storage.opening import open_storage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    import pyarrow as pa

    from fanout.core.checkpoint import Checkpoint
    from fanout.core.source import Capabilities, Source
    from fanout.core.statistics import Statistics
    from fanout.landing.claims import Ownership
    from fanout.landing.log.reading import LandedSegments, LandedStream, Reading
    from fanout.landing.projections.table_projection import Projection, TableOption
    from fanout.landing.segments.bad_records import BadRecordFiles
    from fanout.landing.segments.partitions import PartitionField
    from fanout.landing.segments.segments import SegmentFile
    from fanout.landing.storage.storage import LandingStorage, Storage

_LOG: Final = logging.getLogger(__name__)

# How often positions are stored of a stream without records: a restart after a long silence must
# not begin at a position that the service has forgotten.
_IDLE_SECONDS: Final = 3600.0
# How long a process that ends may keep the lock of a landing on the local disk.
_WAIT_FOR_LOCK: Final = 5.0
# How often a run looks whether a newer one has taken over: Kinesis lets two runs take a shard's
# subscription from each other every 5 s.
_CLAIM_SECONDS: Final = 5.0
KEEP_FOR_READERS: Final = timedelta(days=7)


@final
class Landing:
    """A source that is being landed; made by `fanout.land`. Iterate it: that moves it on.

    One task iterates. Each entry is durable before it is yielded, and acknowledged to the service.

    Args:
        stream: The stream.
        filler: Fills segments from it.
        storage: Where they are published.
        log: The entries.
        retention: Deletes what is too old.
        spark_log: By which Spark reads it; None where Spark has no name for its location.
        partitions: The directories into which files are put.
        tables: The tables that name its files.
        bad: The files of bad records; None where there are none.
    """

    def __init__(
        self,
        stream: LandedStream,
        filler: LandedSegments,
        storage: LandingStorage,
        log: EntryLog,
        *,
        retention: Retention,
        spark_log: SparkLog | None,
        partitions: tuple[PartitionField, ...],
        tables: Sequence[TableProjection] = (),
        bad: BadRecordFiles | None = None,
    ) -> None:
        self._stream = stream
        self._filler = filler
        self._storage = storage
        self._log = log
        self._retention = retention
        self._spark_log = spark_log
        self._tables = tables
        self._projections: list[Projection] = [*tables]
        if spark_log is not None:
            self._projections.insert(0, spark_log)
        self._partitions = partitions
        self._bad = bad
        self._written: BatchEntry | None = None  # not yielded yet
        self._failure: Exception | None = None
        self._loss: CheckpointError | None = None

    def __aiter__(self) -> Landing:
        return self

    async def __anext__(self) -> LandedEntry:
        """Wait until the next entry is durable; the iteration ends where the source does.

        Raises:
            FanOutError: The failure of the source, after its last records were landed.
            CheckpointError: The location refused, or a newer run has taken it over.

        Cancellation: a write that has begun is waited for, and the next call yields its entry.
        """
        while self._written is None:
            if self._failure is not None:
                raise self._failure
            try:
                result = await self._filler.next(_IDLE_SECONDS)
            except StreamStateError as error:
                raise (self._loss or error) from None
            if isinstance(result, Filled | LandedBatch):
                await in_thread(partial(self._write, result))
                continue
            if self._loss is not None:
                raise self._loss
            if isinstance(result, NoRecords):
                await self._land_positions(result.positions)
            if not isinstance(result, NoRecords) or result.finished:
                raise StopAsyncIteration
        entry = self._written
        await self._stream.acknowledge(entry.positions)
        self._written = None
        return LandedEntry.of(entry, self._storage.location)

    def stop(self) -> None:
        """Land what was read, and end the iteration, for example when SIGTERM comes.

        Call it in the loop's thread, as `loop.add_signal_handler(signal.SIGTERM, landing.stop)`
        does; idempotent.
        """
        self._stream.stop()

    def statistics(self) -> Statistics:
        """Return the counters of the stream and of each split, as of now."""
        tables = tuple(table.statistics() for table in self._tables)
        return replace(self._filler.statistics(), tables=tables)

    @asynccontextmanager
    async def filling(
        self, ownership: Ownership, files_of_landers: list[str]
    ) -> AsyncIterator[None]:
        """Fill files in the background while the block runs, as long as this run owns them.

        Args:
            ownership: The claim of this run.
            files_of_landers: The files that landers of earlier runs have written.
        """
        ending = threading.Event()
        async with TaskScope() as tasks:
            filling = tasks.spawn(self._fill())
            tasks.spawn(self._watch(ownership, filling))
            tasks.spawn(self._sweep(files_of_landers, ending))
            try:
                yield
            finally:
                ending.set()

    async def _fill(self) -> None:
        # The next step of the iteration raises what has ended the filler.
        with suppress(Exception):
            await self._filler.run()

    async def _watch(self, ownership: Ownership, filling: asyncio.Task[None]) -> None:
        """End the filler when a newer run has taken over, which reads the same source."""
        while self._loss is None:
            await asyncio.sleep(_CLAIM_SECONDS)
            # A store that does not answer for a while is no reason to end: nothing is written.
            with suppress(CheckpointError):
                self._loss = await in_thread(ownership.loss)
        filling.cancel()

    async def _sweep(self, files_of_landers: list[str], ending: threading.Event) -> None:
        """Delete what landers of earlier runs left; it may take long, and nothing waits for it."""
        try:
            await in_thread(
                lambda: sweep_files_of_landers(self._storage, self._log, files_of_landers, ending)
            )
        except CheckpointError as error:
            _LOG.warning(
                "what landers of earlier runs left is not deleted before the next run: %s",
                text_of(error),
            )

    def _write(self, taken: Filled | LandedBatch) -> None:
        try:
            self._written = self._publish(taken)
        except Exception as error:
            self._failure = error  # to go on would skip these records
            raise

    def _publish(self, taken: Filled | LandedBatch) -> BatchEntry:
        number, bad = self._log.next_number, ""
        if isinstance(taken, LandedBatch):
            files, watermark = taken.segments, taken.watermark
            if self._bad is not None:
                bad = self._bad.gather(self._storage, taken.bad, number)
        else:
            segment, watermark = taken.segment, taken.segment.watermark
            if self._bad is not None:
                bad = self._bad.publish(segment, number)
            files = publish_segment(self._storage, segment, self._partitions)
        entry, expired = self._enter(_entry(number, files, taken.positions, watermark, bad))
        if isinstance(taken, LandedBatch):
            for name in taken.bad:
                with suppress(CheckpointError):  # the next run deletes it
                    self._storage.delete(name)
        self._after(entry, expired)
        return entry

    def _enter(self, entry: BatchEntry) -> tuple[BatchEntry, set[str]]:
        """Write an entry, which says what may be deleted after it; return the files of that too."""
        expired = self._retention.expire(entry.batch_id)
        entry = replace(entry, first=self._log.first)
        try:
            self._log.write(entry)
        except CheckpointError:
            self._discard_unnamed(entry)
            raise
        return entry, expired

    def _after(self, entry: BatchEntry, expired: set[str]) -> None:
        """Show others an entry that was written, and delete what is too old."""
        gone, now = self._spark_log is not None or self._retention.is_due, Retention.now()
        for projection in self._projections:
            # What one of them keeps leaves the later ones with it, many files at once.
            gone = projection.write(entry, expired if gone else (), now) and gone
        if gone:
            self._retention.delete()

    def _discard_unnamed(self, entry: BatchEntry) -> None:
        """Delete files that came too late: another run has the number of their entry.

        Without an entry of the number they stay, as this one may still be on its way.
        """
        with suppress(CheckpointError):
            there = self._log.look_up(entry.batch_id)
            if there is None or (there.segments, there.bad) == (entry.segments, entry.bad):
                return
            for file in entry.segments:
                self._storage.delete(file.name)
            if self._bad is not None:
                self._bad.discard(entry.bad)

    async def complete_tables(self) -> None:
        """Add to the tables what they lack, also shortly after a failure."""
        for table in self._tables:
            while await in_thread(table.complete):
                pass  # a cancellation comes between two commits

    async def _land_positions(self, positions: Checkpoint) -> None:
        newest = self._log.newest
        assert newest is not None, "a run begins with an entry"
        if newest.positions != positions:
            entry = _entry(self._log.next_number, (), positions, newest.watermark)
            await in_thread(lambda: self._after(*self._enter(entry)))
            await self._stream.acknowledge(positions)


@asynccontextmanager
async def open_landing(
    source: Source,
    location: str,
    reading: Callable[[LandingPlace, Source], AbstractAsyncContextManager[Reading]],
    *,
    new_columns: str = "add",
    partitions_of: Callable[[pa.Schema], tuple[PartitionField, ...]] = lambda _: (),
    keep: timedelta | None = None,
    keep_for_readers: timedelta = KEEP_FOR_READERS,
    storage_options: Mapping[str, str] | None = None,
    spark_log: bool = True,
    tables: Sequence[TableOption] = (),
    bad_records: str | None = None,
) -> AsyncIterator[Landing]:
    """Own a location, and land there what is read of a source, as `land` does.

    `reading` reads the source that it is given from a position on, in a context. `partitions_of`
    returns the directories of files for the columns of the records. Cancellation: the reading has
    ended before the block is left.
    """
    async with AsyncExitStack() as resources:
        storage = await in_thread(lambda: open_storage(location, storage_options))
        resources.push_async_callback(lambda: in_thread(storage.close))
        claims = resources.enter_context(ExitStack())
        claiming = claim(storage, ThisProcess("fanout land"), _WAIT_FOR_LOCK)
        ownership = await in_thread(lambda: claims.enter_context(claiming))
        log = await in_thread(lambda: _open_log(storage, ownership))
        if new_columns == "ignore":
            landed = await in_thread(lambda: stored_columns(storage))
            source = without_new_columns(source, landed, storage.location)
        partitions = partitions_of(source.schema)
        reader = reader_of(getattr(source, "decode", None))
        comparing = partial(continued, storage, log, source.schema, partitions, reader)
        columns, number = await in_thread(comparing)
        first = log.newest is None
        positions = await in_thread(log.positions)
        if positions is None:
            origin = await resolved_start(source)
            positions = await in_thread(lambda: log.write_origin(origin.to_json()))
        await in_thread(lambda: _fence(storage, log, positions))
        await in_thread(lambda: give_identity(storage, columns.schema))
        placing = partial(BadRecordPlaces, storage, ownership, log, storage_options)
        bad = await in_thread(lambda: placing().open(bad_records))
        if bad is not None:
            resources.push_async_callback(lambda: in_thread(bad.close))
        retention = await in_thread(lambda: Retention(storage, log, keep, keep_for_readers))
        opening_log = partial(SparkLog.open, storage, ownership, log, wanted=spark_log)
        spark_files = await in_thread(opening_log)
        files = NamedFiles(storage, storage_options or {}, columns)
        opened = await in_thread(
            lambda: [TableProjection(one.open(files), log, ownership) for one in tables]
        )
        of_landers = await in_thread(lambda: sweep_orphans(storage, log, ownership))
        place = LandingPlace(storage, ownership.run, ResumePoint(positions, first), partitions, bad)
        opening = reading(place, source)
        try:
            stream, filler = await resources.enter_async_context(opening)
        except PositionError as error:
            raise CheckpointError(f"{storage.location} cannot be continued: ", error) from error
        if number is not None:  # only a source that fits may add columns
            await in_thread(partial(keep_columns, storage, ownership, columns, number))
        landing = Landing(
            stream,
            filler,
            storage,
            log,
            retention=retention,
            spark_log=spark_files,
            tables=opened,
            partitions=partitions,
            bad=bad,
        )
        await landing.complete_tables()
        await resources.enter_async_context(landing.filling(ownership, of_landers))
        yield landing
        await landing.complete_tables()


def _open_log(storage: Storage, ownership: Ownership) -> EntryLog:
    log = EntryLog(storage, ownership)
    if log.newest is not None and log.newest.query_id:
        raise CheckpointError(
            f"{storage.location} is the checkpoint of the Spark query {log.newest.query_id}; land "
            f"to another location"
        )
    check_whole(storage, log)
    storage.sweep()
    return log


def _fence(storage: Storage, log: EntryLog, positions: Checkpoint) -> None:
    """Write an empty entry under the next number, so that older runs cannot.

    Their unreferenced files can then be deleted.
    """
    watermark = None if log.newest is None else log.newest.watermark
    if log.newest is None:
        check_no_files(storage)
    log.write(replace(_entry(log.next_number, (), positions, watermark), first=log.first))


def _entry(
    number: int,
    files: tuple[SegmentFile, ...],
    positions: Checkpoint,
    watermark: int | None,
    bad: str = "",
) -> BatchEntry:
    """Return an entry that is like no other, also not like one that a restored backup has lost."""
    content = uuid.uuid4().hex
    return BatchEntry(number, "", files, positions, watermark, content=content, bad=bad)


def check_not_lent(capabilities: Capabilities, source: str) -> None:
    """Check that the service does not lend records, which have no positions to continue at."""
    if capabilities.lending is not None:
        raise OptionError(
            f"{source} is read through a share group or a queue, which cannot be "
            f"landed; land its topics with a KafkaSource, or its stream with a KinesisSource"
        )
