"""What all sinks of tables do with a batch: append its rows, or keep the newest of a key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from fanout.errors import BatchNotWrittenError, OptionError
from fanout.spark.hadoop.jvm import JAVA_ERRORS, first_and_last_cause, has_gone
from fanout.spark.query.batch_context import batch_of_sink, check_sink_name
from fanout.spark.sinks.sink_batch import batch_for, check_transform, transformed
from fanout.spark.sinks.tables.columns import check_has, check_types, column_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from fanout.spark.query.batch_context import BatchContext
    from fanout.spark.sinks.sink_batch import SinkBatch, Transform
    from fanout.spark.workers.loop_thread import LoopThread


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSink(ABC):
    """A handler that writes each batch of a query once, and skips one that is written already."""

    transform: Transform | None = None
    sink_name: str = "table"

    def __post_init__(self) -> None:
        check_sink_name(self.sink_name)
        check_transform(self.transform)
        self._check()

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write a batch; `foreach_batch` calls it. See `write`."""
        self.write(df, batch_id)

    def write(self, df: DataFrame, batch_id: int) -> None:
        """Write a DataFrame inside a handler of `foreach_batch`, unless that is done already.

        A handler may write to several sinks, each with a sink_name of its own: each is committed by
        itself. Call it in the handler's own thread. A batch that fails comes again with the next
        run of the query.

        Args:
            df: The rows; `transform` is applied to them.
            batch_id: The batch that the handler was called with.

        Raises:
            StreamStateError: No handler runs in this thread, the batch is another one, or
                sink_name was written to before in it.
            OptionError: The columns do not fit, or a connection string is malformed.
            BatchNotWrittenError: The batch cannot be written; the cause says why.
            SetupError: Something that the sink needs is not installed.
            ServiceError: The database cannot be reached, or refuses the user.
            CheckpointError: A newer run has taken over the checkpoint, or the sink holds another
                batch with this id, or a later one.
        """
        context = batch_of_sink(batch_id, self.sink_name)
        batch = batch_for(self.sink_name, context)
        try:
            self._require(df.sparkSession)
            self._write(transformed(df, self.transform), batch)
        except (PySparkException, *JAVA_ERRORS) as error:
            if has_gone(error):
                raise
            says = first_and_last_cause(error)
            raise BatchNotWrittenError(
                f"batch {batch_id} was not written to {self._destination}: {says}"
            ) from error

    def prepare(self, spark: SparkSession, loop: LoopThread) -> None:  # noqa: ARG002 - the protocol's
        """Check that batches can be written; `foreach_batch` calls it before it reads.

        Raises:
            SetupError: Something that the sink needs is not installed.
        """
        self._require(spark)

    def recover(self, context: BatchContext) -> None:  # noqa: B027 - nothing is left to do
        """Do nothing: a batch that was not finished comes again as a whole."""

    @property
    @abstractmethod
    def _destination(self) -> str:
        """What the sink writes to, for messages."""

    def _require(self, spark: SparkSession) -> None:  # noqa: B027 - not all need something
        """Check in little time that a session has what the sink needs; raise SetupError.

        A handler of the user's own is not prepared, so it is called in each batch, too.
        """

    @abstractmethod
    def _check(self) -> None:
        """Check the options of the sink; raise OptionError."""

    @abstractmethod
    def _write(self, rows: DataFrame, batch: SinkBatch) -> None:
        """Write a batch, unless it is written already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedSink(TableSink):
    """A handler that appends the rows of each batch once, or keeps the newest row of each key."""

    key: str | Sequence[str] = ()
    latest_by: str | None = None

    @property
    def _keys(self) -> tuple[str, ...]:
        return column_names("key", self.key)

    def _check_key(self) -> None:
        if bool(self._keys) is not (self.latest_by is not None):
            raise OptionError(
                "key and latest_by belong together: key names the columns that tell rows apart, "
                "and latest_by the column whose greatest value is the newest row of a key"
            )
        if self.latest_by in self._keys:
            raise OptionError(f"latest_by={self.latest_by!r} must not be one of the key's columns")

    def _check_columns(self, schema: StructType) -> None:
        check_has(schema, "key", self._keys)
        if self.latest_by is not None:
            check_has(schema, "latest_by", (self.latest_by,))

    def _check_kept(self, rows: DataFrame, table: StructType) -> None:
        """Check that a table keeps the values of the rows; raise OptionError."""
        exact_case = rows.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
        check_types(rows.schema, table, self._destination, exact_case=exact_case)
