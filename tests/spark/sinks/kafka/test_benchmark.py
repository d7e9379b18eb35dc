from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from benchmarks.sink import OURS, PARTITIONS, prepare_batch
from benchmarks.sink_job import measure, writing
from tests.spark.sinks.kafka.harness import Output

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = pytest.mark.prove

SKIPPED, COUNTED = 3, 2


@pytest.mark.parametrize("name", OURS)
def test_a_contender_writes_every_batch_that_is_counted(
    spark: SparkSession,
    kafka_broker: KafkaBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    output = Output(kafka_broker, PARTITIONS)
    monkeypatch.setattr("benchmarks.sink_job.TOPICS", {name: output.name})
    batch = prepare_batch(tmp_path, 100, 60)
    with writing(name, spark, kafka_broker.bootstrap_servers, str(batch)) as write:
        reading = measure(spark, str(batch), write, 60 * COUNTED)
    assert min(reading.records_per_second, reading.cpu_seconds_per_million) > 0
    values = pq.read_table(batch)["value"].to_pylist()
    assert output.values() == sorted(values * (SKIPPED + COUNTED))
