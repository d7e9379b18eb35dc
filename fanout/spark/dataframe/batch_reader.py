"""Read entries of a landing as a DataFrame that ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from pyspark.sql.datasource import DataSourceReader

from fanout.errors import OptionError
from fanout.landing.log.landed_log import LandedLog, Place
from fanout.spark.dataframe.option_words import in_words_of_options
from fanout.spark.dataframe.row_groups import RowGroups, partitions, read_rows
from fanout.spark.dataframe.stream_reader import first_entry, log_skipped

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from fanout.spark.dataframe.options import ReadOptions


@final
class LandingBatchReader(DataSourceReader):
    """Read what is between two entries of a landing, in the columns that Spark expects."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    @in_words_of_options()
    def partitions(self) -> list[InputPartition]:
        """Divide the rows among tasks; Spark calls it once for each action."""
        options = self._options
        log = LandedLog(
            options.open(), skip_lost=not options.fail_on_data_loss, on_skipped=log_skipped
        )
        start, stop = first_entry(log, options.start), options.stop
        if isinstance(stop, str):
            stop = log.end()
        if stop > log.end():
            raise OptionError(f"stop={stop}: the newest entry of {log.location} is {log.end() - 1}")
        if start > stop:
            raise OptionError(f"start={options.start} must not be after stop={options.stop}")
        # Spark makes a partition of its own of none.
        return partitions(log.rows(Place(start), Place(stop)), options) or [RowGroups(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return read_rows(partition, self._schema, self._options)
