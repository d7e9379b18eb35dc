"""The result of a simulated run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("RunOutcome",)


@final
@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The result of a run.

    Args:
        seed: Its seed.
        digest: The hash of its trace.
        steps: The task steps that ran.
        seconds: The virtual seconds that it took.
        records: The records that were checked.
        replayed: Those that came again after a restart.
        restarts: How often the job began anew.
        calls: The calls to the service, by name.
        faults: What went wrong, by kind.
        moments: The count of each coincidence.
        recovery: The virtual seconds from the repair until everything had arrived.
        close: The virtual seconds that the slowest close took.
    """

    seed: int
    digest: str
    steps: int
    seconds: float
    records: int
    replayed: int
    restarts: int
    calls: Mapping[str, int]
    faults: Mapping[str, int]
    moments: Mapping[str, int]
    recovery: float
    close: float
