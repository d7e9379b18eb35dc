"""An event loop whose clock moves only when every task waits for it."""

from __future__ import annotations

import asyncio
import gc
import math
import selectors
import traceback
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, final

from fanout.testing.virtual_time.schedule import Fifo, ReadyQueue
from fanout.testing.virtual_time.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
    from types import FrameType

    from fanout.testing.virtual_time.schedule import Schedule

T = TypeVar("T")

# A stream that is open always has a timer, so a test that waits for nothing would run for ever.
MAX_SECONDS: Final = 2 * 24 * 3600.0
# Thousands of splits may each take some turns at one moment; what takes more goes round in circles.
MAX_TURNS: Final = 100_000


class DeadlockError(RuntimeError):
    """Every task waits, and nothing can wake one; or the virtual time allowed is over."""


class LeakError(AssertionError):
    """Something outlived the simulation: a task, a timer, or an error that was never retrieved."""


@final
class SimLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop in virtual time and without input or output.

    Time starts at 0 and jumps to the next timer when nothing else can run. Threads, sockets and
    signals are refused: they would bring real time and real order in. Tasks are named and hashed
    by their number, so that neither names nor the order of a set differ from run to run.

    Args:
        max_seconds: The virtual seconds after which the run is given up as hanging.
        schedule: The order of task steps that are ready at the same moment; None for asyncio's.
        trace: Where every step is noted; None for nowhere.

    Attributes:
        workers: Starts blocking work, in virtual time, and returns what it returns; None where
            blocking work is refused.
    """

    _scheduled: list[asyncio.TimerHandle]
    _ready: ReadyQueue

    def __init__(
        self,
        *,
        max_seconds: float = MAX_SECONDS,
        schedule: Schedule | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.trace = trace or Trace()
        self.workers: Callable[[Callable[[], Any]], asyncio.Future[Any]] | None = None
        self.blocked = 0.0
        self._now = 0.0
        self._turns = 0
        self._tasks = 0
        self._max_seconds = max_seconds
        self._errors: list[str] = []
        selector = _SimSelector(self)
        super().__init__(selector)
        selector.sealed = True
        self._ready = ReadyQueue(schedule or Fifo(), self._note_step)
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._remember)

    def time(self) -> float:
        """Return the virtual seconds since the start."""
        return self._now

    @property
    def awake(self) -> float:
        """The virtual seconds in which it was not blocked; all processes of a run share it."""
        return self._now - self.blocked

    def advance(self, seconds: float | None) -> None:
        """Let time pass, as the selector would by waiting.

        Raises:
            DeadlockError: If `seconds` is None, so that nothing can ever happen, or the time
                allowed is over, or time has stood still for 100,000 turns.
        """
        if seconds is None:
            raise DeadlockError(f"nothing can wake any task\n{self._stacks()}")
        self._turns = 0 if seconds else self._turns + 1
        if self._turns > MAX_TURNS:
            self._turns = 0  # what is cancelled now may take its turns to stop
            raise DeadlockError(f"tasks go round in circles at {self._now:g} s\n{self._stacks()}")
        self._now += seconds
        if self._now > self._max_seconds:
            self._max_seconds = math.inf  # what is cancelled now may take its time to stop
            raise DeadlockError(f"still running after {self._now:g} s\n{self._stacks()}")

    def block(self, seconds: float) -> None:
        """Let time pass while nothing runs, as code does that blocks the loop."""
        self._now += seconds
        self.blocked += seconds

    def skip(self, seconds: float) -> bool:
        """Let time pass at once if nothing can happen meanwhile; tell whether it has passed."""
        when = self._now + seconds
        first = self._scheduled[0].when() if self._scheduled else math.inf
        if self._ready or first <= when or when > self._max_seconds:
            return False
        self._now = when
        return True

    def note(self, event: str) -> None:
        """Note in the trace that something has happened now."""
        self.trace.event(self._now, event)

    def check_leaks(self) -> None:
        """Check that the run has left nothing behind.

        Raises:
            LeakError: If a task or a timer is left, or an error was not looked at.
        """
        tasks, timers = self.left()
        leaks = [f"task {task!r}" for task in tasks]
        leaks += [f"timer {timer!r}" for timer in timers]
        leaks += self._errors
        if leaks:
            raise LeakError("the simulation has left behind: " + "; ".join(leaks))

    def left(
        self, but: Collection[asyncio.Task[Any]] = ()
    ) -> tuple[list[asyncio.Task[Any]], list[asyncio.TimerHandle]]:
        """Return the tasks and the timers that there are now.

        Args:
            but: The tasks that are left out.
        """
        tasks = [task for task in asyncio.all_tasks(self) if task not in but]
        return tasks, [timer for timer in self._scheduled if not timer.cancelled()]

    def run_in_executor(
        self, executor: object, work: Callable[..., T], *args: object
    ) -> asyncio.Future[T]:
        """Hand blocking work to `workers`; refuse it without: a thread would run in real time."""
        if self.workers is None:
            raise RuntimeError("a simulation has no threads")
        assert executor is None, "a simulation has one executor"
        return self.workers(partial(work, *args))

    async def getaddrinfo(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: there is no network."""
        raise RuntimeError("a simulation has no network")

    def add_signal_handler(self, *_: object) -> NoReturn:
        """Refuse: signals come in real time."""
        raise RuntimeError("a simulation has no signals")

    def _make_task(self, _: object, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        self._tasks += 1
        kwargs["name"] = kwargs.get("name") or f"task {self._tasks}"
        return _SimTask(coro, number=self._tasks, loop=self, **kwargs)

    def _note_step(self, task: asyncio.Task[Any]) -> None:
        self.trace.step(self._now, task.get_name())

    def _remember(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._errors.append(f"{context['message']}: {context.get('exception')!r}")

    def _stacks(self) -> str:
        return "\n".join(
            f"{task.get_name()}:\n{''.join(traceback.format_list(_stack(task)))}"
            for task in asyncio.all_tasks(self)
        )


def simulate(
    main: Callable[..., Coroutine[Any, Any, T]],
    *args: Any,
    loop_factory: Callable[[], SimLoop] = SimLoop,
    **kwargs: Any,
) -> T:
    """Run a coroutine function in virtual time and check that it leaves nothing behind.

    Args:
        main: The coroutine function.
        *args: Its arguments.
        loop_factory: Makes the loop, where it is to have a schedule or a trace.
        **kwargs: Its keyword arguments.

    Returns:
        What it returns.

    Raises:
        DeadlockError: If nothing can wake any task, or the time allowed is over.
        LeakError: If a task or a timer is left when it returns.
    """
    with _no_collector(), asyncio.Runner(loop_factory=loop_factory) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SimLoop)
        try:
            result = runner.run(main(*args, **kwargs))
        finally:
            # asyncio tidies up behind a run in the order of addresses.
            loop.trace.close()
        loop.check_leaks()
        return result


@contextmanager
def _no_collector() -> Iterator[None]:
    """Collect no garbage: when it is done depends on everything that the process did before."""
    # What is collected may be an asynchronous generator, which asyncio closes in a task of its own.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def running_loop() -> SimLoop:
    """Return the simulated loop that runs the caller."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop), "time is only virtual on a simulated loop"
    return loop


@final
class _SimTask(asyncio.Task[Any]):
    """A task whose hash is its number: asyncio keeps tasks in sets, and cancels them from there."""

    def __init__(self, coro: Any, *, number: int, **kwargs: Any) -> None:
        self._number = number
        super().__init__(coro, **kwargs)

    def __hash__(self) -> int:
        return self._number


@final
class _SimSelector(selectors.BaseSelector):
    """Never wait; knows the loop's own wake-up socket, and refuses any other."""

    def __init__(self, loop: SimLoop) -> None:
        self.sealed = False
        self._loop = loop
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: object = None) -> selectors.SelectorKey:
        if self.sealed:
            raise RuntimeError("a simulation has no sockets")
        descriptor = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = selectors.SelectorKey(fileobj, descriptor, events, data)
        self._keys[descriptor] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.advance(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


def _stack(task: asyncio.Task[Any]) -> traceback.StackSummary:
    return traceback.StackSummary.extract((frame, frame.f_lineno) for frame in _frames(task))


def _frames(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    """Walk from a task's own coroutine to the innermost one that it waits in."""
    waiting: object = task.get_coro()
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None)
        if frame is not None:
            yield frame
        waiting = getattr(waiting, "cr_await", None)
