"""Work for landers that shows where it runs, and does what files tell it."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from collections.abc import Callable


@final
@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a lander, as it said itself.

    Args:
        lander: Its number.
        number: The attempt's number.
        pid: Its Python process.
        executor: The process of its executor.
    """

    lander: int
    number: int
    pid: int
    executor: int

    @property
    def lives(self) -> bool:
        return _is_process(self.pid)

    def kill(self) -> None:
        """Kill its process, without a chance to clean up."""
        os.kill(self.pid, signal.SIGKILL)


@final
class LanderWork:
    """Landers that share a directory, which is how they are told and observed.

    Args:
        directory: Empty at first.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def work(self) -> Callable[[int, int], None]:
        """Return what landers run; Spark pickles it as code, so workers need not have the tests."""
        directory = str(self.directory)

        def work(lander: int, attempt: int) -> None:
            import json  # noqa: PLC0415
            import os  # noqa: PLC0415
            import time  # noqa: PLC0415
            from pathlib import Path  # noqa: PLC0415

            here = Path(directory)
            fails, stops = here / f"fail-{lander}", here / f"stop-{lander}"
            daemon = os.getppid()
            executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
            said = {"lander": lander, "number": attempt, "pid": os.getpid(), "executor": executor}
            new = here / f".{os.getpid()}"
            new.write_text(json.dumps(said))
            new.rename(here / f"attempt-{lander}-{attempt}")
            while not stops.exists():
                if fails.exists():
                    fails.unlink()
                    raise ValueError("no such shard")
                time.sleep(0.02)
            stops.unlink()

        return work

    def attempts(self, lander: int) -> list[Attempt]:
        """Return the attempts of a lander, the oldest first."""
        files = self.directory.glob(f"attempt-{lander}-*")
        found = [Attempt(**json.loads(file.read_text())) for file in files]
        return sorted(found, key=lambda attempt: attempt.number)

    def running(self, lander: int) -> Attempt:
        """Wait until the newest attempt of a lander runs, and return it."""
        eventually(
            lambda: [one for one in self.attempts(lander)[-1:] if one.lives],
            f"lander {lander}",
        )
        return self.attempts(lander)[-1]

    def after(self, attempt: Attempt) -> Attempt:
        """Wait for the attempt that follows another, and return it."""
        eventually(
            lambda: self.attempts(attempt.lander)[-1].number > attempt.number,
            f"the next attempt of lander {attempt.lander}",
        )
        return self.attempts(attempt.lander)[-1]

    def fail(self, lander: int) -> None:
        (self.directory / f"fail-{lander}").touch()

    def stop(self, lander: int) -> None:
        (self.directory / f"stop-{lander}").touch()


@final
class Ends:
    """What `on_end` was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, BaseException | None]] = []
        self._changed = threading.Condition()

    def __call__(self, lander: int, error: BaseException | None) -> None:
        with self._changed:
            self.calls.append((lander, error))
            self._changed.notify_all()

    def wait_for(self, count: int = 1) -> list[tuple[int, BaseException | None]]:
        eventually(lambda: len(self.calls) >= count, f"{count} ends of landers")
        return self.calls


def _is_process(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
