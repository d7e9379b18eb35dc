"""Write to the topic of a shuffle from asyncio."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, final

import pyarrow as pa

from fanout.core.option_checks import whole
from fanout.errors import FanOutError, OptionError, StreamStateError
from fanout.kafka.shuffle.announcements import Announcements, announcement_rows
from fanout.kafka.shuffle.frame_columns import keyed_rows, latest_millis

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from fanout.kafka.shuffle.commit_mode import CommitMode
    from fanout.kafka.shuffle.frames import ControlFrame, HelloFrame
    from fanout.kafka.shuffle.writer_options import Chosen, ShuffleWriterOptions

__all__ = ("ShuffleWriter",)

log = logging.getLogger(__name__)


@final
class ShuffleWriter:
    """One producer of a shuffle; made by `open_shuffle_writer`. Any task may call it.

    An error of the cluster is final: every later call raises it as well. So is one that came up
    while nobody called.

    Args:
        options: What the user asked for.
        delivery: Writes.
        hello: How the producer introduces itself.
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
        self._active_at = 0.0
        self.generation = hello.generation

    async def write(self, records: pa.RecordBatch) -> None:
        """Write records to the partitions of their keys, in the order of the rows.

        It returns when there is room for all of them in `buffer.memory`; `commit` confirms them.

        Args:
            records: Rows with the columns that were chosen; others are left out.

        Raises:
            BadFrameError: A key or a value is null, or a time is out of range; nothing of these
                records is written.
            OptionError: A chosen column is missing, or of another type; neither is then.
            StreamStateError: The writer has ended.
            FanOutError: As `KafkaWriter.write`.

        Cancellation: some of the records may be written.
        """
        options = self._options
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
        """Tell that no record comes any more whose time is not later; in every partition.

        One that is no later than the last is not told again.

        Args:
            at: The watermark, with a time zone, or in milliseconds since the Unix epoch.

        Raises:
            OptionError: The watermarks follow from the records (`out_of_orderness`), or `at` has no
                time zone, or is no whole number of 64 bits.
            StreamStateError: The writer has ended.
            FanOutError: As for `write`.
        """
        if self._options.out_of_orderness is not None:
            raise OptionError("watermarks follow from out_of_orderness; tell none, or leave it out")
        millis = _millis(at)
        async with self._exclusive():
            await self._announce(self._announcements.advance(millis, _now()))

    async def commit(self) -> None:
        """Return when everything that was written is durable, and readers see it or are about to.

        With `out_of_orderness` a watermark comes before that. With `"exactly_once"` everything
        since the last commit is seen at once; where this raises, nothing of it is, unless the
        error says that it is not known.

        Raises:
            BatchNotWrittenError: It took longer than transaction_timeout.
            FencedError: A newer writer has taken over.
            StreamStateError: The writer has ended.
            FanOutError: As for `write`.

        Cancellation: it may have been done; call it again.
        """
        async with self._exclusive():
            await self._advance()
            await self._commit_mode.commit()

    async def idle(self) -> None:
        """Tell readers not to wait for this producer until it writes again, and commit.

        It is told anyway after `idle_after` seconds.

        Raises:
            FanOutError: As for `commit`.
        """
        async with self._exclusive():
            await self._advance()
            await self._announce(self._announcements.idle(_now()))
            await self._commit_mode.commit()

    async def end(self) -> None:
        """Tell readers that nothing comes any more, ever, and commit; nothing can be written then.

        Where a producer is to write on later, leave the block without this.

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
        """Tell that nothing comes while nothing comes, for as long as the block runs."""
        # The block's own error is carried around the task group, which would wrap it in a group.
        failure: BaseException | None = None
        self._active_at = _now()
        async with asyncio.TaskGroup() as group:
            announcing = group.create_task(self._announce_idle())
            try:
                yield
                async with self._lock:  # what is being told is told to its end
                    announcing.cancel()
            except BaseException as raised:  # noqa: BLE001 - raised again below
                failure = raised
            announcing.cancel()
        if failure is None:
            await self._close()
        elif self._commit_mode.pending:
            await self._abort()
        if failure is not None:
            raise failure

    @asynccontextmanager
    async def _exclusive(self) -> AsyncIterator[None]:
        """Let one call write at a time, and remember an error that is final."""
        async with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                raise StreamStateError("the writer has told readers that nothing comes any more")
            try:
                yield
            except FanOutError as error:
                self._failure = error
                raise
            self._active_at = _now()

    async def _advance(self) -> None:
        lateness = self._options.out_of_orderness
        if lateness is not None and self._latest_time is not None:
            # What is exactly as late as it may be is not too late.
            millis = self._latest_time - math.ceil(lateness * 1000) - 1
            await self._announce(self._announcements.advance(millis, _now()))

    async def _announce(self, frames: Sequence[ControlFrame]) -> None:
        if frames:
            await self._commit_mode.write(
                announcement_rows(self._options.topic, self._partitions, frames)
            )
            # Not before: a call that is cancelled may have said nothing.
            self._announcements.written(frames, _now())

    async def _announce_idle(self) -> None:
        """Tell at an interval that nothing comes."""
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
                    # What is pending may go on for long: readers cannot see that it has paused.
                    if not self._commit_mode.pending:
                        await self._announce(self._announcements.idle(_now()))
                        await self._commit_mode.commit()
            except FanOutError as error:
                log.warning("a writer to %s has failed: %s", self._options.topic, error)
                return

    async def _close(self) -> None:
        if self._commit_mode.pending:
            log.warning("what was written to %s was not committed", self._options.topic)
            await self._abort()
        elif self._failure is None and not self._ended:
            await self.idle()

    async def _abort(self) -> None:
        """Let readers get on; where that fails, the next writer or the brokers' clock does it."""
        try:
            await self._commit_mode.abort()
        except FanOutError as error:
            log.warning("a transaction could not be aborted: %s", error)


def _column(records: pa.RecordBatch, chosen: Chosen) -> pa.Array:
    if not isinstance(chosen, str):
        column = chosen(records)
        if not isinstance(column, pa.Array):
            raise OptionError(
                f"a function of rows must return an Arrow array, not {type(column).__name__}"
            )
        return column
    if records.schema.names.count(chosen) != 1:
        raise OptionError(f"the records must have one column {chosen!r}")
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
