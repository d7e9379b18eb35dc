"""Spark's `format("fanout")`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import DataSource

from fanout.errors import OptionError
from fanout.landing.log.columns import landed_schema, stored_columns
from fanout.landing.log.evolution import without_new_columns
from fanout.spark.dataframe.options import ReadOptions, in_words_of_options
from fanout.spark.dataframe.readers import LandingBatchReader, LandingStreamReader
from fanout.spark.dataframe.source_options import LandedSource
from fanout.spark.dataframe.source_reader import SourceStreamReader
from fanout.spark.workers.arrow_schema import arrow_schema, check_spark_reads, spark_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from fanout.core.source import Source
    from fanout.spark.dataframe.landing_call import DriverEndpoint


class LandingDataSource(DataSource):
    """Read a landing as a DataFrame, streaming or not; the query may fill the landing itself.

    Spark finds it in the module `pyspark_fanout`.
    """

    source: ClassVar[Source | None] = None
    """The source that the query lands; None where the options describe it, or there is none."""

    driver: ClassVar[DriverEndpoint | None] = None
    """How the driver is reached, whose landers land the source; None without landers."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "fanout"

    def schema(self) -> StructType:
        """Return the columns of the landing's records; those of its source."""
        landed = LandedSource.parse(self.options, self.source)
        if landed is not None:
            schema = _source(landed).schema
            check_spark_reads(schema, case_sensitive=True)  # Spark compares the names by itself
            return spark_schema(schema)
        files = ReadOptions.parse(self.options).open()
        with in_words_of_options():
            return spark_schema(landed_schema(files))

    def reader(self, schema: StructType) -> LandingBatchReader:
        """Return what reads for `spark.read`."""
        if self.source is not None or "source" in self.options:
            raise OptionError(
                "source is an option of spark.readStream: spark.read reads what is landed already; "
                "leave source and its options out"
            )
        options = ReadOptions.parse(self.options, streaming=False)
        return LandingBatchReader(options, arrow_schema(schema))

    def streamReader(self, schema: StructType) -> LandingStreamReader:  # noqa: N802 - Spark's name
        """Return what reads for `spark.readStream`."""
        landed = LandedSource.parse(self.options, self.source)
        if landed is not None:
            landing = replace(landed.landing, driver=self.driver)
            return SourceStreamReader(landed.reading, arrow_schema(schema), landing, landed.make)
        options = ReadOptions.parse(self.options, streaming=True)
        return LandingStreamReader(options, arrow_schema(schema))


def _source(landed: LandedSource) -> Source:
    """Return the source as it is going to be landed."""
    source = landed.make()
    if landed.landing.new_columns == "add":
        return source
    files = landed.reading.open()
    with in_words_of_options(landed.landing.words):
        return without_new_columns(source, stored_columns(files), files.location)
