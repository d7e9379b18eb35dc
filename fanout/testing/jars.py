"""Pinned jars for Spark, from Maven's repository, once per user.

A list of jars is a file with a line `GROUP:NAME:VERSION SHA256` for each, or
`GROUP:NAME:VERSION:CLASSIFIER SHA256`.
"""

from __future__ import annotations

import hashlib
import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fanout.errors import SetupError
from fanout.testing.ivy import cache_directory, fill_once, progress, retrieve

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
    <dependency org="{0.group}" name="{0.name}" rev="{0.version}" conf="default" transitive="false">
      <artifact name="{0.name}" type="jar"{1}/>
    </dependency>"""


class _Jar(NamedTuple):
    group: str
    name: str
    version: str
    classifier: str | None
    sha256: str

    @property
    def dependency(self) -> str:
        classified = f' m:classifier="{self.classifier}"' if self.classifier else ""
        return _DEPENDENCY.format(self, classified)

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
    dependencies = "\n".join(jar.dependency for jar in pinned)
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
