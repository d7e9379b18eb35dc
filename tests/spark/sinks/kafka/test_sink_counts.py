"""What sinks count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout import Origin, SinkStatistics, TransactionStatistics
from fanout.spark.sinks.sink_batch import SinkCounts
from tests.spark.sinks.kafka.harness import Output, run

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from fanout.testing.kafka.broker import KafkaBroker

ANYWHERE = Origin("kafka")


def test_the_counts_of_all_queries_are_added() -> None:
    counts = SinkCounts()
    counts.add("one", begun=1)
    counts.add("one", batches=1, records=5, bytes=50, committed=1)
    counts.add("other", begun=2, aborted=1)
    assert counts.statistics(ANYWHERE, transactional=True) == SinkStatistics(
        1, 5, 50, TransactionStatistics(3, 1, 1), ANYWHERE
    )
    assert counts.statistics(ANYWHERE, transactional=False).transactions is None


@pytest.mark.spark
def test_a_sink_counts_the_batches_that_it_has_written(
    spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    output = Output(kafka_broker)
    sink, plain = output.sink(), output.sink(delivery_guarantee="at_least_once", sink_name="plain")
    assert sink.statistics() == SinkStatistics(
        transactions=TransactionStatistics(), origin=Origin("kafka", output.name)
    )
    rows = spark.range(30).selectExpr("cast(id as string) value")
    with run(spark, tmp_path) as here:
        here.write(sink, rows, 0)
        here.write(sink, rows.limit(0), 1)
        here.write(sink, rows, 0)  # it comes again, and is committed already
        here.write(plain, rows, 0)
    found = sink.statistics()
    assert (found.batches, found.records) == (2, 30)
    assert found.transactions == TransactionStatistics(begun=2, committed=2)
    assert found.bytes > 30
    assert (plain.statistics().batches, plain.statistics().records) == (1, 30)
    assert plain.statistics().transactions is None
    assert sink == output.sink(), "counts are no option"
