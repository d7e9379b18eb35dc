"""The sink that writes each batch of a query to a directory of Parquet files."""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final
from uuid import uuid4

from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql import types

from fanout.core.option_checks import location_text
from fanout.errors import OptionError, SetupError, StreamStateError
from fanout.spark.hadoop.jvm import (
    JAVA_ERRORS,
    first_and_last_cause,
    first_line,
    hadoop_configuration,
    has_gone,
    is_java,
    jvm,
)
from fanout.spark.sinks.sink_batch import WrittenBatch
from fanout.spark.sinks.tables.columns import column_names, in_spark
from fanout.spark.sinks.tables.table_sink import TableSink

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from os import PathLike

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

    from fanout.landing.claims import Ownership
    from fanout.spark.sinks.sink_batch import SinkBatch

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
# Later batches may have more columns, a path is no pattern, and a session may skip files.
_READING: Final = {
    "mergeSchema": "true",
    "__globPaths__": "false",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
}
# Types whose values Spark reads from the names of directories as it writes them.
_NAMED: Final = (
    types.BooleanType,
    types.NumericType,
    types.DateType,
    types.TimestampType,
    types.TimestampNTZType,
    types.StringType,
)
# Spark writes the wall clock of the session's zone, where two instants may be one.
_UTC: Final = (
    "concat(cast(timestamp_ntz'1970-01-01 00:00:00' + make_dt_interval("
    "cast(unix_micros({0}) div 86400000000 as int), 0, 0, "
    "cast(unix_micros({0}) % 86400000000 as decimal(18, 0)) / 1000000) as string), 'Z')"
)
# With the old parser of times Spark writes a date before 1582 in another calendar than it reads.
_DAY: Final = "substring_index(cast(cast({0} as timestamp_ntz) as string), ' ', 1)"
# Spark writes the first two as null, and bytes that are not UTF-8 as others; no name has a NUL.
_NAMELESS: Final = (
    "{0} in ('', '__HIVE_DEFAULT_PARTITION__') or instr({0}, char(0)) > 0"
    " or not (cast({0} as binary) <=> encode({0}, 'UTF-8'))"
)
# With LEGACY other readers than Spark take a date before 1582 for another one.
_CALENDARS: Final = (
    "spark.sql.parquet.datetimeRebaseModeInWrite",
    "spark.sql.parquet.int96RebaseModeInWrite",
)


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
        partition_by: The columns whose values are directories below that of the batch; timestamps
            in UTC. A batch is refused that has an empty string there.
        transform: Makes of a batch what is written, for example `lambda df: df.select(...)`.
        sink_name: The sink's name, where a handler has several; it must not change while a query
            lives.

    Raises:
        OptionError: If an option is malformed.
    """

    path: str | PathLike[str]
    partition_by: str | Sequence[str] = ()
    sink_name: str = "parquet"
    _looked: dict[str, Ownership] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def _require(self, spark: SparkSession) -> None:
        try:
            _hadoop_path(spark, self._destination, _MARKER).getFileSystem(
                hadoop_configuration(spark)
            )
        except JAVA_ERRORS as error:
            if has_gone(error):
                raise
            raise SetupError(
                f"Spark cannot write to path={self._destination!r}: {first_line(error)}"
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
            StreamStateError: No batch is written yet, so that the columns are unknown, or a column
                has types in several batches that no type is common to.
        """
        if not (batches := self._complete(spark)):
            raise StreamStateError(f"no batch of the sink is in {self._destination} yet")
        reader = spark.read.options(basePath=self._destination, **_READING)
        try:
            found = reader.parquet(*batches).schema
        except JAVA_ERRORS as error:
            said = first_and_last_cause(error)
            if "CANNOT_MERGE" not in said:
                raise
            raise StreamStateError(
                f"the batches in {self._destination} have a column with types that do not fit "
                f"together: {said}; read them one by one, or write the newer ones to another path"
            ) from error
        kinds = _directory_types(found)
        if not kinds and self._partitions:
            # Spark keeps the metadata of one file, and that of an earlier version has none.
            for batch in _newest_of_each(batches):
                kinds |= _directory_types(reader.parquet(batch).schema)
        return reader.schema(_typed(found, kinds)).parquet(*batches)

    def _complete(self, spark: SparkSession) -> list[str]:
        """Return the directories of batches that have the marker; the path is no pattern."""
        root = _hadoop_path(spark, self._destination, ".")
        files = root.getFileSystem(hadoop_configuration(spark))
        return [
            str(batch)
            for query in _below(files, root, "query=")
            for sink in _below(files, query, f"sink={self.sink_name}")
            for batch in _below(files, sink, "batch=")
            if files.exists(_hadoop_path(spark, str(batch), _MARKER))
        ]

    @property
    def _destination(self) -> str:
        return location_text("path", self.path)

    def _check(self) -> None:
        if not self._destination:
            raise OptionError("path='' must be the URI of a directory")
        _check_names(self._partitions)

    @property
    def _partitions(self) -> tuple[str, ...]:
        return column_names("partition_by", self.partition_by)

    def _write(self, rows: DataFrame, batch: SinkBatch) -> None:
        _check_names(rows.columns)
        spark = rows.sparkSession
        marker = self._marker(spark, batch, batch.batch_id)
        if batch.is_in(self._destination, self._newest(spark, batch, marker)):
            log.info("batch %d is in %s already", batch.batch_id, self._destination)
            return
        batch.ownership.check()
        with _in_one_calendar(_with_types(rows, self._partitions)) as written:
            (
                written.write.mode("overwrite")
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
            number = one.getPath().getName().partition("=")[2]
            # A directory that somebody has renamed is no batch.
            if number.isdecimal() and files.exists(self._marker(spark, batch, int(number))):
                return WrittenBatch(int(number))
        self._looked[batch.writer] = batch.ownership
        return None

    def _marker(self, spark: SparkSession, batch: SinkBatch, number: int) -> Any:
        below = f"query={batch.query_id}/sink={batch.sink_name}/batch={number}/{_MARKER}"
        return _hadoop_path(spark, self._destination, below)


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


@contextmanager
def _in_one_calendar(rows: DataFrame) -> Iterator[DataFrame]:
    """Yield rows that are written with Spark's calendar; other queries share the session."""
    spark = rows.sparkSession
    legacy = [name for name in _CALENDARS if str(spark.conf.get(name)).upper() == "LEGACY"]
    if not legacy:
        yield rows
        return
    view = f"fanout_batch_{uuid4().hex}"
    rows.createOrReplaceTempView(view)
    try:
        session: Any = spark._jsparkSession  # noqa: SLF001 - newSession() has no settings and views
        copy = session.cloneSession()
        for name in legacy:
            copy.conf().set(name, "CORRECTED")
        yield type(rows)(copy.table(view), spark)
    finally:
        spark.catalog.dropTempView(view)


def _below(files: Any, directory: Any, prefix: str) -> Iterator[Any]:
    """Yield the directories below another one whose names begin so."""
    try:
        found = files.listStatus(directory)
    except JAVA_ERRORS as error:
        if not is_java(error, "java.io.FileNotFoundException"):
            raise
        return
    for one in found:
        if one.isDirectory() and one.getPath().getName().startswith(prefix):
            yield one.getPath()


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
    first, columns = stored[0], {one.name: _named(one, lower) for one in rows.schema}
    columns[first.name] = columns[first.name].alias(
        first.name, metadata={**first.metadata, _TYPES: directories.json()}
    )
    return rows.select(*columns.values())


def _named(field: StructField, partitions: AbstractSet[str]) -> Column:
    """Return a column; one of directories as values that a reader finds in their names."""
    name, kind = in_spark(field.name), field.dataType
    column = F.col(name)
    if field.name.lower() not in partitions:
        return column
    if not isinstance(kind, _NAMED):
        raise OptionError(
            f"partition_by names the column {field.name!r}, which is {kind.simpleString()}, and "
            f"the name of a directory cannot keep that: make a string of it in transform"
        )
    if isinstance(kind, types.TimestampType):
        column = F.expr(_UTC.format(name))
    elif isinstance(kind, types.DateType):
        column = F.expr(_DAY.format(name))
    elif isinstance(kind, types.StringType):
        text = (
            f"partition_by names the column {field.name}, which has a string that is empty or that "
            f"the name of a directory cannot keep: replace it in transform, for example by null"
        )
        column = F.when(F.expr(_NAMELESS.format(name)), F.raise_error(F.lit(text))).otherwise(
            column
        )
    return column.alias(field.name)


def _directory_types(found: StructType) -> dict[str, DataType]:
    """Return the types of the columns that are directories, as the files tell them."""
    told = (json.loads(column.metadata.get(_TYPES, _NONE)) for column in found)
    return {one.name: one.dataType for each in told for one in types.StructType.fromJson(each)}


def _newest_of_each(batches: Sequence[str]) -> list[str]:
    """Return the newest of the batches of each query."""
    found = sorted(batches, key=lambda batch: int(batch.rpartition("=")[2]))
    return [*{batch.rpartition("/")[0]: batch for batch in found}.values()]


def _typed(found: StructType, directories: Mapping[str, DataType]) -> StructType:
    """Return a schema as it was written, where Spark has guessed the types of directories."""
    kinds = {**_DIRECTORIES, **directories}
    for column in found:
        column.metadata.pop(_TYPES, None)
    return types.StructType(
        [
            types.StructField(one.name, kinds.get(one.name, one.dataType), True, one.metadata)  # noqa: FBT003
            for one in found
        ]
    )
