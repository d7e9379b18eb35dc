"""The sink that writes each batch of a query to a directory of Parquet files."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from fanout.errors import OptionError, SetupError, StreamStateError
from fanout.spark.hadoop.jvm import (
    JAVA_ERRORS,
    first_line,
    hadoop_configuration,
    has_gone,
    jvm,
)
from fanout.spark.tables.columns import column_names
from fanout.spark.tables.table_sink import TableSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from fanout.spark.loop_thread import LoopThread
    from fanout.spark.tables.table_sink import SinkBatch

log = logging.getLogger(__name__)

# Hadoop's committer creates it in a directory whose files are complete.
_MARKER: Final = "_SUCCESS"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSink(TableSink):
    """Write each batch of a query to a directory of its own, exactly once; a handler.

    The files of a batch are in `{path}/query={query id}/sink={sink_name}/batch={batch id}`. Spark
    adds the marker `_SUCCESS` when all of them are there: a batch that has it is skipped when it
    comes again, and one that has not is written anew in place of what is there. `read` returns the
    rows of the batches that have it. A handler of the user's own calls `write`.

    Args:
        path: The directory, on any file system of Spark's Hadoop client.
        partition_by: The columns whose values are directories below that of the batch.
        transform: Makes of a batch what is written, for example `lambda df: df.select(...)`.
        sink_name: The sink's name, where a handler has several; it must not change while a query
            lives.

    Raises:
        OptionError: If an option is malformed.
    """

    path: str
    partition_by: str | Sequence[str] = ()
    sink_name: str = "parquet"

    def prepare(self, spark: SparkSession, loop: LoopThread) -> None:  # noqa: ARG002 - the protocol's
        """Check that Spark knows the file system of the directory.

        Raises:
            SetupError: It does not, or lacks what it needs to reach it.
        """
        try:
            _hadoop_path(spark, self.path, _MARKER).getFileSystem(hadoop_configuration(spark))
        except JAVA_ERRORS as error:
            if has_gone(error):
                raise
            raise SetupError(
                f"Spark cannot write to path={self.path!r}: {first_line(error)}"
            ) from error

    def read(self, spark: SparkSession) -> DataFrame:
        """Read the rows of all batches that are written completely.

        Spark's own `spark.read.parquet(path)` may see a part of a batch that is being written.

        Args:
            spark: A session.

        Returns:
            The rows, with the columns `query`, `sink` and `batch` besides their own.

        Raises:
            StreamStateError: No batch is written yet, so that the columns are unknown.
        """
        pattern = _hadoop_path(spark, self.path, f"query=*/sink={self.sink_name}/batch=*/{_MARKER}")
        markers = pattern.getFileSystem(hadoop_configuration(spark)).globStatus(pattern)
        batches = [str(marker.getPath().getParent()) for marker in markers or ()]
        if not batches:
            raise StreamStateError(f"no batch of the sink is in {self.path} yet")
        return spark.read.option("basePath", self.path).parquet(*batches)

    @property
    def _destination(self) -> str:
        return self.path

    def _check(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise OptionError(f"path={self.path!r} must be the URI of a directory")
        column_names("partition_by", self.partition_by)

    def _write(self, rows: DataFrame, batch: SinkBatch) -> None:
        spark = rows.sparkSession
        below = f"query={batch.query_id}/sink={batch.sink_name}/batch={batch.batch_id}"
        marker = _hadoop_path(spark, self.path, f"{below}/{_MARKER}")
        if marker.getFileSystem(hadoop_configuration(spark)).exists(marker):
            log.info("batch %d is in %s already", batch.batch_id, self.path)
            return
        batch.ownership.check()
        (
            rows.write.mode("overwrite")
            # A session may have set these otherwise.
            .option("partitionOverwriteMode", "static")
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "true")
            .partitionBy(*column_names("partition_by", self.partition_by))
            .parquet(str(marker.getParent()))
        )


def _hadoop_path(spark: SparkSession, path: str, name: str) -> Any:
    return jvm(spark).org.apache.hadoop.fs.Path(path, name)
