"""The classes of a started Spark in one file, with which a JVM starts with half of the work.

Java calls it class data sharing (https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html).
The file belongs to one Java and to the jars of one environment, and lies in that environment. Java
takes no notice of a file that does not fit, and then starts as slowly as without.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fanout.core.error_text import text_of
from fanout.errors import SetupError

# A JVM that lives for half a minute is better off without its second compiler and its parallel
# collector.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_WRITE_TIMEOUT = 120.0


def java_options() -> str:
    """Return the options with which a JVM starts soon that does not live for long."""
    archive = _archive()
    if not archive.exists():
        return _SHORT_LIVED
    # What Java says of a file that does not fit would go to the standard output.
    return f'{_SHORT_LIVED} "-XX:SharedArchiveFile={archive}" -Xlog:disable'


def archive_classes() -> None:
    """Start Spark, let it work a little, and keep its classes in this environment.

    This process must not have started Spark. Nothing is done where there is a file already.
    """
    archive = _archive()
    if archive.exists():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        written = Path(directory, archive.name)
        java = f'{_SHORT_LIVED} "-XX:ArchiveClassesAtExit={written}" -Xlog:disable'
        _work_a_little(directory, java)
        if not written.exists():
            raise SetupError(f"Java has not written the classes of Spark to {written}")
        written.replace(archive)


def _archive() -> Path:
    return Path(sys.prefix, "share", "fanout", f"spark-{pyspark.__version__}.jsa")


def _work_a_little(directory: str, java: str) -> None:
    """Load what most drivers load, and wait for the end of the JVM, which writes then."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # by default workers use python3 of the PATH
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", java)
        .config("spark.sql.warehouse.dir", directory)
        .getOrCreate()
    )
    numbers = f"{directory}/numbers"
    session.range(100).write.parquet(numbers)
    clock = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = (
        clock.writeStream.option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .foreachBatch(lambda _, number: _handle(session, numbers, f"{directory}/sums-{number}"))
        .start()
    )
    query.awaitTermination()
    gateway = SparkContext._gateway  # noqa: SLF001 - nothing else tells when its JVM has ended
    assert gateway is not None, "Spark runs"
    session.stop()
    gateway.shutdown()
    jvm = gateway.proc
    jvm.stdin.close()
    try:
        jvm.wait(_WRITE_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        jvm.kill()
        raise SetupError(f"Spark's JVM did not end within {_WRITE_TIMEOUT:g} s") from error


def _handle(session: SparkSession, numbers: str, sums: str) -> None:
    rows = session.read.schema("id long").parquet(numbers)
    by_tens = rows.selectExpr("id div 10 as tens", "id").repartition(2, "tens")
    copied = by_tens.sortWithinPartitions("id").mapInArrow(lambda batches: batches, by_tens.schema)
    copied.groupBy("tens").sum("id").write.parquet(sums)


def main() -> None:
    """Write the file before it is needed; exit code 1 and a sentence if that cannot be done."""
    try:
        archive_classes()
    except (SetupError, OSError, PySparkException) as error:
        sys.exit(f"the classes of Spark cannot be kept: {text_of(error)}")


if __name__ == "__main__":
    main()
