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
    """The part of a plan about the job; see `tests.provers.simulation.kinesis.plan.KinesisPlan`."""

    @property
    def seed(self) -> int:
        """The seed of everything else."""

    @property
    def seconds(self) -> float:
        """The virtual seconds in which faults strike."""

    @property
    def reading(self) -> Literal["iterate", "drain", "mixed"]:
        """The way in which the job reads."""

    @property
    def checkpoint_every(self) -> int:
        """After how many reads it stores its positions."""

    @property
    def acknowledging(self) -> Literal["each", "twice", "some", "all"]:
        """The batches that it acknowledges."""

    @property
    def storing(self) -> Literal["positions", "drained", "delivered"]:
        """The positions that it stores."""

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
        """The number of records that were checked."""

    @property
    def replayed(self) -> int:
        """The number of those that came again after a restart."""

    @property
    def generations(self) -> int:
        """The most splits that can continue each other."""

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
    """The environment of every run of a job: the service, its faults, and the oracle."""

    @property
    def plan(self) -> JobPlan:
        """The way in which the job reads."""

    @property
    def armed(self) -> ArmedFaults[KinesisFault]:
        """The faults of the job and its store."""

    @property
    def oracle(self) -> SourceOracle:
        """The oracle, which checks everything that the job gets."""

    @property
    def store(self) -> PositionStore:
        """The store of its positions."""

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
        """The pacing of calls to the service."""

    @property
    def grace(self) -> float:
        """The seconds that a stream may take to close."""

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
        """The faults that struck, by kind."""

    @property
    def moments(self) -> Mapping[str, int]:
        """The count of each coincidence."""

    def observed(self) -> AbstractContextManager[None]:
        """Look out for coincidences while the block runs."""

    async def strike_service(self) -> None:
        """Let happen to the service what happens to it."""

    def repair(self) -> None:
        """Let nothing go wrong any more, except with a split that stays broken."""

    def source(self, run: ProcessRun) -> Source:
        """Return what a process reads from."""

    def witness(self, run: ProcessRun) -> SourceWitness:
        """Return the witness of a process."""

    def live_of(self, run: ProcessRun) -> list[str]:
        """Return what a process holds open."""

    def still_read(self, run: ProcessRun) -> list[str]:
        """Return what a process that has failed a second ago still reads."""

    def judge(self, failure: FanOutError, run: ProcessRun) -> None:
        """Check that a stream has failed of something that makes it fail."""
