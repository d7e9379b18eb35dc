"""Properties of the snapshots that Iceberg commits, through its own `CommitMetadata`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from py4j.clientserver import ClientServer
from pyspark.java_gateway import ensure_callback_server_started

from fanout.errors import SetupError
from fanout.spark.hadoop.jvm import jvm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession


def require_own_threads(spark: SparkSession) -> None:
    """Check that Spark calls Java in a thread of its own for each thread of Python; or SetupError.

    Iceberg keeps the properties of a summary with the thread that commits.
    """
    if not isinstance(spark.sparkContext._gateway, ClientServer):  # noqa: SLF001 - as below
        raise SetupError(
            "IcebergSink cannot work with PYSPARK_PIN_THREAD=false: a batch would have no id in "
            "the table; set PYSPARK_PIN_THREAD=true, the default, before the session is created"
        )


def commit_with_summary(
    spark: SparkSession, summary: Mapping[str, str], write: Callable[[], object]
) -> None:
    """Call a function in this thread, and add properties to the summaries of what it commits.

    A write of a DataFrame has an option for them, and MERGE has not. See
    https://iceberg.apache.org/docs/latest/spark-configuration/#write-options
    """
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - pyspark's only door to it
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    java = jvm(spark)
    call = _Call(write)
    any_error = java.java.lang.Class.forName("java.lang.RuntimeException")
    java.org.apache.iceberg.spark.CommitMetadata.withCommitProperties(
        dict(summary), call, any_error
    )
    if call.error is not None:
        raise call.error


@final
class _Call:
    """A function as a Callable of Java, which py4j calls in the thread that waits for it."""

    class Java:
        """The interface that py4j implements with it."""

        implements = ("java.util.concurrent.Callable",)

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self.error: BaseException | None = None

    def call(self) -> Any:
        """Call the function; py4j would turn its exception into text."""
        try:
            self._function()
        except BaseException as error:  # noqa: BLE001 - it is raised where Java has returned
            self.error = error
