"""Arm a strike for the job, and take it in a process of the job.

The armed strike is a file. The first process that comes to its moment, the driver or a Python
worker, takes it by a rename, which succeeds for one process only.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

import msgspec

from tests.provers.crash.moments import CrashMoment, Pipeline, Strike, StrikeKind

__all__ = ("CONTROL", "Control")

# The environment variable by which Python workers, which Spark starts, find the directory.
CONTROL = "FANOUT_CRASH_CONTROL"

# A process that waits for the campaign to strike something else goes on by itself after this time.
_PATIENCE = 60.0
_LOOK = 0.005


@final
@dataclass(frozen=True, slots=True)
class Control:
    """Arm, take and release strikes.

    Args:
        root: The directory of the two files, and of the process ids of the driver.
    """

    root: Path

    def arm(self, strike: Strike) -> None:
        """Let the next process that comes to the moment take the strike."""
        scratch = self.root / "arming"
        scratch.write_bytes(msgspec.json.encode(strike))
        scratch.rename(self._armed)

    def disarm(self) -> bool:
        """Withdraw what is armed; return whether it was not taken."""
        try:
            self._armed.unlink()
        except FileNotFoundError:
            return False
        return True

    def taken(self) -> bool:
        """Say whether a process has come to the moment."""
        return self._taken.exists()

    def release(self) -> None:
        """Let the process that has come to the moment go on."""
        self._taken.unlink(missing_ok=True)

    def write_pids(self, *pids: int) -> None:
        """Write down which processes are the driver: its JVM first."""
        scratch = self.root / "starting"
        scratch.write_bytes(msgspec.json.encode(pids))
        scratch.rename(self._pids)

    def reach(self, moment: CrashMoment, pipeline: Pipeline | None) -> None:
        """Come to a moment in a process of the job: take what is armed for it, and suffer it.

        Args:
            moment: The moment.
            pipeline: Its pipeline; None where that is not known.
        """
        try:
            strike = msgspec.json.decode(self._armed.read_bytes(), type=Strike)
        except FileNotFoundError:
            return
        if strike.moment != moment or pipeline not in {None, strike.pipeline}:
            return
        try:
            self._armed.rename(self._taken)
        except FileNotFoundError:
            return
        match strike.kind:
            case StrikeKind.KILL_DRIVER:
                for pid in msgspec.json.decode(self._pids.read_bytes(), type=list[int]):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            case StrikeKind.KILL_WORKER | StrikeKind.KILL_LANDER:
                os.kill(os.getpid(), signal.SIGKILL)
            case StrikeKind.KILL_EXECUTOR:
                os.kill(_executor(), signal.SIGKILL)
            case StrikeKind.KILL_SPARK_WORKER:
                os.kill(_parent(_executor()), signal.SIGKILL)
            case _:
                self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while self.taken() and time.monotonic() < deadline:
            time.sleep(_LOOK)

    @property
    def _armed(self) -> Path:
        return self.root / "armed"

    @property
    def _taken(self) -> Path:
        return self.root / "taken"

    @property
    def _pids(self) -> Path:
        return self.root / "pids"


def _executor() -> int:
    """Return the executor of this Python worker; Spark's daemon is between them."""
    return _parent(os.getppid())


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
