"""Stop the queries of this process cleanly when SIGTERM or Ctrl-C comes."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, final

from pyspark.java_gateway import ensure_callback_server_started

from fanout.errors import OptionError, StreamStateError
from fanout.spark.hadoop.jvm import JAVA_ERRORS, jvm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from pyspark.sql import SparkSession

    from fanout.spark.query.query import FanOutQuery

log = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_Arrival: TypeAlias = "tuple[str, signal.Signals]"
"""The process that a signal came to, and the signal."""


@contextmanager
def stop_on_signal(*, timeout: float = 25.0) -> Iterator[None]:
    """Stop every query of this process cleanly when SIGTERM or Ctrl-C comes during the block.

    Begin the block before the session is created, and wait for the queries in it. After a signal
    each query finishes its running batch, tells the service that it has left, and ends without an
    error; `await_termination` returns, and the program goes on behind the block, with exit code 0
    if nothing else fails. A signal before the first query begins to start ends the program at once,
    also with 0. A second signal ends it at once with 128 plus the number of the signal. The batch
    of a handler that was cut off comes again in the next run, with the same rows.

    Spark's JVM may get the signal as well, or instead (under `spark-submit`, in a process group):
    while a query runs, the JVM passes it on and does not end by it.

    Args:
        timeout: Seconds from the signal until the program must have left the block. After that the
            process ends as by a second signal. Keep it below the time after which the supervisor
            kills the process: 30 s in Kubernetes, 90 s in systemd, 10 s in Docker.

    Raises:
        OptionError: If timeout is not above 0.
        StreamStateError: If it is not called in the main thread, or a block runs already.
    """
    global _current  # noqa: PLW0603 - signals belong to the process
    if timeout <= 0:
        raise OptionError(f"timeout={timeout} must be above 0")
    if threading.current_thread() is not threading.main_thread():
        raise StreamStateError("stop_on_signal needs the main thread, which receives signals")
    if _current is not None:
        raise StreamStateError("a block of stop_on_signal runs already; it stops every query")
    _current = current = _SignalWatch(timeout)
    try:
        with current.watching():
            yield
    finally:
        _current = None


def heed_signals(spark: SparkSession) -> None:
    """Pass on the signals of a session's JVM, inside `stop_on_signal`: a query is to start."""
    if _current is not None:
        _current.heed_jvm(spark)


def stop_with_signals(query: FanOutQuery) -> None:
    """Let a signal stop a query that has started, inside `stop_on_signal`."""
    if _current is not None:
        _current.add(query)


