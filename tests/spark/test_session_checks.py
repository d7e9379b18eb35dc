from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from fanout.errors import SetupError
from fanout.spark.hadoop.jvm import jvm
from fanout.spark.hadoop.session_checks import require_classic, require_java

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def install_java(tmp_path: Path) -> Callable[[str], Path]:
    """Install a java that says its version and nothing else, and return its home."""

    def install(version: str) -> Path:
        java = tmp_path / f"jdk-{version}" / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
        java.chmod(0o755)
        return java.parent.parent

    return install


def test_java_home_comes_before_the_path(
    install_java: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install_java("21.0.2")))
    monkeypatch.setenv("PATH", str(install_java("17.0.1") / "bin"), prepend=os.pathsep)
    assert "jdk-21" in str(require_java())


def test_java_is_found_on_the_path(
    install_java: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(install_java("17") / "bin"), prepend=os.pathsep)
    assert "jdk-17" in str(require_java())


@pytest.mark.parametrize(("version", "name"), [("1.8.0_292", "Java 8"), ("11.0.2", "Java 11")])
def test_an_old_java_is_refused(
    install_java: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, version: str, name: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install_java(version)))
    with pytest.raises(SetupError, match=f"is {name}; install Java 17 or newer"):
        require_java()


def test_a_missing_java_is_one_helpful_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"no Java found; install Java 17 .* set JAVA_HOME"):
        require_java()


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="which has no bin/java"):
        require_java()


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 1\n", "#!/nowhere\n", "#!/bin/sh\necho hi\n"])
def test_a_java_that_does_not_answer_is_refused(
    install_java: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    home = install_java("17")
    (home / "bin" / "java").write_text(script)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(SetupError, match="does not"):
        require_java()


def test_a_connect_session_is_refused() -> None:
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    vendor = type("DatabricksSession", (connect,), {"__module__": "vendor.connect"})
    for session in (connect(), vendor()):
        with pytest.raises(SetupError, match="this one is Spark Connect"):
            require_classic(session)


def test_a_stopped_session_is_refused() -> None:
    # What SparkSession.stop leaves behind, without the JVM to start first.
    session = SparkSession.__new__(SparkSession)
    session._sc = SparkContext.__new__(SparkContext)
    session._sc._jsc = None
    with pytest.raises(SetupError, match="is stopped"):
        require_classic(session)


def test_an_old_pyspark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.4.4")
    with pytest.raises(SetupError, match=r"pyspark is 3\.4\.4; fanout needs 3\.5 or newer"):
        require_classic(SparkSession.__new__(SparkSession))


@pytest.mark.spark
def test_a_running_classic_session_is_accepted(spark: SparkSession) -> None:
    require_classic(spark)


@pytest.mark.spark
def test_a_jvm_that_is_too_old_is_refused(spark: SparkSession) -> None:
    system: Any = jvm(spark).java.lang.System
    version = system.getProperty("java.specification.version")
    system.setProperty("java.specification.version", "1.8")
    try:
        with pytest.raises(SetupError, match=r"Spark runs on Java 1\.8"):
            require_classic(spark)
    finally:
        system.setProperty("java.specification.version", version)
