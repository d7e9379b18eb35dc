"""The job of the benchmark `latency`, on this session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.latency_job import Job, Meter, run_data_frame, run_foreach_batch
from benchmarks.paced import paced

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


@pytest.mark.prove
@pytest.mark.parametrize("contend", [run_foreach_batch, run_data_frame])
def test_a_query_is_measured(spark: SparkSession, contend: Callable[[Job, Meter], None]) -> None:
    meter = Meter(spark, 50)
    with paced("kafka", 100) as servers:
        contend(Job(spark, servers), meter)
    assert meter.measurement is not None
    assert meter.measurement.latency is not None
    assert meter.measurement.latency[0] > 0
    assert meter.measurement.cpu_seconds_per_million
