"""The owner of a checkpoint, without a JVM."""

from __future__ import annotations

from dataclasses import dataclass

from fanout.errors import CheckpointError


@dataclass
class Owner:
    """A claim without a JVM: it is lost when a test says so."""

    run: int = 1
    lost: bool = False
    good_for: int | None = None

    def check(self) -> None:
        if self.good_for is not None:
            self.good_for -= 1
            self.lost = self.good_for < 0
        if self.lost:
            raise CheckpointError("taken over")
