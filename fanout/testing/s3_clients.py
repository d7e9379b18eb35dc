"""Clients of the S3 on 127.0.0.1: pyarrow's, and Hadoop's S3A for Spark, with its jars."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from fanout.errors import SetupError
from fanout.testing.jars import pinned_jars, pyspark_jars

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

BUCKET: Final = "lake"

_REGION = "us-east-1"
_KEY = "testing"
# The lists of the jars of S3A, one for each version of Hadoop.
LISTS: Final = Path(__file__).parent


def s3_files(endpoint: str) -> S3FileSystem:
    """Return the files of an endpoint; their paths begin with the bucket."""
    from pyarrow.fs import S3FileSystem  # noqa: PLC0415 - not every build of pyarrow has it

    return S3FileSystem(
        endpoint_override=endpoint,
        region=_REGION,
        access_key=_KEY,
        secret_key=_KEY,
        allow_bucket_creation=True,
    )


def s3a_settings(endpoint: str) -> dict[str, str]:
    """Return the settings of a Hadoop configuration whose S3A uses an endpoint."""
    return {
        "fs.s3a.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.endpoint": endpoint,
        "fs.s3a.endpoint.region": _REGION,
        "fs.s3a.path.style.access": "true",
        "fs.s3a.access.key": _KEY,
        "fs.s3a.secret.key": _KEY,
        "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "fs.s3a.classloader.isolation": "false",
    }


def s3a_jars() -> list[Path]:
    """Find the jars of S3A in the user's cache, and download them the first time."""
    return pinned_jars(s3a_list())


def s3a_list() -> Path:
    """Return the list of the jars of S3A for the Hadoop of this environment's pyspark."""
    found = [jar.stem for jar in pyspark_jars().glob("hadoop-client-api-*.jar")]
    version = found[0].rpartition("-")[2] if found else "unknown"
    file = LISTS / f"s3a-hadoop-{version}.txt"
    if not file.is_file():
        known = " or ".join(path.stem.rpartition("-")[2] for path in LISTS.glob("s3a-*.txt"))
        raise SetupError(
            f"S3A needs a pyspark with Hadoop {known}, such as 4.3; the one that is installed has "
            f"Hadoop {version}"
        )
    return file
