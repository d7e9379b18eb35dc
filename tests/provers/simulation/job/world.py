"""The protocols of a source that a simulated job reads, for every service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from random import Random

    from fanout.core.backoff import Pacing
    from fanout.core.events import Batch, Split
    from fanout.core.fan_out import FanOut
    from fanout.core.positions import Position
    from fanout.core.source import Source
    from fanout.errors import FanOutError
    from tests.provers.simulation.armed_faults import ArmedFaults
    from tests.provers.simulation.job.position_store import PositionStore
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kinesis.faults import KinesisFault

__all__ = ("JobPlan", "SourceOracle", "SourceReading", "SourceWitness", "SourceWorld")


class JobPlan(Protocol):
    """What of a plan is about the job; see `tests.provers.simulation.kinesis.plan.Plan`."""

    @property
    def seed(self) -> int:
        """What everything else was drawn from."""

    @property
    def seconds(self) -> float:
        """How long faults strike, in virtual seconds."""

    @property
    def reading(self) -> Literal["iterate", "drain", "mixed"]:
        """How the job reads."""

    @property
    def checkpoint_every(self) -> int:
        """After how many reads it stores its positions."""

    @property
    def acknowledging(self) -> Literal["each", "twice", "some", "all"]:
        """What it acknowledges."""

    @property
    def storing(self) -> Literal["positions", "drained", "delivered"]:
        """What it stores."""

    @property
    def broken(self) -> str | None:
        """The split that stays broken when everything else is repaired."""


class SourceReading(Protocol):
    """Compare what one run of a reader gets with what it must get."""

    def missing(self, broken: str | None) -> dict[str, int]:
        """Return how many rows of each split are still to come, but for one that stays broken."""

    def generations(self) -> int:
        """Return how many splits, one continuing the other, are still to be read; at least one."""

    def deliver(self, batch: Batch) -> None:
        """Check one batch."""

    def acknowledge(self, splits: Mapping[str, Position]) -> None:
        """Record what the job has acknowledged."""

    def check_acknowledged(self, positions: str) -> None:
        """Check positions that the stream calls acknowledged."""

    def check_stored(self, positions: str) -> None:
        """Check positions that are about to be stored."""


class SourceOracle(Protocol):
    """Know what the source holds, and what of it all runs of a reader have got together."""

    @property
    def checked(self) -> int:
        """How many records were checked."""

    @property
    def replayed(self) -> int:
        """How many of those came again after a restart."""

    @property
    def generations(self) -> int:
        """How many splits can continue each other at the most."""

    def begin(self, positions: str, run: ProcessRun, *, anew: bool = False) -> SourceReading:
        """Take note from where a run of the reader goes on."""


class SourceWitness(Protocol):
    """Check what is reported to one process about its subscriptions."""

    def opened(self, stream: FanOut) -> None:
        """Begin to look at a stream."""

    def looks(self) -> None:
        """Look at the stream between two reads."""

    def resubscribes(self, split: Split, cause: Exception, delay: float) -> None:
        """Take the arguments of `on_resubscribe`."""

    def closing(self, reading: Any) -> None:
        """Compare the counters of a stream that is about to be closed with what was seen."""

    def closed(self) -> None:
        """Look at what is left of the stream."""


class SourceWorld(Protocol):
    """What every run of a job meets: the service, what goes wrong, and who looks at everything."""

    @property
    def plan(self) -> JobPlan:
        """How the job reads."""

    @property
    def armed(self) -> ArmedFaults[KinesisFault]:
        """What goes wrong with the job and its store."""

    @property
    def oracle(self) -> SourceOracle:
        """What looks at everything that the job gets."""

    @property
    def store(self) -> PositionStore:
        """Where its positions are kept."""

    @property
    def random(self) -> Random:
        """The chance in the job itself."""

    @property
    def product(self) -> Random:
        """The chance in the library."""

    @property
    def now(self) -> float:
        """The virtual seconds."""

    @property
    def pacing(self) -> Pacing:
        """How the service is asked."""

    @property
    def grace(self) -> float:
        """How many seconds a stream may take to close."""

    @property
    def gone(self) -> bool:
        """Whether no reader can go on."""

    @property
    def violations(self) -> list[str]:
        """Which rules of the service were broken."""

    @property
    def calls(self) -> Mapping[str, int]:
        """The calls to the service, by name."""

    @property
    def struck(self) -> Mapping[str, int]:
        """What went wrong, by kind."""

    @property
    def moments(self) -> Mapping[str, int]:
        """How often each coincidence was met."""

    def observed(self) -> AbstractContextManager[None]:
        """Look out for coincidences while the block runs."""

    async def strike_service(self) -> None:
        """Let happen to the service what happens to it."""

    def repair(self) -> None:
        """Let nothing go wrong any more, except with a split that stays broken."""

    def source(self, run: ProcessRun) -> Source:
        """Return what a process reads from."""

    def witness(self, run: ProcessRun) -> SourceWitness:
        """Return who looks over the shoulder of a process."""

    def live_of(self, run: ProcessRun) -> list[str]:
        """Return what a process holds open."""

    def still_read(self, run: ProcessRun) -> list[str]:
        """Return what a process that has failed a second ago still reads."""

    def judge(self, failure: FanOutError, run: ProcessRun) -> None:
        """Check that a stream has failed of something that makes it fail."""
