"""A Spark Connect server in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from fanout.testing.spark.session import small_settings
from tests.support.process_list import running_with
from tests.support.spark.home import spark_home

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT: Final = Path(__file__).parents[3]
_STARTED: Final = re.compile(r"Spark Connect server started at: (\S+:\d+)")
_CLASS: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer:
    """Run the server of the pip package while the block lasts; nothing of it is left afterwards.

    Args:
        scratch: Where it keeps temporary files; it exists.
        mark: A text that only the environment of its processes has.
        environment: More of their environment.
    """

    def __init__(self, scratch: Path, mark: str, **environment: str) -> None:
        self._scratch = scratch
        self._mark = mark
        self._environment = environment
        self.url = ""

    def __enter__(self) -> Self:
        home = spark_home()
        settings: dict[str, Any] = small_settings(f"-Djava.io.tmpdir={self._scratch}") | {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.driver.memory": "512m",
            "spark.local.dir": self._scratch,
            "spark.sql.warehouse.dir": self._scratch,
            "spark.sql.shuffle.partitions": "2",
        }
        options = [one for key, value in settings.items() for one in ("--conf", f"{key}={value}")]
        self._process = subprocess.Popen(  # noqa: S603 - the pip package's own script
            [home / "bin" / "spark-submit", "--master", "local[2]", "--class", _CLASS, *options],
            cwd=self._scratch,
            env=os.environ
            | {"SPARK_HOME": str(home), "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
            | {"FANOUT_TEST_MARK": self._mark}
            | self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        log = self._process.stderr
        assert log is not None
        lines: list[str] = []
        for line in log:
            lines.append(line)
            if started := _STARTED.search(line):
                self.url = f"sc://{started[1]}"
                break
        else:
            raise AssertionError("the server did not start:\n" + "".join(lines[-40:]))
        self._draining = threading.Thread(target=_drain, args=(log,), daemon=True)
        self._draining.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the server's JVM; its planners and workers end by themselves."""
        self._process.kill()
        self._process.wait()
        self._draining.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def planners(self) -> list[int]:
        """Return the process ids of the planners of its queries."""
        found = running_with(self._mark)
        return [pid for pid in found if "python_streaming_source_runner" in found[pid]]

    def kill_planners(self) -> None:
        """Kill the planners of its queries, which ends these with an error."""
        for pid in self.planners():
            os.kill(pid, signal.SIGKILL)


def _drain(log: Iterable[str]) -> None:
    for _ in log:
        pass
