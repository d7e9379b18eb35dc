"""Run one micro-batch: take a segment, write the ledger entry, and call the handler."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Literal, TypeAlias, final

from py4j.protocol import Py4JError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame

from fanout.core.error_text import text_of
from fanout.core.user_functions import UnfinishedError, call, check_function
from fanout.errors import BatchFailedError, CheckpointError
from fanout.landing.log.entries import BatchEntry
from fanout.landing.segments.segment_filler import NoRecords, Stopped
from fanout.landing.segments.segments import Filled, LandedBatch, publish, publish_errors
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark.hadoop.jvm import JAVA_ERRORS, first_and_last_cause
from fanout.spark.query.batch_context import handling
from fanout.spark.query.query_stream import PendingBatch
from fanout.spark.workers.arrow_schema import spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from fanout.core.checkpoint import Checkpoint
    from fanout.landing.log.ledger import BatchLedger
    from fanout.landing.segments.segments import OpenSegment, SegmentFile
    from fanout.landing.storage.storage import Storage
    from fanout.spark.query.batch_context import BatchContext
    from fanout.spark.query.failed_batches import FailedBatches
    from fanout.spark.query.query_stream import BatchContent

log = logging.getLogger(__name__)

BatchPhase: TypeAlias = Literal["drain", "seal", "publish", "ledger", "handler", "commit"]

Handler: TypeAlias = Callable[[DataFrame, int], None]
"""Called with the records of a batch and its id; a replay has the same id and the same records."""

# How long a batch waits for a first record before it returns without records.
IDLE_SECONDS = 60.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """A micro-batch with records that is over; see `FanOutQuery.on_batch`.

    Args:
        batch_id: Spark's id of it.
        rows: The records that the handler has finished; 0 where it raised.
        bytes: The bytes of their segments.
        seconds: How long each phase took. `drain`: from the first record of the segment until it
            was handed over, while the batch before may still have been handled. `seal`: the end of
            writing the file. `publish`: its name in the checkpoint. `ledger`: the entry. `handler`:
            your function. `commit`: the acknowledgement to the service. Landers do the first three
            on executors, so these are missing there; a replay has the last two.
        error: What the handler raised; None for nothing.
        set_aside: Whether the batch was set aside for it, by `on_failed_batch`.
    """

    batch_id: int
    rows: int
    bytes: int
    seconds: Mapping[str, float]
    error: Exception | None = None
    set_aside: bool = False


BatchListener: TypeAlias = Callable[[BatchReport], None]
"""Called after each micro-batch with records."""


@final
class BatchPhases:
    """Add up the seconds of each phase of one batch."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measured(self, phase: BatchPhase) -> Iterator[None]:
        """Measure the block as a phase, also where it raises."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.took(phase, time.perf_counter() - started)

    def took(self, phase: BatchPhase, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds


def _never() -> bool:
    return False


def check_handler(handler: object) -> None:
    """Raise OptionError unless a handler is a function of a DataFrame and a batch id."""
    kind = "a function of a DataFrame and a batch id"
    check_function("handler", handler, kind, arguments=2)


@final
@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of one batch."""

    batch_id: int
    rows: int = 0  # that the handler was called with; 0 where it was not called
    bytes: int = 0  # of these rows in the segment
    seconds: float = 0.0  # from the arrival of the records to the handler's return
    finished: bool = False  # there will be no further batch
    failed: BatchFailedError | None = None  # the handler's error for which the batch was set aside


