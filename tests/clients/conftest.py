from __future__ import annotations

import subprocess

import pytest

from fanout.spark.hadoop.session_checks import require_java


@pytest.fixture(scope="session")
def java() -> str:
    """A Java that compiles what it runs."""
    path = str(require_java())
    modules = subprocess.run(  # noqa: S603 (the Java that runs Spark)
        [path, "--list-modules"], capture_output=True, text=True, check=True
    )
    if "jdk.compiler" not in modules.stdout:
        pytest.skip(f"{path} has no compiler: it is not of a JDK")
    return path
