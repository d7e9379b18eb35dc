"""Write records and watermarks to the topic of a shuffle, from asyncio."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, final

import pyarrow as pa

from fanout.core.cancellation import TaskScope
from fanout.core.option_checks import whole, wrong_type
from fanout.core.user_functions import drop_unawaited
from fanout.errors import FanOutError, OptionError, StreamStateError
from fanout.kafka.shuffle.announcements import Announcements, announcement_rows
from fanout.kafka.shuffle.commit_mode import AtLeastOnceMode, ExactlyOnceMode
from fanout.kafka.shuffle.frames import HelloFrame, keyed_rows, latest_millis
from fanout.kafka.shuffle.topic import check_partition_count
from fanout.kafka.shuffle.writer_options import ShuffleWriterOptions
from fanout.kafka.transactions.transactions import open_transactions
from fanout.kafka.writing.producer_id import Idempotent, Transactional
from fanout.kafka.writing.sender import CLOSED
from fanout.kafka.writing.writer import open_writer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from fanout.kafka.shuffle.commit_mode import CommitMode
    from fanout.kafka.shuffle.frames import ControlFrame
    from fanout.kafka.shuffle.writer_options import ColumnChoice

log = logging.getLogger(__name__)


@asynccontextmanager
async def open_shuffle_writer(options: ShuffleWriterOptions) -> AsyncIterator[ShuffleWriter]:
    """Open a writer, which is one producer of a shuffle.

    Leaving the block writes an idle frame, unless the producer has ended. Rows that are not
    committed are aborted, or with `"at_least_once"` flushed. If the block raises, no idle frame is
    written, and nothing is flushed.

    Args:
        options: The topic, the columns and the guarantee.

    Raises:
        ServiceError: If the topic does not exist or has another number of partitions, or the
            cluster cannot be reached or refuses the client.
    """
    async with AsyncExitStack() as stack:
        commit_mode, hello = await _connect(options, stack)
        writer = ShuffleWriter(options, commit_mode, hello)
        async with writer.running():
            yield writer


async def _connect(
    options: ShuffleWriterOptions, stack: AsyncExitStack
) -> tuple[CommitMode, HelloFrame]:
    """Connect, and determine the generation."""
    if not isinstance(options, ShuffleWriterOptions):
        raise wrong_type("options", options, "ShuffleWriterOptions")
    cluster = options.cluster.named("shuffle")
    transactions = await stack.enter_async_context(open_transactions(cluster))
    count = await transactions.partitions(options.topic)
    check_partition_count(options.topic, count, options.partition_count)
    first = int(datetime.now(UTC).timestamp() * 1000)
    exact = options.delivery_guarantee == "exactly_once"
    mode: Transactional | Idempotent = Idempotent()
    marker_group = f"{options.transactional_id}-marker"
    timeout = 0.0
    if exact:
        timeout = options.transaction_timeout or await transactions.max_timeout()
        incarnation = await transactions.begin(options.transactional_id, timeout)
        mode = Transactional(options.transactional_id, incarnation)
        marked = await transactions.marked(marker_group)
        # The commits are numbered from here on, so that the next writer is above all of them.
        first = max(first, -1 if marked is None else marked + 1)
    writer = await stack.enter_async_context(
        open_writer(cluster, mode=mode, options=options.producing)
    )
    generation = first if options.generation is None else options.generation
    hello = HelloFrame(options.producer, generation, options.producers, count)
    if isinstance(mode, Idempotent):
        return AtLeastOnceMode(writer), hello
    return ExactlyOnceMode(
        writer, transactions, mode, marker_group=marker_group, timeout=timeout, number=first
    ), hello


@final
class ShuffleWriter:
    """One producer of a shuffle; made by `open_shuffle_writer`. Any task may call it.

    An error of the cluster is final: every later call raises it as well. So is an error of the idle
    announcements in between.

    Args:
        options: The options.
        commit_mode: Writes rows, and makes them visible.
        hello: The hello frame of the producer.
    """

    def __init__(
        self, options: ShuffleWriterOptions, commit_mode: CommitMode, hello: HelloFrame
    ) -> None:
        self._options = options
        self._commit_mode = commit_mode
        self._partitions = range(hello.partitions)
        self._announcements = Announcements(hello)
        self._latest_time: int | None = None
        self._lock = asyncio.Lock()
        self._failure: FanOutError | None = None
        self._ended = False
        self._is_closed = False
        self._active_at = 0.0
        self.generation = hello.generation

    async def write(self, records: pa.RecordBatch) -> None:
        """Write records to the partitions of their keys, in the order of the rows.

        It returns when all of them have room in `buffer.memory`; `commit` makes them durable.

        Args:
            records: The records. Columns that the options do not name are left out.

        Raises:
            BadFrameError: If a key or a value is null, or a time is out of range; none of these
                records is written then.
            OptionError: If a column is missing or has another type; none is written then either.
            StreamStateError: If the writer has ended.
            FanOutError: As `KafkaWriter.write`.

        Cancellation: some of the records may be written.
        """
        options = self._options
        if not isinstance(records, pa.RecordBatch):
            raise wrong_type("records", records, "a pyarrow.RecordBatch")
        keys, values = (_column(records, choice) for choice in (options.key, options.value))
        times = None if options.timestamp is None else _column(records, options.timestamp)
        rows = keyed_rows(options.topic, len(self._partitions), keys, values, times)
        latest = latest_millis(times)
        async with self._exclusive():
            if not rows.num_rows:
                return
            await self._announce(self._announcements.before_records(_now()))
            await self._commit_mode.write(rows)
            if latest is not None and (self._latest_time is None or latest > self._latest_time):
                self._latest_time = latest

    async def watermark(self, at: datetime | int) -> None:
        """Write a watermark to every partition: all later records have later event times.

        A watermark that is not above the last one is not written.

        Args:
            at: The watermark, with a time zone, or in milliseconds since the Unix epoch.

        Raises:
            OptionError: If the watermarks follow from the records (`out_of_orderness`), or `at` has
                no time zone or is no integer of 64 bits.
            StreamStateError: If the writer has ended.
            FanOutError: As for `write`.
        """
        if self._options.out_of_orderness is not None:
            raise OptionError(
                "watermarks follow from out_of_orderness: write none, or leave it out"
            )
        millis = _millis(at)
        async with self._exclusive():
            await self._announce(self._announcements.advance(millis, _now()))

    async def commit(self) -> None:
        """Return when all written records are durable and visible to readers.

        With `out_of_orderness` a watermark is written first. With `"exactly_once"` all records
        since the last commit become visible at once. If this raises, none of them does, unless the
        error tells that the outcome is unknown.

        Raises:
            BatchNotWrittenError: If the transaction took longer than transaction_timeout.
            FencedError: If a newer writer has taken over.
            StreamStateError: If the writer has ended.
            FanOutError: As for `write`.

        Cancellation: the commit may be done; call it again.
        """
        async with self._exclusive():
            await self._advance()
            await self._commit_mode.commit()

    async def idle(self) -> None:
        """Write that this producer pauses, and commit: watermarks advance without it.

        The writer does so by itself after `idle_after` seconds without a call.

        Raises:
            FanOutError: As for `commit`.
        """
        async with self._exclusive():
            await self._become_idle()

    async def end(self) -> None:
        """Write that this producer ends for good, and commit; the writer accepts no more records.

        If the producer is to continue later, leave the block without this call.

        Raises:
            FanOutError: As for `commit`.
        """
        async with self._exclusive():
            await self._advance()
            await self._announce(self._announcements.end(_now()))
            await self._commit_mode.commit()
            self._ended = True

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Announce idleness during pauses, for as long as the block runs."""
        self._active_at = _now()
        try:
            async with TaskScope() as tasks:
                announcing = tasks.spawn(self._announce_idle())
                yield
                async with self._lock:  # a call or an announcement that is under way is finished
                    announcing.cancel()
                    self._is_closed = True
        except BaseException:
            self._is_closed = True
            if self._commit_mode.pending:
                await self._abort()
            raise
        await self._close()

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """Let one call write at a time, and keep an error that is final."""
        async with self._lock:
            if self._is_closed:
                raise StreamStateError(CLOSED)
            if self._failure is not None:
                raise self._failure
            if self._ended:
                raise StreamStateError("the writer has ended: it wrote an end frame")
            try:
                yield
            except FanOutError as error:
                self._failure = error
                raise
            self._active_at = _now()

    async def _become_idle(self) -> None:
        await self._advance()
        await self._announce(self._announcements.idle(_now()))
        await self._commit_mode.commit()

    async def _advance(self) -> None:
        lateness = self._options.out_of_orderness
        if lateness is not None and self._latest_time is not None:
            # A record that is exactly out_of_orderness late is not excluded.
            millis = self._latest_time - math.ceil(lateness * 1000) - 1
            await self._announce(self._announcements.advance(millis, _now()))

    async def _announce(self, frames: Sequence[ControlFrame]) -> None:
        if frames:
            await self._commit_mode.write(
                announcement_rows(self._options.topic, self._partitions, frames)
            )
            # Not before: a cancelled call may have written nothing.
            self._announcements.written(frames, _now())

    async def _announce_idle(self) -> None:
        """Announce idleness at an interval."""
        interval = self._options.idle_after
        if interval is None:
            return
        while True:
            waited = _now() - self._active_at
            if waited < interval:
                await asyncio.sleep(interval - waited)
                continue
            try:
                async with self._exclusive():
                    # Readers would not see the frame before the open transaction is committed.
                    if not self._commit_mode.pending:
                        await self._announce(self._announcements.idle(_now()))
                        await self._commit_mode.commit()
            except FanOutError as error:
                log.warning("a writer to %s has failed: %s", self._options.topic, error)
                return

    async def _close(self) -> None:
        if self._commit_mode.pending:
            log.warning("records that were written to %s were not committed", self._options.topic)
            await self._abort()
        elif self._failure is None and not self._ended:
            await self._become_idle()

    async def _abort(self) -> None:
        """Abort, so that readers go on; if that fails, the next writer or a timeout aborts."""
        try:
            await self._commit_mode.abort()
        except FanOutError as error:
            log.warning("a transaction could not be aborted: %s", error)


def _column(records: pa.RecordBatch, chosen: ColumnChoice) -> pa.Array:
    if not isinstance(chosen, str):
        column = chosen(records)
        if not isinstance(column, pa.Array):
            drop_unawaited(column)
            raise OptionError(
                f"a function of rows must return an Arrow array, not {type(column).__name__}"
            )
        return column
    if records.schema.names.count(chosen) != 1:
        raise OptionError(f"the records must have exactly one column {chosen!r}")
    return records.column(chosen)


def _millis(at: datetime | int) -> int:
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise OptionError(f"at={at!r} has no time zone")
        return math.floor(at.timestamp() * 1000)
    if not -(2**63) <= whole("at", at) < 2**63:
        raise OptionError(f"at={at} has more than 64 bits")
    return at


def _now() -> float:
    return asyncio.get_running_loop().time()
