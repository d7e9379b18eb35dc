"""Threads that take turns on the clock of a simulated loop.

Exactly one thread runs at any moment: the loop's own, or one that the loop has woken and that has
not blocked again. A thread blocks until a time or a future of the loop, so what asyncio knows of
order, time and deadlocks holds for threads too, and a run with threads is as repeatable as one
without.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar, copy_context
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from fanout.testing.virtual_time.loop import SimLoop

__all__ = ("SimThread", "ThreadHost", "ThreadKilled", "Threads")

T = TypeVar("T")

# Real seconds: what a thread does between two operations takes microseconds.
_STUCK: Final = 20.0


class ThreadKilled(BaseException):
    """Raised in a thread whose process was killed, wherever it blocks; nothing handles it."""


class ThreadHost(Protocol):
    """The process that a thread belongs to, and dies with."""

    threads: dict[SimThread, None]

    def check_alive(self) -> None:
        """Return while it lives.

        Raises:
            Killed: If it does not.
        """


_current: ContextVar[SimThread] = ContextVar("current thread")


@final
class SimThread:
    """A real thread that runs only when the loop lets it.

    Args:
        loop: The loop.
        host: What the thread dies with.
        work: The function that it runs.
        done: Gets what `work` returns or raises; cancelled if the thread is killed.
    """

    def __init__(
        self, loop: SimLoop, host: ThreadHost, work: Callable[[], object], done: asyncio.Future[Any]
    ) -> None:
        self._loop = loop
        self._host = host
        self._work = work
        self._done = done
        self._context = copy_context()
        self._turn = 0
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._blocked: SimpleQueue[None] = SimpleQueue()
        self._outcome: Callable[[], object] | None = None
        host.threads[self] = None
        _workers.run(lambda: self._context.run(self._run))
        loop.call_soon(self._wake, 0)

    def kill(self) -> None:
        """Wake the thread wherever it blocks; its host, which is dead, then ends it."""
        self._loop.call_soon(self._wake, self._turn)

    def abandon(self) -> None:
        """End the thread, whose host is dead, without a loop that could wake it."""
        self._woken.put(None)
        self._blocked.get(timeout=_STUCK)

    def until(self, future: asyncio.Future[Any]) -> None:
        """Block until a future is done; called in the thread itself."""
        self._host.check_alive()
        turn = self._turn
        future.add_done_callback(lambda _: self._wake(turn))
        self._block()

    def sleep(self, seconds: float) -> None:
        """Block for virtual seconds; called in the thread itself."""
        self._host.check_alive()
        if self._loop.skip(seconds):
            return
        timer = self._loop.call_later(seconds, self._wake, self._turn)
        try:
            self._block()
        finally:
            timer.cancel()

    def _block(self) -> None:
        self._blocked.put(None)
        self._woken.get()
        self._host.check_alive()

    def _wake(self, turn: int) -> None:
        """Let the thread run until it blocks again or ends; called in the loop."""
        if turn != self._turn:
            return  # it has been woken meanwhile, to end
        self._turn += 1
        self._woken.put(None)
        try:
            self._blocked.get(timeout=_STUCK)
        except Empty:
            raise RuntimeError("a thread blocks outside of the simulation") from None
        if self._outcome is not None:
            self._turn += 1
            del self._host.threads[self]
            if not self._done.done():
                self._outcome()

    def _run(self) -> None:
        _current.set(self)
        self._woken.get()
        try:
            self._host.check_alive()
            result = self._work()
        except ThreadKilled:
            self._outcome = self._done.cancel
        except BaseException as error:  # noqa: BLE001 - raised where the thread is joined
            failure = error
            self._outcome = lambda: self._done.set_exception(failure)
        else:
            self._outcome = lambda: self._done.set_result(result)
        self._blocked.put(None)


@final
class _Workers:
    """The real threads, each of which is used again: to start one takes longer than most work."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], None]]] = []

    def run(self, work: Callable[[], None]) -> None:
        """Run a function in a thread that has nothing to do, or in a new one."""
        try:
            jobs = self._idle.pop()
        except IndexError:
            jobs = SimpleQueue()
            threading.Thread(
                target=self._serve, args=(jobs,), name="simulated", daemon=True
            ).start()
        jobs.put(work)

    def _serve(self, jobs: SimpleQueue[Callable[[], None]]) -> None:
        while True:
            jobs.get()()
            self._idle.append(jobs)


_workers = _Workers()


@final
class Threads:
    """Start threads, and block the one that runs. One per loop.

    Args:
        loop: The loop whose clock they share.
    """

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop

    def start(self, host: ThreadHost, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function in a new thread.

        Returns:
            What it returns or raises; cancelled if the thread is killed.
        """
        done: asyncio.Future[T] = self.loop.create_future()
        SimThread(self.loop, host, work, done)
        return done

    def ident(self) -> int:
        """Return the identity of the running thread."""
        return id(_current.get())

    def sleep(self, seconds: float) -> None:
        """Block the running thread for virtual seconds."""
        _current.get().sleep(seconds)

    def until(self, future: asyncio.Future[Any]) -> None:
        """Block the running thread until a future of the loop is done."""
        if not future.done():
            _current.get().until(future)