@final
class _SignalWatch:
    """Wait in a thread for signals, and stop the queries.

    Python calls `receive` in the main thread between two of its instructions, so it must not take
    a lock that the main thread may hold: it uses a SimpleQueue, which is made for this.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._arrivals: SimpleQueue[_Arrival | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._queries: list[FanOutQuery] = []
        self._begun = False
        self._stopping = False
        self._stops: list[threading.Thread] = []
        self._jvm_handlers: list[Callable[[], object]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch for signals while the block runs; after one, wait for the queries to end."""
        thread = threading.Thread(target=self._watch, name="fanout signals", daemon=True)
        before = {number: signal.signal(number, self.receive) for number in _SIGNALS}
        thread.start()
        try:
            yield
        finally:
            self._await_stops()
            # From here on a signal of this process is for the handlers that were there before.
            for number, handler in before.items():
                signal.signal(number, handler)
            self._arrivals.put(None)
            thread.join()
            self._await_stops()
            self._release_jvm()
            self._pass_on_late()

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Take a signal of this process."""
        if not self._begun:
            raise SystemExit(0)
        self._arrivals.put(("Python", signal.Signals(number)))

    def heed_jvm(self, spark: SparkSession) -> None:
        """Let the JVM pass its signals on; it would end by them in the middle of a batch."""
        with self._lock:
            self._begun = True
            if threading.current_thread() is threading.main_thread():
                # A session that was created in the block has its own handler of Ctrl-C.
                signal.signal(signal.SIGINT, self.receive)
            if self._jvm_handlers:
                return
            context: Any = spark.sparkContext
            start_callbacks: Any = ensure_callback_server_started  # as Spark's foreachBatch does
            start_callbacks(context._gateway)  # noqa: SLF001 - pyspark's only door to the JVM
            _hide_interrupts(spark)
            java = jvm(spark).sun.misc.Signal
            for number in _SIGNALS:
                java_signal = java(number.name.removeprefix("SIG"))
                try:
                    before = java.handle(java_signal, _JvmHandler(self._arrivals, number))
                except JAVA_ERRORS as error:  # such as a JVM with -Xrs
                    log.warning("Spark's JVM does not pass on %s: %s", number.name, error)
                else:
                    self._jvm_handlers.append(partial(java.handle, java_signal, before))

    def add(self, query: FanOutQuery) -> None:
        """Let signals stop a query, also one that came while it started."""
        with self._lock:
            self._queries = [*(one for one in self._queries if one.is_active), query]
            if self._stopping:
                self._stop(query)

    def _watch(self) -> None:
        first = self._arrivals.get()
        if first is None:
            return
        deadline = time.monotonic() + self._timeout
        process, number = first
        log.info("%s came: queries finish their running batch and stop", number.name)
        with self._lock:
            self._stopping = True
            for query in self._queries:
                self._stop(query)
        while True:
            try:
                arrival = self._arrivals.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                self._give_up(number)
            if arrival is None:
                return
            # A signal to the process group comes to both processes, and is still one.
            if arrival[0] == process:
                log.error("a second %s came: the process ends at once", arrival[1].name)
                _end_by(arrival[1])

    def _stop(self, query: FanOutQuery) -> None:
        """Begin to stop a query; that may take as long as its handler."""
        stop = threading.Thread(target=query.stop, name="fanout stop", daemon=True)
        self._stops.append(stop)
        stop.start()

    def _await_stops(self) -> None:
        with self._lock:
            stops = [*self._stops]
        for stop in stops:
            stop.join()

    def _give_up(self, number: signal.Signals) -> NoReturn:
        running = sum(query.is_active for query in self._queries)
        what = (
            f"{running} of {len(self._queries)} queries still run; a batch whose handler has not "
            f"returned comes again in the next run"
            if running
            else "the program has not left the block of stop_on_signal"
        )
        log.error("%g s after %s the process ends: %s", self._timeout, number.name, what)
        _end_by(number)

    def _pass_on_late(self) -> None:
        """Pass a first signal that the JVM took while the block ended to the handlers of before."""
        if not self._stopping and not self._arrivals.empty():
            arrival = self._arrivals.get()
            if arrival is not None:
                signal.raise_signal(arrival[1])

    def _release_jvm(self) -> None:
        for restore in self._jvm_handlers:
            with suppress(*JAVA_ERRORS):  # the JVM may have gone
                restore()


@final
class _JvmHandler:
    """Take a signal of the JVM, which calls it in a thread of its own."""

    def __init__(self, arrivals: SimpleQueue[_Arrival | None], number: signal.Signals) -> None:
        self._arrivals = arrivals
        self._number = number

    def handle(self, _signal: object) -> None:
        """Implement sun.misc.SignalHandler."""
        self._arrivals.put(("Java", self._number))

    class Java:
        """Names for py4j what the class implements."""

        implements = ("sun.misc.SignalHandler",)


def _hide_interrupts(spark: SparkSession) -> None:
    """Let Hadoop log no interrupt of a chmod, with a stack trace: so Spark stops a query."""
    log4j = jvm(spark).org.apache.logging.log4j
    with suppress(TypeError, *JAVA_ERRORS):  # a session with another library for its log
        log4j.core.config.Configurator.setLevel("org.apache.hadoop.util.Shell", log4j.Level.ERROR)


def _end_by(number: signal.Signals) -> NoReturn:
    """End the process as shells report a signal; the default action does not end process 1."""
    os._exit(128 + number)


_current: _SignalWatch | None = None
