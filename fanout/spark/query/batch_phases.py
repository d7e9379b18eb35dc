"""Measure the phases of a micro-batch, and report them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BatchPhase: TypeAlias = Literal["drain", "seal", "publish", "ledger", "handler", "commit"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """A micro-batch with records that is over; see `FanOutQuery.on_batch`.

    Args:
        batch_id: Spark's id of it.
        rows: The records that the handler has finished; 0 where it raised.
        bytes: The bytes of their segments.
        seconds: How long each phase took. `drain`: from the first record of the segment until it
            was handed over, while the batch before may still have been handled. `seal`: the end of
            writing the file. `publish`: its name in the checkpoint. `ledger`: the entry. `handler`:
            your function. `commit`: the acknowledgement to the service. Landers do the first three
            on executors, so these are missing there; a replay has the last two.
        error: What the handler raised; None for nothing.
        set_aside: Whether the batch was set aside for it, by `on_failed_batch`.
    """

    batch_id: int
    rows: int
    bytes: int
    seconds: Mapping[str, float]
    error: Exception | None = None
    set_aside: bool = False


BatchListener: TypeAlias = Callable[[BatchReport], None]
"""Called after each micro-batch with records."""


@final
class BatchPhases:
    """Add up the seconds of each phase of one batch."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measured(self, phase: BatchPhase) -> Iterator[None]:
        """Measure the block as a phase, also where it raises."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.took(phase, time.perf_counter() - started)

    def took(self, phase: BatchPhase, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds
