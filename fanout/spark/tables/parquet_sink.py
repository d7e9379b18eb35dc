"""The sink that writes each batch of a query to a directory of Parquet files."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql import types

from fanout.errors import OptionError, SetupError, StreamStateError
from fanout.spark.hadoop.jvm import (
    JAVA_ERRORS,
    first_line,
    hadoop_configuration,
    has_gone,
    jvm,
)
from fanout.spark.sink_batch import WrittenBatch
from fanout.spark.tables.columns import column_names, in_spark
from fanout.spark.tables.table_sink import TableSink

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from fanout.landing.ownership import Ownership
    from fanout.spark.sink_batch import SinkBatch

log = logging.getLogger(__name__)

# It is created in a directory whose files are complete, and tells what batch they are. Hadoop's
# committer would create it without that.
_MARKER: Final = "_SUCCESS"
_CONTENT_BYTES: Final = 32
# The columns of the directories of a batch.
_DIRECTORIES: Final[dict[str, DataType]] = {
    "query": types.StringType(),
    "sink": types.StringType(),
    "batch": types.LongType(),
}
# In the metadata of a column in the files: the types of the columns that are directories. Spark
# guesses them otherwise, and takes "007" for a number.
_TYPES: Final = "fanout.partition-types"
_NONE: Final = '{"fields": []}'


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSink(TableSink):
    """Write each batch of a query to a directory of its own, exactly once; a handler.

    The files of a batch are in `{path}/query={query id}/sink={sink_name}/batch={batch id}`. The
    marker `_SUCCESS` is added when all of them are there: a batch that has it is skipped when it
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
    _looked: dict[str, Ownership] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def _require(self, spark: SparkSession) -> None:
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
            The rows, with the columns `query`, `sink` and `batch` besides their own. Those of
            partition_by have the types that they were written with.

        Raises:
            StreamStateError: No batch is written yet, so that the columns are unknown.
        """
        pattern = _hadoop_path(spark, self.path, f"query=*/sink={self.sink_name}/batch=*/{_MARKER}")
        markers = pattern.getFileSystem(hadoop_configuration(spark)).globStatus(pattern)
        batches = [str(marker.getPath().getParent()) for marker in markers or ()]
        if not batches:
            raise StreamStateError(f"no batch of the sink is in {self.path} yet")
        reader = spark.read.option("basePath", self.path)
        return reader.schema(_typed(reader.parquet(*batches).schema)).parquet(*batches)

    @property
    def _destination(self) -> str:
        return self.path

    def _check(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise OptionError(f"path={self.path!r} must be the URI of a directory")
        _check_names(self._partitions)

    @property
    def _partitions(self) -> tuple[str, ...]:
        return column_names("partition_by", self.partition_by)

    def _write(self, rows: DataFrame, batch: SinkBatch) -> None:
        _check_names(rows.columns)
        spark = rows.sparkSession
        marker = self._marker(spark, batch, batch.batch_id)
        if batch.is_in(self.path, self._newest(spark, batch, marker)):
            log.info("batch %d is in %s already", batch.batch_id, self.path)
            return
        batch.ownership.check()
        (
            _with_types(rows, self._partitions)
            .write.mode("overwrite")
            # A session may have set this otherwise.
            .option("partitionOverwriteMode", "static")
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .partitionBy(*self._partitions)
            .parquet(str(marker.getParent()))
        )
        files = marker.getFileSystem(hadoop_configuration(spark))
        stream = files.create(marker, True)  # noqa: FBT003 - Java: overwrite
        try:
            stream.write(batch.content.encode())
        finally:
            stream.close()

    def _newest(self, spark: SparkSession, batch: SinkBatch, marker: Any) -> WrittenBatch | None:
        """Return the newest batch of a sink; None if it can only be an earlier one than this.

        There may be many directories, so a run looks for later ones once.
        """
        files = marker.getFileSystem(hadoop_configuration(spark))
        if files.exists(marker):
            return WrittenBatch(batch.batch_id, _content(files, marker))
        sink = marker.getParent().getParent()
        if self._looked.get(batch.writer) is batch.ownership or not files.exists(sink):
            return None
        is_later = jvm(spark).org.apache.hadoop.fs.GlobFilter(_later(batch.batch_id))
        for one in files.listStatus(sink, is_later):
            number = int(one.getPath().getName().partition("=")[2])
            if files.exists(self._marker(spark, batch, number)):
                return WrittenBatch(number)
        self._looked[batch.writer] = batch.ownership
        return None

    def _marker(self, spark: SparkSession, batch: SinkBatch, number: int) -> Any:
        below = f"query={batch.query_id}/sink={batch.sink_name}/batch={number}/{_MARKER}"
        return _hadoop_path(spark, self.path, below)


def _later(number: int) -> str:
    """Return a pattern for the directories of later batches, so that Java leaves out the others."""
    digits = str(number)
    greater = [
        f"{digits[:place]}[{int(digit) + 1}-9]{'?' * (len(digits) - place - 1)}"
        for place, digit in enumerate(digits)
        if digit != "9"
    ]
    return f"batch={{{','.join([*greater, '?' * len(digits) + '?*'])}}}"


def _content(files: Any, marker: Any) -> str:
    """Return what a marker tells of its batch; empty where Hadoop's committer has created it."""
    stream = files.open(marker)
    try:
        data = bytes(stream.readNBytes(_CONTENT_BYTES + 1))
    finally:
        stream.close()
    return data.decode() if len(data) == _CONTENT_BYTES else ""


def _hadoop_path(spark: SparkSession, path: str, name: str) -> Any:
    return jvm(spark).org.apache.hadoop.fs.Path(path, name)


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if name.lower() in _DIRECTORIES:
            raise OptionError(
                f"the column {name!r} must have another name: the directories of a batch are the "
                f"columns {', '.join(_DIRECTORIES)} for readers"
            )


def _with_types(rows: DataFrame, partitions: Sequence[str]) -> DataFrame:
    """Add the types of the columns that are directories to the metadata of one that is not."""
    lower = {name.lower() for name in partitions}
    stored = [field for field in rows.schema if field.name.lower() not in lower]
    if not partitions or not stored:
        return rows  # Spark refuses rows of nothing but directories
    directories = types.StructType(
        [types.StructField(one.name, one.dataType) for one in rows.schema if one not in stored]
    )
    first, columns = stored[0], {name: F.col(in_spark(name)) for name in rows.columns}
    columns[first.name] = columns[first.name].alias(
        first.name, metadata={**first.metadata, _TYPES: directories.json()}
    )
    return rows.select(*columns.values())


def _typed(found: StructType) -> StructType:
    """Return a schema as it was written, where Spark has guessed the types of directories."""
    kinds = dict(_DIRECTORIES)
    for column in found:
        written = types.StructType.fromJson(json.loads(column.metadata.pop(_TYPES, _NONE)))
        kinds |= {one.name: one.dataType for one in written}
    return types.StructType(
        [
            types.StructField(one.name, kinds.get(one.name, one.dataType), True, one.metadata)  # noqa: FBT003
            for one in found
        ]
    )
