"""A process that runs seeds for another one."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import signal
import threading
import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeAlias, final

from fanout.errors import SetupError
from tests.provers.simulation.campaign.failures import FailureKind, RunFailure
from tests.provers.simulation.run import RunOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

__all__ = ("Result", "Worker")

Result: TypeAlias = RunOutcome | RunFailure

# For the imports, in real seconds, on a machine that does much else.
_STARTUP: Final = 60.0
# For a process that has closed its connection, in real seconds.
_ENDING: Final = 5.0


@final
class Worker:
    """Start a process and give it seeds, which it runs one after the other.

    Args:
        run: Runs one seed; a function that another process can import.
        patience: How long a seed may take, in real seconds.
    """

    def __init__(self, run: Callable[[int], Result], patience: float) -> None:
        # Not forked: threads of this process (Arrow has some) would be missing in a copy of it.
        context = multiprocessing.get_context("spawn")
        self.seeds: deque[int] = deque()
        self.over = False
        self.connection: Connection
        self.connection, theirs = context.Pipe()
        self._patience = patience
        self._began = False
        self._since = time.monotonic()
        self._process = context.Process(target=_work, args=(theirs, run), daemon=True)
        with _interrupts_ignored():
            self._process.start()
        theirs.close()

    @property
    def deadline(self) -> float:
        """The moment of the monotonic clock by which it has to answer."""
        return self._since + self._limit

    @property
    def _limit(self) -> float:
        return self._patience if self._began else _STARTUP

    def give(self, seeds: Sequence[int]) -> None:
        """Let it run some seeds."""
        if self._began:
            self._since = time.monotonic()
        self.seeds.extend(seeds)
        with suppress(OSError):  # if it has died, that is read next
            self.connection.send(seeds)

    def answer(self) -> Result | None:
        """Return what its present seed has come to; None if that is not known yet.

        A seed that takes too long, or that the process dies of, is a failure; the worker is over
        then, and `seeds` are those that it was given in vain.

        Raises:
            SetupError: The process has not even begun.
        """
        try:
            if not self.connection.poll():
                return self._late() if time.monotonic() > self.deadline else None
            result: Result | None = self.connection.recv()
        except (EOFError, OSError):
            self._process.join(_ENDING)
            return self._lost(
                FailureKind.DIED, f"its process has ended with exit code {self._process.exitcode}"
            )
        self._since = time.monotonic()
        if result is None:
            self._began = True
        else:
            self.seeds.popleft()
        return result

    def end(self) -> None:
        """End the process at once."""
        self.over = True
        self._process.kill()
        self._process.join()
        self.connection.close()

    def _late(self) -> RunFailure:
        self.end()
        return self._lost(FailureKind.HUNG, f"it ran for more than {self._limit:g} s")

    def _lost(self, kind: FailureKind, text: str) -> RunFailure:
        self.end()
        if not self._began:
            raise SetupError(
                f"a process that was to run seeds could not begin ({text}); what it has printed "
                f"says why"
            )
        return RunFailure(self.seeds.popleft(), kind, f"{kind}: {text}")


def _work(connection: Connection, run: Callable[[int], Result]) -> None:
    """Run what comes, until the other end is closed."""
    logging.disable()
    gc.freeze()  # what is imported by now stays, and need not be looked at again and again
    with suppress(EOFError, OSError):
        connection.send(None)
        while True:
            for seed in connection.recv():
                connection.send(run(seed))


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Let a process that is started here take no notice of Ctrl-C: this one ends it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
