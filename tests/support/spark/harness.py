"""Handlers that remember what they were given, and waits for what other threads bring about."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.patience import PATIENCE as PATIENCE  # noqa: PLC0414 - for tests with Spark

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, Row


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a handler."""

    batch_id: int
    rows: Sequence[Row]


class Recorder:
    """A handler that collects its rows, in the order of shard and sequence."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._changed = threading.Condition()

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        rows = sorted(df.collect())
        with self._changed:
            self.calls.append(Call(batch_id, rows))
            self._changed.notify_all()

    @property
    def rows(self) -> list[Row]:
        return [row for call in self.calls for row in call.rows]

    @property
    def sequences(self) -> list[int]:
        """The sequence numbers of all rows of a ManualSource with one split."""
        return [row.sequence for row in self.rows]

    @property
    def batch_ids(self) -> list[int]:
        return [call.batch_id for call in self.calls]

    def wait_for_rows(self, count: int) -> None:
        self._wait(lambda: len(self.rows) >= count, f"{count} rows")

    def _wait(self, condition: Callable[[], bool], wanted: str) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, PATIENCE):
                raise AssertionError(f"waited for {wanted}, got {len(self.rows)} rows")


class Gate(Recorder):
    """A handler that blocks in its first call until it is let go; then it records."""

    def __init__(self) -> None:
        super().__init__()
        self._entered = threading.Event()
        self._open = threading.Event()

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        self._entered.set()
        assert self._open.wait(PATIENCE), "the gate was not opened"
        super().__call__(df, batch_id)

    def wait_until_entered(self) -> None:
        assert self._entered.wait(PATIENCE), "the handler was never called"

    def open(self) -> None:
        self._open.set()


def fail(df: DataFrame, batch_id: int) -> None:
    """Be a handler that fails."""
    del df, batch_id
    raise ValueError("no space in the warehouse")


def eventually(
    condition: Callable[[], object], wanted: str = "the condition", *, patience: float = PATIENCE
) -> None:
    """Wait for what nothing signals."""
    pause = threading.Event()
    for _ in range(int(patience / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError(f"waited for {wanted} in vain")


def fanout_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fanout")]
