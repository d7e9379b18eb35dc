"""Run one plan and write down what happened, for people."""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from fanout.testing.virtual_time.trace import Trace
from tests.provers.simulation.campaign.failures import RunFailure
from tests.provers.simulation.errors import SimulationError
from tests.provers.simulation.run import run_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.provers.simulation.plans import AnyPlan

__all__ = ("Replay", "replay")


@final
@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a run.

    Args:
        plan: Its plan.
        digest: The hash of everything that happened.
        lines: What happened, each with its virtual second.
        failure: What it has shown; None if everything held.
    """

    plan: AnyPlan
    digest: str
    lines: tuple[str, ...] = field(repr=False)
    failure: RunFailure | None


def replay(plan: AnyPlan) -> Replay:
    """Run a plan and note what happens, with what the library logs."""
    trace = Trace(keep_lines=True)
    failure = None
    with _logged_to(trace):
        try:
            run_plan(plan, trace)
        except SimulationError as error:
            failure = RunFailure.of(plan.seed, error)
    return Replay(plan, trace.digest, tuple(trace.lines), failure)


@contextmanager
def _logged_to(trace: Trace) -> Iterator[None]:
    """Note in a trace what the library logs, but leave its hash alone."""
    logger = logging.getLogger("fanout")
    handler = _LogLines(trace)
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False  # a warning is not to be printed twice
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


@final
class _LogLines(logging.Handler):
    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace
        self._now = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(RuntimeError):  # a simulated thread has no loop, and logs after what it did
            self._now = asyncio.get_running_loop().time()
        self._trace.remark(self._now, f"log: {record.getMessage()}")
