"""Use a landing, and fork: print what the fork meets, one line for each try.

`python -m tests.landing.forked lock PATH` locks a file; `s3 LOCATION ENDPOINT` uses a bucket.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from fanout.errors import FanOutError
from fanout.landing.claims import ThisProcess
from fanout.landing.storage.opening import open_object_storage
from tests.support.s3 import s3_options

Step = Callable[[], object]


def in_fork(step: Step) -> None:
    """Print what a step returns in a fork of this process, or its error."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        os.waitpid(process, 0)
        return
    signal.alarm(20)  # for one that hangs
    text = "another error"
    try:
        text = str(step())
    except FanOutError as error:
        text = f"{type(error).__name__}: {error}".replace(str(os.getpid()), "FORK")
    finally:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        os._exit(0)


def lock(path: Path) -> None:
    """Lock in this process and in forks of it."""
    process = ThisProcess("test")
    held = process.try_lock(path)
    assert held is not None

    def take() -> tuple[bool, bool]:
        taken = process.try_lock(path)
        return taken is not None, process.has_locked(path)

    in_fork(take)
    held.release()
    in_fork(take)


def use_bucket(location: str, endpoint: str) -> None:
    """Write to a bucket in forks of this process, before and after it has done so."""
    opened = open_object_storage(location, s3_options(endpoint))
    in_fork(lambda: opened.create("fork", b""))
    opened.create("parent", b"")
    in_fork(lambda: opened.create("late", b""))
    in_fork(lambda: open_object_storage(location, s3_options(endpoint)).list("runs"))


if __name__ == "__main__":
    if sys.argv[1] == "lock":
        lock(Path(sys.argv[2]))
    else:
        use_bucket(*sys.argv[2:])
