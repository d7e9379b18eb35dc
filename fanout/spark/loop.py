"""An asyncio loop in a thread of its own, and the blocking bridge to it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import TYPE_CHECKING, Any, Self, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

__all__ = ("LoopThread",)

T = TypeVar("T")


@final
class LoopThread:
    """Run an event loop in a thread while the block runs.

    Leaving the block cancels what still runs in the loop, waits for it, and ends the thread.
    """

    def __init__(self) -> None:
        self._started: concurrent.futures.Future[asyncio.AbstractEventLoop] = (
            concurrent.futures.Future()
        )
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="fanout loop", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop = self._started.result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine in the loop, without waiting for it.

        Cancelling the returned future cancels the coroutine.
        """
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and block the calling thread until it is done."""
        return self.start(work).result()

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Run a function in the loop, soon, without waiting for it."""
        self._loop.call_soon_threadsafe(callback)

    def _run(self) -> None:
        # asyncio.run cancels and awaits every task that is left, and its executor's threads.
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._started.set_result(asyncio.get_running_loop())
        await self._stop.wait()
