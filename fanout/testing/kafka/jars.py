"""Kafka's own jars, resolved once per version and user by the Ivy that pyspark brings."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fanout._child_process import run_command
from fanout.errors import SetupError
from fanout.testing.kafka.archive import archive_classes
from fanout.testing.kafka.settings import BOOTSTRAP

if TYPE_CHECKING:
    from collections.abc import Iterator

KAFKA_VERSION = "4.3.1"

# A slow network has this long, in seconds; half a minute is usual.
_RESOLVE_TIMEOUT = 900

_IVY = """\
<ivy-module version="2.0">
  <info organisation="fanout" module="broker"/>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{version}" conf="default"/>
    <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="2.25.4" conf="default"/>
  </dependencies>
</ivy-module>
"""

_FORMAT = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:1
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:1
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=data
"""


def kafka_jars(version: str = KAFKA_VERSION) -> Path:
    """Find the directory of a Kafka version in the user's cache, and fill it the first time.

    The cache is `fanout/kafka` below `XDG_CACHE_HOME` or `~/.cache`. It can be copied to a machine
    without a network.

    Args:
        version: a released version of Apache Kafka, 4.1 or later.

    Returns:
        A directory with the jars in `libs`, and the `bootstrap.checkpoint` of a formatted disk.

    Raises:
        SetupError: there is no Java or no pyspark, or the version cannot be downloaded.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fanout", "kafka")
    home = root / version
    if home.is_dir():
        return home
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed, or its process killed
        if home.is_dir():
            return home
        _fill(home, version)
    return home


def _fill(home: Path, version: str) -> None:
    for left in home.parent.glob(f".{version}-*"):  # by a resolution that was killed
        shutil.rmtree(left)
    # Only a whole directory gets the name: a killed resolution leaves one that is never read.
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=f".{version}-") as name:
        work = Path(name)
        java, ivy = _java_and_ivy()
        (work / "ivy.xml").write_text(_IVY.format(version=version))
        (work / "server.properties").write_text(_FORMAT)
        with _progress(f"Downloading Kafka {version} into {home}, once"):
            resolve = [java, "-cp", ivy, "org.apache.ivy.Main", "-ivy", "ivy.xml"]
            resolve += ["-confs", "default", "-cache", "ivy"]
            resolve += ["-retrieve", "kafka/libs/[artifact]-[revision].[ext]"]
            _run(resolve, work, f"Kafka {version} is not to be had: check version and network")
            format_ = [java, "-cp", "kafka/libs/*", "kafka.tools.StorageTool", "format"]
            format_ += ["-t", "fanout-testing-0000000", "-c", "server.properties"]
            format_ += ["--feature", "share.version=1"]
            _run(format_, work, f"Kafka {version} does not format a data directory")
            shutil.copy(work / "data" / BOOTSTRAP, work / "kafka")
            archive_classes(java, work / "kafka")
        (work / "kafka").rename(home)


def _java_and_ivy() -> tuple[str, str]:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError(
            "Kafka's jars are downloaded by the Ivy in pyspark; pip install 'fanout-streams[spark]'"
        )
    # It imports pyspark, which is known to be there only now.
    from fanout.spark.session_checks import require_java  # noqa: PLC0415

    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar"))
    if not found:
        raise SetupError(f"the pyspark in {Path(spec.origin).parent} has no jars/ivy-*.jar")
    return str(require_java()), str(found[-1])


def _run(command: list[str], directory: Path, otherwise: str) -> None:
    try:
        answer = run_command(command, cwd=directory, timeout=_RESOLVE_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"{otherwise} (it took over {_RESOLVE_TIMEOUT} s)") from error
    if answer.returncode:
        lines = [line for line in (answer.stdout + answer.stderr).splitlines() if line.strip()]
        raise SetupError("\n".join([otherwise, *lines[-20:]]))


@contextmanager
def _progress(text: str) -> Iterator[None]:
    from rich.console import Console  # noqa: PLC0415 - a full cache needs no console

    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(text, highlight=False, soft_wrap=True)
        yield
        return
    with console.status(text):
        yield


def main() -> None:
    """Fill the cache before it is needed; exit code 1 and a sentence if that cannot be done."""
    try:
        kafka_jars()
    except SetupError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
