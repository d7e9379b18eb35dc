"""An asyncio event loop in its own thread, with blocking calls to it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Self, TypeVar, final

from fanout.errors import StreamStateError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable
    from contextlib import AbstractAsyncContextManager

T = TypeVar("T")


@final
class LoopThread:
    """Run an event loop in a thread while the block runs.

    Leaving the block cancels what still runs in the loop, waits for it, and ends the thread. A task
    that raises SystemExit, as a function of the user may, fails with a `StreamStateError`: it would
    end the loop, and who calls it would wait for ever.
    """

    def __init__(self) -> None:
        self._started: concurrent.futures.Future[asyncio.AbstractEventLoop] = (
            concurrent.futures.Future()
        )
        self._stop = asyncio.Event()
        self._held: dict[Hashable, Any] = {}
        self._holding = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="fanout loop", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop = self._started.result()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine in the loop without waiting; a cancelled future cancels the coroutine."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and block the calling thread until it is done."""
        return self.start(work).result()

    def hold(self, key: Hashable, make: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Enter a context in the loop, once for a key, and leave it when the loop ends.

        The error of entering it is raised; the next call with the key tries again.
        """
        with self._holding:
            if key not in self._held:
                entered: concurrent.futures.Future[T] = concurrent.futures.Future()
                self.start(self._hold(make(), entered))
                self._held[key] = entered.result()
            held: T = self._held[key]
            return held

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Run a function in the loop, soon, without waiting for it."""
        self._loop.call_soon_threadsafe(callback)

    def _run(self) -> None:
        # asyncio.run cancels and awaits every task that is left, and its executor's threads.
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(_guarded_task)
        self._started.set_result(loop)
        await self._stop.wait()

    async def _hold(
        self, context: AbstractAsyncContextManager[T], entered: concurrent.futures.Future[T]
    ) -> None:
        """Keep a context until the loop ends."""
        try:
            async with context as value:
                entered.set_result(value)
                await self._stop.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)


@final
class _Guarded(Coroutine[Any, Any, Any]):
    """A coroutine that raises an `Exception` in place of what would end the loop."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work
        self.__name__: str = getattr(work, "__name__", "")
        self.__qualname__: str = getattr(work, "__qualname__", "")

    def send(self, value: Any) -> Any:
        try:
            return self._work.send(value)
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            raise ended_by(error) from error

    def throw(self, *thrown: Any) -> Any:
        try:
            return self._work.throw(*thrown)
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            raise ended_by(error) from error

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()


def ended_by(error: BaseException) -> StreamStateError:
    """Return what is raised in place of SystemExit, say, which ends a thread without a word."""
    return StreamStateError(
        f"a function that the stream calls raised {type(error).__name__}, which is no error of a "
        f"record: let decode and hooks raise an Exception, and end the program elsewhere"
    )


def _guarded_task(
    loop: asyncio.AbstractEventLoop, work: Any, **options: Any
) -> asyncio.Future[Any]:
    return asyncio.Task(_Guarded(work), loop=loop, **options)
