"""Look at what each process does with records and positions, and in the middle of what it dies."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, final

from fanout.core.fan_out import FanOut
from fanout.errors import FanOutError, PositionError
from tests.provers.simulation.job.job import SimJob
from tests.provers.simulation.job.position_store import PositionStore
from tests.provers.simulation.job.process import SimProcess
from tests.provers.simulation.kinesis.oracle.oracle import KinesisOracle
from tests.provers.simulation.moments.moments import KinesisSometimes
from tests.provers.simulation.moments.observers.calls import after, around, before, together
from tests.provers.simulation.moments.observers.connections import run_of

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from tests.provers.simulation.job.process_run import ProcessRun

__all__ = ("JobObservers",)


@final
class JobObservers:
    """Look at the processes of one run.

    Args:
        moments: Counts what is met.
    """

    def __init__(self, moments: Counter[str]) -> None:
        self._moments = moments
        self._unopened = False
        self._torn = False
        self._refused: int | None = None
        # By the numbers of their processes.
        self._working: set[int] = set()
        self._storing: set[int] = set()
        self._unstored: set[int] = set()

    def installed(self) -> AbstractContextManager[None]:
        """Look for as long as the block runs."""
        return together(
            around(SimJob, "live", self._runs),
            before(SimProcess, "kill", self._dies),
            around(SimJob, "_process", self._works),
            after(FanOut, "acknowledge", self._acknowledges),
            around(PositionStore, "save", self._saves),
            around(KinesisOracle, "begin", self._begins),
        )

    def _dies(self, process: SimProcess) -> None:
        number, opened = process.run.number, process.run.opened
        idle = opened and number not in self._storing | self._working
        self._moments[KinesisSometimes.DIED_OPENING] += not opened
        self._moments[KinesisSometimes.DIED_STORING] += number in self._storing
        self._moments[KinesisSometimes.DIED_UNACKNOWLEDGED] += number in self._working
        self._moments[KinesisSometimes.DIED_UNSTORED] += idle and number in self._unstored

    @contextmanager
    def _runs(self, job: SimJob) -> Iterator[None]:
        try:
            yield
        except FanOutError:
            self._unopened |= not job._run.opened
            raise
        finally:
            if job._run.opened and self._unopened:
                self._unopened = False
                self._moments[KinesisSometimes.OPENED_AFTER_FAILURE] += 1

    @contextmanager
    def _works(self, job: SimJob) -> Iterator[None]:
        self._working.add(job._run.number)
        try:
            yield
        finally:
            self._working.remove(job._run.number)

    def _acknowledges(self, _: None, stream: FanOut, *__: object) -> None:
        self._unstored.add(run_of(stream._connection).number)

    @contextmanager
    def _saves(self, _: PositionStore, __: str, run: ProcessRun) -> Iterator[None]:
        self._storing.add(run.number)
        try:
            yield
        except OSError:
            self._refused = run.number
            raise
        finally:
            self._storing.remove(run.number)
        self._unstored.discard(run.number)
        self._moments[KinesisSometimes.CHECKPOINT_FAILED_ONCE] += self._refused == run.number
        self._refused = None

    @contextmanager
    def _begins(self, oracle: KinesisOracle, *_: object, **__: object) -> Iterator[None]:
        replayed = oracle.replayed
        try:
            yield
        except PositionError:
            self._torn = True
            raise
        self._moments[KinesisSometimes.RESTARTED_FROM_TORN] += self._torn
        self._moments[KinesisSometimes.RESTART_REPLAYED] += oracle.replayed > replayed
        self._torn = False