@final
class BatchRunner:
    """Give each batch id its one content, and call the handler with it as a DataFrame.

    Args:
        context: Makes the context of `current_batch` for an entry of the ledger.
        take: Returns the records of a batch; it blocks for at most the given seconds.
        failed: Sets batches aside whose handler has failed.
        acknowledge: Acknowledges everything up to some positions to the service. It is called when
            the handler has returned, so that the lag that a service shows is work left; it blocks.
    """

    def __init__(
        self,
        spark: SparkSession,
        schema: pa.Schema,
        handler: Handler,
        *,
        storage: Storage,
        ledger: BatchLedger,
        context: Callable[[BatchEntry], BatchContext],
        take: Callable[[float], BatchContent],
        failed: FailedBatches,
        acknowledge: Callable[[Checkpoint], None],
    ) -> None:
        self._spark = spark
        self._columns = set(schema.names)
        # Made once: each option is a call into the JVM.
        self._reader = (
            spark.read.schema(spark_schema(schema))
            # A session that ignores damaged files would read one as 0 rows.
            .option("ignoreCorruptFiles", "false")
            .option("ignoreMissingFiles", "false")
            # A session that rebases dates for old files would change those before 1582.
            .option("datetimeRebaseMode", "CORRECTED")
            .option("int96RebaseMode", "CORRECTED")
            .option("parquet.page.verify-checksum.enabled", "true")
        )
        self._handler = handler
        self._storage = storage
        self._ledger = ledger
        self._context = context
        self._take = take
        self._failed = failed
        self._stopped = _never
        self._acknowledge = acknowledge
        self._phases = BatchPhases()

    @property
    def seconds(self) -> Mapping[str, float]:
        """The seconds of each phase of the latest batch, which may have failed."""
        return self._phases.seconds

    def run(
        self, batch_id: int, query_id: str, stopped: Callable[[], bool] = _never
    ) -> BatchResult:
        """Run one micro-batch; a batch id with an entry in the ledger is replayed.

        Every batch has an entry when this returns, also one without records. Spark then counts the
        batch as done and never requests it again: without an entry a newer run could give its id
        records that are never handled. `stopped` returns whether Spark's side of the query was
        stopped, which cuts handlers off.

        Raises:
            BatchFailedError: If the handler raised, and the batch was not set aside.
            CheckpointError: If the checkpoint is damaged, or a newer run owns it.
            FanOutError: If the stream has failed.
        """
        self._phases = BatchPhases()
        self._stopped = stopped
        entry = self._ledger.find(batch_id, query_id)
        if entry is not None:
            if entry.segments:
                log.info("replaying batch %d with its %d records", batch_id, entry.rows)
            else:
                log.info("batch %d comes again, and had no records to repeat", batch_id)
            return self._replay(entry)
        content = self._take(IDLE_SECONDS)
        started = time.perf_counter()
        match content:
            case Stopped():
                positions = self._ledger.positions()
                assert positions is not None, "the origin comes before the first batch"
                self._record(self._without_records(batch_id, query_id, positions))
                return BatchResult(batch_id, finished=True)
            case NoRecords(positions, finished):
                self._record(self._without_records(batch_id, query_id, positions))
                self._acknowledge(positions)
                return BatchResult(batch_id, finished=finished)
            case Filled(segment, positions, seconds):
                self._phases.took("drain", seconds)
                file = self._publish(segment)
                entry = BatchEntry(batch_id, query_id, (file,), positions, segment.watermark)
            case LandedBatch(segments, positions, watermark):
                entry = BatchEntry(batch_id, query_id, segments, positions, watermark)
            case PendingBatch(pending):
                for left in (one for one in pending if one in self._ledger.pending.left):
                    self._verify(left.segment)
                segments = tuple(one.segment for one in pending)
                last, taking = pending[-1], self._ledger.pending.taking(pending)
                entry = BatchEntry(
                    batch_id, query_id, segments, last.positions, last.watermark, taking
                )
        return self._finish(self._record(entry), started)

    def _replay(self, entry: BatchEntry) -> BatchResult:
        started = time.perf_counter()
        if not entry.segments:
            self._acknowledge(entry.positions)
            return BatchResult(entry.batch_id)
        begun = self._failed.begun(entry.batch_id)
        for segment in entry.segments:
            self._verify(segment)
        return self._finish(entry, started, begun)

    def _finish(
        self, entry: BatchEntry, started: float, begun: BatchFailedError | None = None
    ) -> BatchResult:
        with self._phases.measured("handler"):
            failed = self._handle(entry, begun)
        with self._phases.measured("commit"):
            self._acknowledge(entry.positions)
        return BatchResult(
            entry.batch_id,
            entry.rows,
            entry.size,
            time.perf_counter() - started,
            failed=failed,
        )

    def _publish(self, segment: OpenSegment) -> SegmentFile:
        with self._phases.measured("seal"), publish_errors(self._storage, segment):
            segment.seal()
        with self._phases.measured("publish"):
            return publish(self._storage, segment)

    def _without_records(self, batch_id: int, query_id: str, positions: Checkpoint) -> BatchEntry:
        taking = self._ledger.pending.taking()
        return BatchEntry(batch_id, query_id, (), positions, taken=taking)

    def _record(self, entry: BatchEntry) -> BatchEntry:
        """Store an entry and return it; one with records has a text that no other one has."""
        if entry.segments:
            entry = replace(entry, content=uuid.uuid4().hex)
        with self._phases.measured("ledger"):
            self._ledger.write(entry)
            self._ledger.prune()
        return entry

    def _handle(self, entry: BatchEntry, begun: BatchFailedError | None) -> BatchFailedError | None:
        """Call the handler; return its error if the batch was set aside for it.

        `begun` is the error for which an earlier run has set it aside, and may not have finished.
        """
        frame = self._read(*entry.segments)
        context = replace(
            self._context(entry),
            seconds=self._phases.seconds,
            frame=frame,
            files=self._local_files(entry),
        )
        with handling(context):
            failed = begun or self._failure(frame, entry.batch_id)
            if failed is None:
                return None
            if begun is None and (self._stopped() or not self._failed.takes(failed)):
                raise failed from failed.__cause__
            batch = self._ledger.batch(entry.batch_id)
            assert batch is not None, "its entry was written"
            self._failed.set_aside(frame, batch, failed, self._stopped)
        return failed

    def _failure(self, frame: DataFrame, batch_id: int) -> BatchFailedError | None:
        """Call the handler, and return its error; None if it has done its work."""
        try:
            call(self._handler, frame, batch_id)
        except UnfinishedError as error:
            failed = BatchFailedError(f"in batch {batch_id} the handler {error}")
            failed.__cause__ = error
        except BaseException as error:  # noqa: BLE001 - it is the user's function
            # Spark waits for ever for a batch function that ends with SystemExit, for one.
            from_spark = isinstance(error, (Py4JError, CapturedException))
            says = first_and_last_cause(error) if from_spark else text_of(error)
            failed = BatchFailedError(
                f"the handler raised {type(error).__name__} in batch {batch_id}: {says}"
            )
            failed.__cause__ = error
        else:
            return None
        return failed

    def _local_files(self, entry: BatchEntry) -> tuple[str, ...]:
        if not isinstance(self._storage, LocalStorage):
            return ()
        return tuple(str(self._storage.open(file.name)) for file in entry.segments)

    def _verify(self, file: SegmentFile) -> None:
        """Read a whole segment before it is replayed, because it may be old and damaged."""
        frame = self._read(file)
        name = f"the segment {file.name} in {self._storage.location}"
        restore = "restore this file alone from a backup, or start with a new checkpoint location"
        try:
            # A column that is not in the file would read as null.
            columns = self._spark.read.parquet(self._storage.uri(file.name)).columns
            rows = frame.count()
            # The checksum of a page is checked when the page is read, and a count reads none.
            frame.write.format("noop").mode("overwrite").save()
        except JAVA_ERRORS as error:
            raise CheckpointError(f"{name} cannot be read; if it is damaged, {restore}") from error
        if others := self._columns.symmetric_difference(columns):
            raise CheckpointError(
                f"{name} differs from what the source delivers now by the columns "
                f"{', '.join(sorted(others))}; run once more as before, so that its batch is "
                f"handled, and change the source then"
            )
        if rows != file.rows:
            raise CheckpointError(f"{name} has {rows} rows instead of {file.rows}; {restore}")

    def _read(self, *files: SegmentFile) -> DataFrame:
        for file in files:
            size = self._storage.size(file.name)
            if size != file.size:
                found = "is missing" if size is None else f"has {size} bytes instead of {file.size}"
                raise CheckpointError(
                    f"the segment {file.name} in {self._storage.location} {found}; restore this "
                    f"file alone from a backup, or start with a new checkpoint location"
                )
        # Of one read Spark takes the largest file first, and a key would lose its order.
        frames = [self._reader.parquet(self._storage.uri(file.name)) for file in files]
        return reduce(lambda whole, frame: whole.union(frame), frames)
