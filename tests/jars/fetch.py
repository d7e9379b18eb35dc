"""Jars that tests and examples add to Spark or run, fetched from Maven Central once per user.

Each set is a list of pinned jars beside this file or, if `fanout demo` needs it, in fanout/testing:

- `s3a-hadoop-V`: Hadoop's s3a, for the pyspark whose Hadoop has version V. `s3a_set()` names it.
- `delta-spark-V`: Delta, for pyspark V. There is none for 4.3; `delta_set()` says so.
- `iceberg-spark-V`: Iceberg, for pyspark V. There is none for 4.3; `iceberg_set()` says so.
- `postgresql`: PostgreSQL's JDBC driver.
- `h2`: H2, a database with its JDBC driver.
- `kinesis-sdk-java`: the AWS SDK for Java v2 with Kinesis, for a program of its own, not for Spark.
- `kcl`: the Kinesis Client Library 3, likewise, without the schema registry of Glue.
- `flink`: Flink 1.19 and its connector to Kinesis, likewise.
- `s3mock`: Adobe's S3Mock, a server of S3; one jar with all that it needs, not for Spark.
- `iceberg-rest`: Iceberg's REST catalog, with the Jetty that serves it, not for Spark.

In a test, take the fixture `jars`; elsewhere:

    spark = SparkSession.builder.config("spark.jars", spark_jars("postgresql")).getOrCreate()

To add a set, resolve it in an environment with the pyspark that it is for:

    python -m tests.jars.pin org.postgresql:postgresql:42.7.14 > tests/jars/postgresql.txt

What `make test` or `make prove` needs, the target of that name in the Makefile fetches before.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fanout.errors import SetupError
from fanout.testing.jars import pinned_jars, pyspark_jars
from fanout.testing.s3_clients import LISTS, s3a_list

_LISTS = Path(__file__).parent
# The first patch of Spark 3.5 with SupportsNonDeterministicExpression (SPARK-48871).
_LEAST_3_5 = 2


def jar_set(name: str) -> list[Path]:
    """Find the jars of a set in the user's cache, and download them the first time.

    The cache is `fanout/jars` below `XDG_CACHE_HOME` or `~/.cache`.

    Args:
        name: The set.

    Raises:
        SetupError: There is no such set, a jar cannot be downloaded, or it is not the pinned one.
    """
    lists = _lists()
    if name not in lists:
        raise SetupError(f"there is no set of jars {name!r}; there are {', '.join(sorted(lists))}")
    return pinned_jars(lists[name])


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
    return s3a_list().stem


def delta_set() -> str:
    """Return the name of the set of Delta for this environment's pyspark.

    Raises:
        SetupError: There is no such set.
    """
    return _for_pyspark("delta-spark")


def iceberg_set() -> str:
    """Return the name of the set of Iceberg for this environment's pyspark.

    Raises:
        SetupError: There is no such set.
    """
    return _for_pyspark("iceberg-spark")


def _for_pyspark(name: str) -> str:
    (core,) = pyspark_jars().glob("spark-core_*.jar")
    major, minor, patch = core.stem.rpartition("-")[2].split(".")
    if (major, minor) == ("3", "5") and int(patch) < _LEAST_3_5:
        raise SetupError(f"the jars of {name}-3.5 need a class that pyspark 3.5.{patch} lacks")
    return _known(f"{name}-{major}.{minor}")


def _known(name: str) -> str:
    if name not in _lists():
        raise SetupError(f"there is no set of jars {name!r} for the pyspark that is installed")
    return name


def _lists() -> dict[str, Path]:
    return {file.stem: file for lists in (_LISTS, LISTS) for file in lists.glob("*.txt")}


def main(names: list[str]) -> None:
    """Fetch sets before they are needed; `s3a`, `delta` and `iceberg` are those of this pyspark."""
    chosen = {"s3a": s3a_set, "delta": delta_set, "iceberg": iceberg_set}
    try:
        for name in names:
            jar_set(chosen[name]() if name in chosen else name)
    except SetupError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
