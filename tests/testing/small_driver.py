"""A driver without Spark: it says what it was given, and does what that names."""

from __future__ import annotations

import os
import sys

import msgspec

from fanout.errors import ServiceError
from fanout.testing.spark.driver_process import DriverLink, DriverStarted, run_driver

__all__ = ("Did", "Task")


class Task(msgspec.Struct, frozen=True):
    name: str


class Did(msgspec.Struct, frozen=True, tag=True):
    what: str


def main(arguments: str) -> int:
    task = msgspec.json.decode(arguments, type=Task)

    def run(link: DriverLink) -> None:
        os.write(1, b"WARNING: printed by a JVM\n")
        link.send(DriverStarted(os.getpid()))
        if task.name == "fail":
            raise ServiceError("the stream is gone")
        link.stopping.wait()
        link.send(Did(f"stopped {task.name}"))

    return run_driver(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
