"""Stand-ins for threads, futures and time, put where the library looks for the real ones."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, final
from unittest import mock

from fanout.landing import claims as landing_claims
from fanout.landing.segments import segments
from fanout.landing.storage import local_storage, object_storage, storage
from fanout.spark.hadoop import jvm_lock
from fanout.spark.query import query, query_stream, start_query
from tests.provers.simulation.spark.disk_stand_ins import DiskOs, DiskParquet, DiskPath
from tests.provers.simulation.spark.object_client import STORAGE_STAND_INS
from tests.provers.simulation.spark.process import current_process
from tests.provers.simulation.spark.spark_session import DriverClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator
    from random import Random

    from fanout.landing.claims import LockingProcess, Ownership
    from fanout.landing.storage.storage import Storage
    from tests.provers.simulation.spark.oracle import AcquiredByDriver
    from tests.provers.simulation.spark.spark_session import Locks

__all__ = ("library_stand_ins",)

T = TypeVar("T")


@final
class _SimFuture(Generic[T]):
    """A `concurrent.futures.Future` for which a thread waits in virtual time."""

    def __init__(self) -> None:
        self._scheduler = current_process.get().scheduler
        self._future: asyncio.Future[T] = self._scheduler.loop.create_future()
        # A caller that asks gets the error; as with the real one, none has to ask.
        self._future.add_done_callback(lambda done: done.cancelled() or done.exception())

    def follow(self, task: asyncio.Task[T]) -> None:
        """Get what a task returns or raises."""
        if self._future.done():
            return
        if task.cancelled():
            self._future.cancel()
        elif (error := task.exception()) is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(task.result())

    def result(self) -> T:
        """Block until there is a result."""
        self.wait()
        return self._future.result()

    def wait(self) -> None:
        """Block until it is done."""
        self._scheduler.until(self._future)

    def done(self) -> bool:
        return self._future.done()

    def cancelled(self) -> bool:
        return self._future.cancelled()

    def exception(self) -> BaseException | None:
        return self._future.exception()

    def set_result(self, result: T) -> None:
        self._future.set_result(result)

    def set_exception(self, error: BaseException) -> None:
        self._future.set_exception(error)


@final
class _LoopThread:
    """The part of a simulated loop that belongs to one process."""

    def __init__(self) -> None:
        self._process = current_process.get()
        self._loop = self._process.scheduler.loop

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for task in self._process.tasks:
            task.cancel()
        while self._process.tasks:
            ended = asyncio.gather(*self._process.tasks, return_exceptions=True)
            self._process.scheduler.until(ended)

    def start(self, work: Coroutine[Any, Any, T]) -> _SimFuture[T]:
        future: _SimFuture[T] = _SimFuture()

        def begin() -> None:
            task = self._loop.create_task(work)
            self._process.tasks[task] = None
            task.add_done_callback(self._process.tasks.pop)
            task.add_done_callback(future.follow)
            if not self._process.alive:
                task.cancel()

        self._loop.call_soon(begin)
        return future

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return self.start(work).result()

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._loop.call_soon(callback)


@final
class _SimEvent:
    """A `threading.Event` in virtual time."""

    def __init__(self) -> None:
        self._scheduler = current_process.get().scheduler
        self._set = False
        self._waiting: list[asyncio.Future[None]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            return True
        loop = self._scheduler.loop
        future = loop.create_future()
        self._waiting.append(future)
        timer = None if timeout is None else loop.call_later(timeout, _finish, future)
        try:
            self._scheduler.until(future)
        finally:
            if timer is not None:
                timer.cancel()
        return self._set


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@final
class _SimStandInThread:
    """A `threading.Thread` that takes turns with the others."""

    def __init__(self, *, target: Callable[[], object], name: str, daemon: bool) -> None:
        del name, daemon
        self._target = target

    def start(self) -> None:
        process = current_process.get()
        process.scheduler.start(process, self._target).add_done_callback(process.note_end)


@final
class _SimWork(Generic[T]):
    """What a `_SimExecutor` was asked to do.

    Args:
        done: Its result.
    """

    def __init__(self, done: asyncio.Future[T]) -> None:
        self._done = done

    def result(self) -> T:
        """Block until there is a result."""
        self.wait()
        return self._done.result()

    def wait(self) -> None:
        """Block until it is done."""
        current_process.get().scheduler.until(self._done)


@final
class _SimExecutor:
    """A `ThreadPoolExecutor` with one thread, which takes turns with the others."""

    def __init__(self, max_workers: int, name: str) -> None:
        del name
        assert max_workers == 1
        self._submitted: list[_SimWork[Any]] = []

    def submit(self, work: Callable[..., T], *args: Any, **options: Any) -> _SimWork[T]:
        _wait(self._submitted)
        process = current_process.get()
        done = process.scheduler.start(process, partial(work, *args, **options))
        done.add_done_callback(lambda done: done.cancelled() or done.exception())
        submitted: _SimWork[T] = _SimWork(done)
        self._submitted = [submitted]
        return submitted

    def shutdown(self) -> None:
        _wait(self._submitted)


def _wait(futures: Iterable[_SimFuture[Any] | _SimWork[Any]]) -> None:
    for future in futures:
        future.wait()


def _now() -> float:
    return current_process.get().scheduler.loop.time()


def _sleep(seconds: float) -> None:
    current_process.get().scheduler.sleep(seconds)


def _get_ident() -> int:
    return current_process.get().scheduler.ident()


@contextmanager
def library_stand_ins(
    random: Random,
    locks: Locks,
    open_storage: Callable[..., Storage],
    claims: AcquiredByDriver,
) -> Iterator[None]:
    """Let the library meet the simulation wherever it would meet the machine.

    Args:
        random: The source of unique names.
        locks: The locks of the JVMs.
        open_storage: Opens the checkpoint of the running process.
        claims: Receives the owner of the checkpoint.
    """

    @contextmanager
    def claim(storage: Storage, jvm: LockingProcess) -> Iterator[Ownership]:
        process = current_process.get()
        with landing_claims.claim(storage, jvm) as owned:
            claims.begin(process, owned.run)
            yield owned
            claims.end(process)

    time = SimpleNamespace(monotonic=_now, sleep=_sleep)
    unique = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{random.getrandbits(128):032x}"))
    futures = SimpleNamespace(Future=_SimFuture, wait=_wait)
    replaced: list[tuple[Any, dict[str, Any]]] = [
        (local_storage, {"os": DiskOs, "Path": DiskPath}),
        (object_storage, STORAGE_STAND_INS),
        (segments, {"os": DiskOs, "pq": DiskParquet, "ThreadPoolExecutor": _SimExecutor}),
        (storage, {"uuid": unique}),
        (landing_claims, {"time": time, "uuid": unique}),
        (jvm_lock, {"JvmLock": locks}),
        (query_stream, {"concurrent": SimpleNamespace(futures=futures)}),
        (
            query,
            {
                "threading": SimpleNamespace(
                    Event=_SimEvent, Thread=_SimStandInThread, get_ident=_get_ident
                ),
                "Future": _SimFuture,
                "time": time,
            },
        ),
        (
            start_query,
            {
                "LoopThread": _LoopThread,
                "claim": claim,
                "open_storage": open_storage,
                "require_classic": lambda _: None,
                "sweep_offsets": lambda *_: None,
                "_clock": lambda session, *_: DriverClock(session),
            },
        ),
    ]
    with ExitStack() as stack:
        for module, names in replaced:
            stack.enter_context(mock.patch.multiple(module, **names))
        yield
