"""Run the examples of docs/examples as their users do, kill them, and run them again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, final

import msgspec

from fanout.testing.spark.session import small_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.support.doomed import Kill

__all__ = ("AFTER_HANDLER", "EXAMPLES", "IN_HANDLER", "Example")

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
# Longer than anything takes on a busy machine; it passes only if a test fails.
PATIENCE = 180.0

IN_HANDLER = "fanout.spark.query.batch_runner:BatchRunner._handle"
AFTER_HANDLER = "fanout.spark.query.batch_runner:BatchRunner._finish"


@final
class Example:
    """An example as a user runs it: in a process of its own, with settings of its environment.

    Args:
        name: The name of its file.
        directory: Where it runs, with its log and its temporary files.
        environment: What is added to the environment of this process.
        settings: More of Spark's configuration.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        environment: Mapping[str, str],
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._path = EXAMPLES / name
        self._directory = directory
        self._log = directory / "log"
        self._environment = {
            **os.environ,
            # As in an activated environment.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SPARK_CONF_DIR": str(directory),
            "SPARK_LOCAL_DIRS": str(directory / "scratch"),
            "CHECKPOINT": str(directory / "checkpoint"),
            **environment,
        }
        defaults = {
            **small_settings(f"-Djava.io.tmpdir={directory}"),
            "spark.master": "local[2]",
            "spark.driver.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            **(settings or {}),
        }
        lines = (f"{name} {setting}\n" for name, setting in defaults.items())
        (directory / "spark-defaults.conf").write_text("".join(lines))

    def run_and_kill(self, kill: Kill) -> None:
        """Run it until the moment of a kill, which has to come."""
        argument = msgspec.json.encode(kill).decode()
        process = self._start("-m", "tests.support.doomed", argument, str(self._path))
        try:
            code = process.wait(PATIENCE)
        finally:
            self._end(process)
        assert code == -signal.SIGKILL, f"{kill} did not come: {self.log()}"

    def run_until(self, done: Callable[[], bool]) -> None:
        """Run it as it stands until something is true, and end it as a supervisor does."""
        process = self._start(str(self._path))
        try:
            self._wait(process, done)
            process.terminate()
            assert process.wait(PATIENCE) == 0, f"not a clean end: {self.log()}"
        finally:
            self._end(process)

    def _wait(self, process: subprocess.Popen[bytes], due: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not due():
            assert process.poll() is None, f"the example ended: {self.log()}"
            assert time.monotonic() < deadline, f"in vain: {self.log()}"
            time.sleep(0.1)  # an example does not report what it has stored

    def log(self) -> str:
        """Return the end of what its processes have printed."""
        return self._log.read_text(errors="replace")[-6000:]

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - our own interpreter and files
                [sys.executable, *arguments],
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # it is killed with Spark's JVM, as one group
            )

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
