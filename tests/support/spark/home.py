"""A home of Spark whose Python processes load pyspark as it is installed."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

__all__ = ("link_spark_home", "spark_home")


def spark_home() -> Path:
    """Return the home of Spark: that of the tests, and outside of them that of pyspark."""
    return Path(os.environ.get("SPARK_HOME") or _installed())


def link_spark_home(home: Path) -> None:
    """Fill a directory that can be SPARK_HOME; it is empty where there is no pyspark.

    Spark's own home has pyspark in an archive, which is first on the path of its Python processes.
    Each of them compiles what it imports from there: that takes a planner or worker a second more
    of processor time, and Spark waits for 10 seconds for one to connect.
    """
    if find_spec("pyspark") is None:
        return
    spark = _installed()
    for path in spark.iterdir():
        if path.name != "python":
            (home / path.name).symlink_to(path)
    libraries = home / "python" / "lib"
    libraries.mkdir(parents=True)
    for path in (spark / "python" / "lib").iterdir():
        if path.name != "pyspark.zip":
            (libraries / path.name).symlink_to(path)


def _installed() -> Path:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent
