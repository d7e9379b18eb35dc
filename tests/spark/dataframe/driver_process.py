"""Drivers of queries in processes of their own, which a test kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.process_list import running_with

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT: Final = Path(__file__).parents[3]
_MODULES: Final = "tests.spark.dataframe."
# What the command lines of its processes have in them; Spark's JVM is the driver too.
VICTIMS: Final = {
    "driver": (_MODULES, "org.apache.spark"),
    "planner": ("python_streaming_source_runner",),
    "worker": ("pyspark.daemon", "pyspark.worker"),
}


@contextmanager
def running(
    module: str, mark: str, *arguments: str, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a driver of this directory; nothing of it is left after the block.

    Args:
        module: Its module; it prints "running" when its query has started.
        mark: A text that only the environment of its processes has.
        arguments: Its arguments.
        environment: More of its environment.
    """
    driver = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", _MODULES + module, *arguments],
        cwd=_ROOT,
        env=os.environ | {"FANOUT_TEST_MARK": mark, "PYSPARK_PYTHON": sys.executable} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with driver:
        try:
            yield driver
        finally:
            kill(mark, *VICTIMS)


def wait_until_running(driver: subprocess.Popen[str]) -> None:
    """Wait until the query of a driver has started."""
    assert driver.stdout is not None
    assert driver.stdout.readline() == "running\n", driver.communicate()[1]


def wait_for_end(driver: subprocess.Popen[str]) -> None:
    """Wait until a driver has ended without an error."""
    _, errors = driver.communicate(timeout=200)
    assert driver.returncode == 0, errors


def kill(mark: str, *victims: str) -> int:
    """Kill all processes of these kinds; return how many there were."""
    words = [word for victim in victims for word in VICTIMS[victim]]
    found = [pid for pid, line in running_with(mark).items() if any(one in line for one in words)]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(found)
