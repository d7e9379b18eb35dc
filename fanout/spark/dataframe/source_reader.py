"""Follow a landing as a streaming DataFrame, and land its source meanwhile."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import pyspark

from fanout.spark.dataframe.landing_thread import LandingThread
from fanout.spark.dataframe.options import in_words_of_options
from fanout.spark.dataframe.readers import LandingStreamReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit

    from fanout.core.source import Source
    from fanout.spark.dataframe.landing_thread import LandingOptions
    from fanout.spark.dataframe.options import ReadOptions
    from fanout.spark.dataframe.readers import _Planner

_LOG: Final = logging.getLogger("fanout.spark")
# How often it is looked for an entry that was landed just now.
_POLL_SECONDS: Final = 0.1
# How long Spark may take to report an error after `stop`.
_TELL_SECONDS: Final = 5.0


@final
class SourceStreamReader(LandingStreamReader):
    """Plan micro-batches of a landing that the planner process fills itself.

    Only the planner is asked for offsets, so the source is made, with the secrets of that process,
    and landed when that begins. In workers, which read, there is neither.
    """

    def __init__(
        self,
        options: ReadOptions,
        schema: pa.Schema,
        landing: LandingOptions,
        make_source: Callable[[], Source],
    ) -> None:
        super().__init__(options, schema)
        self._landing = landing
        self._make_source: Callable[[], Source] | None = make_source
        self._thread: LandingThread | None = None
        self._bounded = self._warned = False
        self._end: Mapping[str, Any] | None = None
        self._needed: int | None = None
        self._handler: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what travels to workers."""
        # How the driver is reached is for the planner alone.
        landing = replace(self._landing, driver=None)
        return self.__dict__ | {"_make_source": None, "_thread": None, "_landing": landing}

    @in_words_of_options()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Land what the source has by now: this run ends with it."""
        self._bounded = True
        self._plan()

    @in_words_of_options()
    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return where the next micro-batch ends; with Trigger.AvailableNow wait for records."""
        if start is None and not self._warned:
            self._warned = True
            _LOG.warning(
                "pyspark %s does not tell fanout of Trigger.AvailableNow: a query with it reads "
                "what earlier ones have landed; use another trigger, or pyspark 4.2 or newer",
                pyspark.__version__,
            )
        self._plan()
        if not self._bounded:
            self._landed.look_for_records()
        while True:
            end = super().latestOffset(start, limit)
            self._release(start or self._end or end)
            self._end = end
            if not self._bounded or start is None or _place(end) != _place(start):
                return end
            if end["entry"] >= self._landed.wait_for_entry(end["entry"]):
                return end
            time.sleep(_POLL_SECONDS)  # the log looks for the landed entry no more often

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the newest place, how far the query is behind it, and how far the landing is."""
        report = super().reportLatestOffset()
        if report is not None and self._thread is not None:
            report |= self._thread.report()
        return report

    @in_words_of_options()
    def commit(self, end: Mapping[str, Any]) -> None:
        """Tell the landing what this query no longer needs."""
        super().commit(end)
        self._release(end)

    def stop(self) -> None:
        """End the landing; the next run continues it."""
        if self._thread is not None:
            stopped = self._thread.stop()
            if self._handler is not None:
                signal.signal(signal.SIGTERM, self._handler)
            if not stopped:
                # A thread waits for a disk or a service, and would keep the process. Spark reports
                # the error that has ended the query after this call.
                ending = threading.Timer(_TELL_SECONDS, os._exit, (1,))
                ending.daemon = True
                ending.start()

    @property
    def _landed(self) -> LandingThread:
        assert self._thread is not None, "the plan has started it"
        return self._thread

    def _plan(self) -> _Planner:
        if self._thread is None:
            assert self._make_source is not None, "this is the planner"
            thread = LandingThread(self._make_source(), self._landing, available_now=self._bounded)
            self._thread = thread
            if threading.current_thread() is threading.main_thread():
                self._handler = signal.signal(signal.SIGTERM, self._end_process)
            thread.start()
        self._thread.check()
        return super()._plan()

    def _release(self, begin: Mapping[str, Any]) -> None:
        """Tell the landing that the query has read what is before an offset.

        That is where a batch begins: Spark plans it when the one before is done, and commits that
        later. The first time it is also told what earlier runs have landed behind the offset.
        """
        if self._needed is None:
            self._landed.needed_from(begin["entry"], self._plan().sizes(begin))
        elif begin["entry"] > self._needed:
            self._landed.needed_from(begin["entry"])
        self._needed = max(begin["entry"], self._needed or 0)

    def _end_process(self, *_: object) -> NoReturn:
        """End when Spark ends the planner, which is by SIGTERM."""
        if self._thread is not None:
            self._thread.stop()
        os._exit(128 + signal.SIGTERM)


def _place(offset: Mapping[str, Any]) -> tuple[Any, Any]:
    return offset["entry"], offset["row"]
