"""Check the Java of this machine and a Spark session before they are used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from fanout._child_process import run_command
from fanout.errors import SetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA = 17
MIN_PYSPARK = (3, 5)

_INSTALL_JAVA = f"install Java {MIN_JAVA} or newer and set JAVA_HOME"


def require_java() -> Path:
    """Return the java that Spark would start: that of JAVA_HOME, or else of the PATH.

    Raises:
        SetupError: There is no Java, it does not start, or it is older than Java 17.
    """
    java = _find_java()
    try:
        answer = run_command([java, "-version"], timeout=30)
        answer.check_returncode()
    except (OSError, subprocess.SubprocessError) as error:
        raise SetupError(f"{java} does not start; {_INSTALL_JAVA}") from error
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if version is None:
        raise SetupError(f"{java} does not report its version; {_INSTALL_JAVA}")
    if int(version[1]) < MIN_JAVA:
        raise SetupError(f"{java} is Java {version[1]}; {_INSTALL_JAVA}")
    return java


def _find_java() -> Path:
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        if not java.is_file():
            raise SetupError(f"JAVA_HOME is {home}, which has no bin/java; {_INSTALL_JAVA}")
        return java
    found = shutil.which("java")
    if found is None:
        raise SetupError(f"no Java found; {_INSTALL_JAVA}")
    return Path(found)


def require_classic(spark: SparkSession) -> None:
    """Check that `spark` is a running session whose driver JVM lives on this machine.

    Checkpoints are reached through the driver's JVM, and Spark Connect has none to offer. Connect
    is recognised by the class's module, so that its dependencies need not be installed.

    Raises:
        SetupError: It is a Spark Connect session, it is stopped, or pyspark or Java is too old.
    """
    if any(kind.__module__.startswith("pyspark.sql.connect") for kind in type(spark).__mro__):
        raise SetupError(
            "this needs a classic Spark session and this one is Spark Connect; run the job where "
            "the driver runs and create the session with master(), not remote(), or read with "
            'spark.readStream.format("fanout"), which works through Spark Connect'
        )
    _require_pyspark()
    context = spark.sparkContext
    java_context = getattr(context, "_jsc", None)
    if java_context is None or java_context.sc().isStopped():
        raise SetupError("this Spark session is stopped; create a new one with getOrCreate()")
    _require_jvm(context)


def _require_pyspark() -> None:
    try:
        import pyspark  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise SetupError("pyspark is missing; pip install 'fanout-streams[spark]'") from error
    version = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])
    if version < MIN_PYSPARK:
        needed = ".".join(map(str, MIN_PYSPARK))
        raise SetupError(f"pyspark is {pyspark.__version__}; fanout needs {needed} or newer")


def _require_jvm(context: object) -> None:
    """Check the JVM that runs, which need not be the one that JAVA_HOME names by now."""
    system = context._jvm.java.lang.System  # type: ignore[attr-defined]  # noqa: SLF001 - pyspark's only door to the JVM
    version = system.getProperty("java.specification.version")
    if int(version.removeprefix("1.")) < MIN_JAVA:
        raise SetupError(f"Spark runs on Java {version}; {_INSTALL_JAVA}")
