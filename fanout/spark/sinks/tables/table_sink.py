"""What all sinks of tables do with a batch, whatever the table is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from fanout.errors import BatchNotWrittenError
from fanout.spark.hadoop.jvm import JAVA_ERRORS, first_and_last_cause, has_gone
from fanout.spark.query.current_batch import batch_of_sink, check_sink_name
from fanout.spark.sinks.sink_batch import batch_for
from fanout.spark.sinks.transform import check_transform, transformed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fanout.spark.query.current_batch import BatchContext
    from fanout.spark.sinks.sink_batch import SinkBatch
    from fanout.spark.sinks.transform import Transform
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
