"""Land a source in a thread, while the process serves what is landed to Spark."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, final

from fanout.core.error_text import first_error
from fanout.landers.land import land
from fanout.landing.lander import Landing
from fanout.spark.dataframe.landing_call import Entry, land_in_driver
from fanout.spark.dataframe.options import COMPRESSION, in_words_of_options
from fanout.spark.workers.loop_thread import ended_by

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from datetime import timedelta

    from fanout.core.source import Source
    from fanout.landing.log.followed import LandedEntry
    from fanout.spark.dataframe.landing_call import DriverEndpoint

# How long the subscriptions may take to close.
_STOP_SECONDS: Final = 10.0
# How long, after a small entry, the next one is left to grow while the query looks for none. Many
# small files would cost a batch more time than they make its records newer.
_SMALL_BYTES: Final = 1 << 20
_ENTRY_SECONDS: Final = 1.0
# How long a query that looks for records waits until those that have arrived are landed.
_ARRIVED_SECONDS: Final = 0.05
# How often a call that waits looks whether Spark's JVM, the parent of this process, is alive.
_LOOK_SECONDS: Final = 0.5
# How long a report waits for the landing, which may be busy or about to end.
_REPORT_SECONDS: Final = 1.0


@final
@dataclass(frozen=True, slots=True)
class LandingOptions:
    """Where and how a source is landed for a query."""

    location: str
    _: KW_ONLY
    storage: Mapping[str, str] = field(default_factory=dict)  # settings of the object store
    max_wait: float = 1.0  # the most seconds from the first record of a file until it can be read
    new_columns: str = "add"  # what becomes of columns that were not there before
    keep: timedelta | None = None  # delete what was written longer ago; None keeps all
    # The bytes of files that this query has not read, beyond which the lander waits for it.
    max_bytes_ahead: int = 10 << 30
    # The options that the user has given for keywords of the source; empty where the user gave the
    # source as a value.
    words: Mapping[str, str] = field(default_factory=dict)
    # How the driver is reached, whose landers land; None where this process lands.
    driver: DriverEndpoint | None = None


@final
class LandingThread:
    """Land a source until the process ends or `stop` is called. Calls come from one thread.

    The thread holds no state that matters: the landing continues exactly, whatever ends it. With
    `available_now` it ends when everything is landed that is there. Each method but `needed_from`,
    `report` and `stop` raises the error that ended the landing.
    """

    def __init__(self, source: Source, options: LandingOptions, *, available_now: bool) -> None:
        self._source = source
        self._options = options
        self._available_now = available_now
        self._parent = os.getppid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._was_read = asyncio.Event()
        self._wanted = asyncio.Event()
        self._unread: dict[int, int] = {}
        self._needed = 0
        self._paused = False
        self._landing: Landing | None = None
        self._of_driver: Entry | None = None
        self._last_report: dict[str, Any] = {}
        self._changed = threading.Condition()
        self._newest: int | None = None
        self._opened = self._ended = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="fanout landing", daemon=True)

    def start(self) -> None:
        """Start, and wait until the landing is there."""
        self._thread.start()
        self._wait(lambda: self._opened)

    def check(self) -> None:
        """Raise the error that ended the landing, if one did."""
        with self._changed:
            if self._failure is not None:
                raise self._failure

    def wait_for_entry(self, number: int) -> int:
        """Wait for an entry or the end; return the number after this run's newest entry, or 0."""
        self._wait(lambda: self._ended or (self._newest is not None and self._newest >= number))
        return 0 if self._newest is None else self._newest + 1

    def look_for_records(self) -> None:
        """Land what has arrived, unless it has to wait for `max_wait`; wait for that a moment."""
        with self._changed:
            before = self._newest
            self._call(self._wanted.set)
            if self._options.max_wait <= _ARRIVED_SECONDS:
                self._changed.wait_for(
                    lambda: self._ended or self._newest != before, _ARRIVED_SECONDS
                )
        self.check()

    def needed_from(self, number: int, unread: Mapping[int, int] = MappingProxyType({})) -> None:
        """Tell that the query has read what is before an entry, so that the landing may go on.

        `unread` has the bytes of entries of earlier runs that the query still needs, by number.
        """
        self._call(self._forget, number, dict(unread))

    def report(self) -> dict[str, Any]:
        """Return how far the landing is, for `lastProgress`, or was at its end.

        The names are `recordsLanded` of this run, `sourceMillisBehind` of the split that is most
        behind the service, None where that is not known yet, and `landingPaused`, while the query
        is `maxBytesAhead` behind the landing.
        """
        if self._ended:
            return self._last_report
        answer: Future[dict[str, Any]] = Future()
        self._call(lambda: answer.set_result(self._measured()))
        try:
            return answer.result(_REPORT_SECONDS)
        except TimeoutError:
            return self._last_report

    def stop(self) -> bool:
        """Close the subscriptions and end the thread; return whether it ended in time.

        What is in no entry comes again.
        """
        loop, task = self._loop, self._task
        if loop is not None and task is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # the loop has closed in this moment
                loop.call_soon_threadsafe(task.cancel)
            self._thread.join(_STOP_SECONDS)
        return not self._thread.is_alive()

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function in the loop, unless the landing has ended."""
        if self._loop is not None and not self._ended:
            with suppress(RuntimeError):  # it has ended in this moment
                self._loop.call_soon_threadsafe(function, *arguments)

    def _wait(self, condition: Callable[[], bool]) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._failure or condition(), _LOOK_SECONDS)
                if self._failure is None and condition():
                    return
            self.check()
            if os.getppid() != self._parent:
                raise SystemExit(1)

    def _run(self) -> None:
        failure: Exception | None = None
        try:
            with in_words_of_options(self._options.words):
                asyncio.run(self._land())
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 - the next call of the planner raises it
            failure = error
        except BaseException as error:  # noqa: BLE001 - the planner would wait for ever
            failure = ended_by(first_error(error))
            failure.__cause__ = error
        with self._changed:
            self._failure, self._ended = failure, True
            self._changed.notify_all()

    def _measured(self) -> dict[str, Any]:
        records, lag = 0, None
        if self._landing is not None:
            statistics = self._landing.statistics()
            records, lag = statistics.totals.records, statistics.lag
        elif self._of_driver is not None:
            records, lag = self._of_driver.records, self._of_driver.lag
        return {
            "recordsLanded": records,
            "sourceMillisBehind": None if lag is None else round(lag * 1000),
            "landingPaused": self._paused,
        }

    async def _land(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        async with self._open() as landing:
            if isinstance(landing, Landing):
                self._landing = landing
            self._tell()
            async for entry in landing:
                if isinstance(entry, Entry):
                    self._of_driver = entry
                self._wanted.clear()
                self._tell(entry.number)
                if entry.number >= self._needed:  # otherwise the query has found and read it
                    self._unread[entry.number] = entry.bytes
                await self._wait_for_reader()
                if entry.bytes < _SMALL_BYTES and not self._available_now:
                    await self._let_grow()
            self._last_report = self._measured()

    def _open(self) -> AbstractAsyncContextManager[AsyncIterator[Entry | LandedEntry]]:
        options = self._options
        if options.driver is not None:
            return land_in_driver(options.driver, available_now=self._available_now)
        return land(
            self._source,
            options.location,
            max_wait=options.max_wait,
            compression=COMPRESSION,
            keep=options.keep,
            storage_options=options.storage or None,
            spark_log=False,
            new_columns=options.new_columns,
            available_now=self._available_now,
        )

    def _tell(self, number: int | None = None) -> None:
        with self._changed:
            self._opened = True
            self._newest = number
            self._changed.notify_all()

    async def _wait_for_reader(self) -> None:
        """Wait while more is landed than the query may leave unread."""
        while sum(self._unread.values()) > self._options.max_bytes_ahead:
            self._paused = True
            self._was_read.clear()
            await self._was_read.wait()
        self._paused = False

    async def _let_grow(self) -> None:
        """Leave records to the next entry until the query looks for them, or for a moment."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENTRY_SECONDS):
                await self._wanted.wait()

    def _forget(self, number: int, unread: dict[int, int]) -> None:
        unread |= self._unread
        self._needed = number
        self._unread = {entry: size for entry, size in unread.items() if entry >= number}
        self._was_read.set()
