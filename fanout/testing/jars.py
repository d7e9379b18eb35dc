"""Jars from Maven's repository, by the Ivy that pyspark brings, once per user.

A list of jars is a file with a line `GROUP:NAME:VERSION SHA256` for each, or
`GROUP:NAME:VERSION:CLASSIFIER SHA256`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fanout._child_process import run_command
from fanout.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A slow network has this long, in seconds; half a minute is usual.
_RESOLVE_TIMEOUT = 900

# Its one field is the dependencies.
IVY_MODULE = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="fanout" module="jars"/>
  <dependencies>
{}
  </dependencies>
</ivy-module>
"""
_DEPENDENCY = """\
    <dependency org="{}" name="{}" rev="{}" conf="default" transitive="false">
{}
    </dependency>"""


class _Jar(NamedTuple):
    group: str
    name: str
    version: str
    classifier: str | None
    sha256: str

    @property
    def artifact(self) -> str:
        classified = f' m:classifier="{self.classifier}"' if self.classifier else ""
        return f'      <artifact name="{self.name}" type="jar"{classified}/>'

    @property
    def file_name(self) -> str:
        classified = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.version}{classified}.jar"


def pinned_jars(file: Path) -> list[Path]:
    """Find the jars of a list in the user's cache, and download them the first time."""
    text = file.read_text()
    pinned = [_parse(line) for line in text.splitlines()]
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    home = cache_directory("jars") / f"{file.stem}-{digest}"
    fill_once(home, lambda work: _fill(work, file.stem, pinned))
    return sorted(home.iterdir())


def pyspark_jars() -> Path:
    """Return the directory of the jars that pyspark brings."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("there is no pyspark; pip install 'fanout-streams[spark]'")
    return Path(spec.origin).parent / "jars"


def _parse(line: str) -> _Jar:
    found = re.fullmatch(r"([\w.-]+):([\w.-]+):([\w.-]+)(?::([\w.-]+))? ([0-9a-f]{64})", line)
    if found is None:
        raise SetupError(f"{line!r} is not of the form 'GROUP:NAME:VERSION[:CLASSIFIER] SHA256'")
    return _Jar(found[1], found[2], found[3], found[4], found[5])


def _fill(work: Path, name: str, pinned: list[_Jar]) -> Path:
    modules = groupby(pinned, key=itemgetter(0, 1, 2))
    dependencies = "\n".join(
        _DEPENDENCY.format(*module, "\n".join(jar.artifact for jar in jars))
        for module, jars in modules
    )
    with progress(f"Downloading {len(pinned)} jars of {name} into {work.parent}, once"):
        retrieve(
            IVY_MODULE.format(dependencies),
            work,
            "libs/[artifact]-[revision](-[classifier]).[ext]",
            f"the jars of {name} are not to be had: check the network",
        )
    for jar in pinned:
        file = work / "libs" / jar.file_name
        if not file.is_file():
            raise SetupError(f"{file.name} has not been downloaded")
        if hashlib.sha256(file.read_bytes()).hexdigest() != jar.sha256:
            raise SetupError(f"{file.name} is not the pinned one: its SHA-256 differs")
    return work / "libs"


def cache_directory(name: str) -> Path:
    """Return the directory `fanout/NAME` below `XDG_CACHE_HOME` or `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fanout", name)


def fill_once(home: Path, fill: Callable[[Path], Path]) -> Path:
    """Fill a directory unless it exists; one process does it, and others wait for it.

    `fill` gets an empty directory to work in, and returns the one below it that becomes `home`.
    """
    if home.is_dir():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed, or its process killed
        if home.is_dir():
            return home
        for left in home.parent.glob(f".{home.name}-*"):  # by a process that was killed
            shutil.rmtree(left)
        # Only a whole directory gets the name: a killed process leaves one that is never read.
        with tempfile.TemporaryDirectory(dir=home.parent, prefix=f".{home.name}-") as work:
            fill(Path(work)).rename(home)
    return home


def retrieve(
    module: str, work: Path, pattern: str, otherwise: str, *, settings: str | None = None
) -> None:
    """Resolve the text of an `ivy.xml`; copy its jars below `work`, to paths of an Ivy pattern."""
    java, ivy = java_and_ivy()
    (work / "ivy.xml").write_text(module)
    command = [java, "-cp", ivy, "org.apache.ivy.Main", "-ivy", "ivy.xml"]
    command += ["-confs", "default", "-cache", "ivy", "-retrieve", pattern]
    command += [] if settings is None else ["-settings", settings]
    run(command, work, otherwise)


def java_and_ivy() -> tuple[str, str]:
    """Return the paths of Java and of pyspark's Ivy."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError(
            "jars are downloaded by the Ivy in pyspark; pip install 'fanout-streams[spark]'"
        )
    # It imports pyspark, which is known to be there only now.
    from fanout.spark.hadoop.session_checks import require_java  # noqa: PLC0415

    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar"))
    if not found:
        raise SetupError(f"the pyspark in {Path(spec.origin).parent} has no jars/ivy-*.jar")
    return str(require_java()), str(found[-1])


def run(command: list[str], directory: Path, otherwise: str) -> None:
    """Run a command of Java to its end, for a quarter of an hour at most.

    The error is the sentence `otherwise`, and the last lines of the output.
    """
    try:
        answer = run_command(command, cwd=directory, timeout=_RESOLVE_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"{otherwise} (it took over {_RESOLVE_TIMEOUT} s)") from error
    if answer.returncode:
        lines = [line for line in (answer.stdout + answer.stderr).splitlines() if line.strip()]
        raise SetupError("\n".join([otherwise, *lines[-20:]]))


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show on stderr what is done, as long as it takes."""
    from rich.console import Console  # noqa: PLC0415 - a full cache needs no console

    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(text, highlight=False, soft_wrap=True)
        yield
        return
    with console.status(text):
        yield
