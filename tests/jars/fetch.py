"""Jars that tests and examples add to Spark, fetched from Maven Central once per user.

Each set is a list of pinned jars beside this file, a line `GROUP:NAME:VERSION SHA256` for each:

- `s3a-hadoop-V`: Hadoop's s3a, for the pyspark whose Hadoop has version V. `s3a_set()` names it.
- `delta-spark-V`: Delta, for pyspark V. There is none for 4.3; `delta_set()` says so.
- `postgresql`: PostgreSQL's JDBC driver.

In a test, take the fixture `jars`; elsewhere:

    spark = SparkSession.builder.config("spark.jars", spark_jars("postgresql")).getOrCreate()

To add a set, resolve it in an environment with the pyspark that it is for:

    python -m tests.jars.pin org.postgresql:postgresql:42.7.14 > tests/jars/postgresql.txt

What `make test` or `make prove` needs, the target of that name in the Makefile fetches before.
"""

from __future__ import annotations

import hashlib
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fanout.errors import SetupError
from fanout.testing.ivy import cache_directory, fill_once, progress, retrieve

_LISTS = Path(__file__).parent

_MODULE = """\
<ivy-module version="2.0">
  <info organisation="fanout" module="jars"/>
  <dependencies>
{}
  </dependencies>
</ivy-module>
"""
_DEPENDENCY = (
    '    <dependency org="{0.group}" name="{0.name}" rev="{0.version}" conf="default"'
    ' transitive="false"/>'
)


class _Jar(NamedTuple):
    group: str
    name: str
    version: str
    sha256: str


def jar_set(name: str) -> list[Path]:
    """Find the jars of a set in the user's cache, and download them the first time.

    The cache is `fanout/jars` below `XDG_CACHE_HOME` or `~/.cache`.

    Args:
        name: The set.

    Raises:
        SetupError: There is no such set, a jar cannot be downloaded, or it is not the pinned one.
    """
    file = _LISTS / f"{name}.txt"
    if not file.is_file():
        known = ", ".join(sorted(path.stem for path in _LISTS.glob("*.txt")))
        raise SetupError(f"there is no set of jars {name!r}; there are {known}")
    text = file.read_text()
    pinned = [_parse(line) for line in text.splitlines()]
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    home = cache_directory("jars") / f"{name}-{digest}"
    fill_once(home, lambda work: _fill(work, home, pinned))
    return sorted(home.iterdir())


def spark_jars(*names: str) -> str:
    """Return sets of jars as Spark's setting `spark.jars`.

    Args:
        names: The sets.

    Raises:
        SetupError: As `jar_set`.
    """
    return ",".join(str(jar) for name in names for jar in jar_set(name))


def s3a_set() -> str:
    """Return the name of the set of s3a for the Hadoop of this environment's pyspark.

    Raises:
        SetupError: There is no such set.
    """
    (client,) = _pyspark_jars().glob("hadoop-client-api-*.jar")
    return _known("s3a-hadoop-" + client.stem.rpartition("-")[2])


def delta_set() -> str:
    """Return the name of the set of Delta for this environment's pyspark.

    Raises:
        SetupError: There is no such set.
    """
    (core,) = _pyspark_jars().glob("spark-core_*.jar")
    major, minor, _ = core.stem.rpartition("-")[2].split(".")
    return _known(f"delta-spark-{major}.{minor}")


def _known(name: str) -> str:
    if not (_LISTS / f"{name}.txt").is_file():
        raise SetupError(f"there is no set of jars {name!r} for the pyspark that is installed")
    return name


def _pyspark_jars() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("there is no pyspark; pip install 'fanout-streams[spark]'")
    return Path(spec.origin).parent / "jars"


def _parse(line: str) -> _Jar:
    found = re.fullmatch(r"([\w.-]+):([\w.-]+):([\w.-]+) ([0-9a-f]{64})", line)
    if found is None:
        raise SetupError(f"{line!r} is not of the form 'GROUP:NAME:VERSION SHA256'")
    return _Jar(found[1], found[2], found[3], found[4])


def _fill(work: Path, home: Path, pinned: list[_Jar]) -> Path:
    dependencies = "\n".join(_DEPENDENCY.format(jar) for jar in pinned)
    with progress(f"Downloading {len(pinned)} jars into {home}, once"):
        retrieve(
            _MODULE.format(dependencies),
            work,
            "libs/[artifact]-[revision].[ext]",
            f"the jars of {home.name} are not to be had: check the network",
        )
    for jar in pinned:
        file = work / "libs" / f"{jar.name}-{jar.version}.jar"
        if not file.is_file():
            raise SetupError(f"{file.name} has not been downloaded")
        if hashlib.sha256(file.read_bytes()).hexdigest() != jar.sha256:
            raise SetupError(f"{file.name} is not the pinned one: its SHA-256 differs")
    return work / "libs"


def main(names: list[str]) -> None:
    """Fetch sets before they are needed; `s3a` is that of this environment's pyspark."""
    try:
        for name in names:
            jar_set(s3a_set() if name == "s3a" else name)
    except SetupError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
