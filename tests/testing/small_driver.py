"""A driver without Spark: it says what it was given, and does what that names."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from fanout.errors import ServiceError
from fanout.testing.spark.driver_process import DriverLink, DriverStarted, run_driver

__all__ = ("Did", "Task")


class Task(msgspec.Struct, frozen=True):
    name: str


class Did(msgspec.Struct, frozen=True, tag=True):
    what: str


def _start_jvm() -> int:
    """Start what stays when the driver has gone; it holds the lock `jvm.lock` while it runs."""
    with Path("jvm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return subprocess.Popen(["sleep", "100"], pass_fds=[lock.fileno()]).pid  # noqa: S607


def main(arguments: str) -> int:
    task = msgspec.json.decode(arguments, type=Task)

    def run(link: DriverLink) -> None:
        os.write(1, b"WARNING: printed by a JVM\n")
        link.send(DriverStarted(_start_jvm() if task.name == "start a JVM" else os.getpid()))
        if task.name == "fail":
            raise ServiceError("the stream is gone")
        link.stopping.wait()
        link.send(Did(f"stopped {task.name}"))

    return run_driver(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
