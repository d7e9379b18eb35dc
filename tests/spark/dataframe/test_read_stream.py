"""A source as a value becomes a streaming DataFrame, which lands it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import aioboto3
import pytest
from pyspark.errors import StreamingQueryException

from fanout.errors import OptionError, ServiceError, SetupError
from fanout.kafka import Cluster, KafkaShareSource, KafkaSource, Security
from fanout.kinesis import KinesisSource
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark import read_stream
from tests.spark.dataframe.triggers import needs_trigger
from tests.support.manual_source import ManualSource
from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.dataframe.conftest import Runs

pytestmark = pytest.mark.spark


def filled(count: int) -> ManualSource:
    source = ManualSource()
    source.put(*(b"%d" % number for number in range(count)))
    return source


@needs_trigger
def test_a_query_lands_its_source_and_the_next_one_continues(
    spark: SparkSession, runs: Runs, tmp_path: Path
) -> None:
    landing = str(tmp_path / "landing")
    options: dict[str, Any] = {"reader": "sessions", "maxRecordsPerTrigger": 20, "maxWait": 0}
    runs.run(read_stream(spark, filled(45), landing=landing, options=options))
    assert [row for batch in runs.batches for row in batch] == list(range(1, 46))
    assert max(map(len, runs.batches)) == 20
    # The run begins with an entry without records, which may be a batch of its own.
    again = runs.run(read_stream(spark, filled(50), landing=landing, options=options))
    assert again == [[46, 47, 48, 49, 50]]
    eventually(lambda: not list((tmp_path / "landing").glob("_scratch/*")), "no leftovers")


def test_the_error_of_a_source_ends_the_query(
    spark: SparkSession, runs: Runs, tmp_path: Path
) -> None:
    source = filled(5)
    source.fail(ServiceError("the stream is gone"))
    df = read_stream(spark, source, landing=str(tmp_path / "landing"))
    with pytest.raises(StreamingQueryException, match=r"SplitFailedError: .*the stream is gone"):
        runs.run(df)
    assert LocalStorage(tmp_path / "landing").list("batches")


@pytest.mark.parametrize(
    ("source", "options", "sentence"),
    [
        (
            KinesisSource(stream="orders", consumer="etl", session=aioboto3.Session()),
            {},
            "session holds credentials, which are not sent to the process that lands the source",
        ),
        (
            KafkaSource(
                cluster=Cluster("b:9093", security=Security(username="u", password="canary")),
                topics="orders",
            ),
            {},
            "security holds password, which is not sent to other processes: pass a function that",
        ),
        (
            KafkaShareSource(
                cluster=Cluster("b:9093", security=Security(protocol="SSL")),
                topics="orders",
                group_id="billing",
            ),
            {},
            "a share group cannot be landed, as a landing continues after positions, and a group",
        ),
        (
            ManualSource(),
            {"options": {"Landing": "/lake"}},
            "landing is an argument of read_stream; leave it out of options",
        ),
        (
            ManualSource(),
            {"group": "orders-app"},
            "group cannot be used here: a landing has the positions of all splits; leave it out",
        ),
        (ManualSource(), {"landers": 0}, "landers=0 must be at least 1"),
        (
            ManualSource(),
            {"control_port": 7077},
            "control_port=7077 is for landers: pass landers, or leave it out",
        ),
        (ManualSource(), {"landers": 1, "control_port": -1}, "control_port=-1 must be a port"),
        (ManualSource(), {"landers": 1, "options": {"keep": "7d"}}, "keep deletes what was landed"),
    ],
)
def test_what_cannot_be_is_refused(
    spark: SparkSession, source: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(OptionError) as refused:
        read_stream(spark, source, landing="/lake", **options)
    assert str(refused.value).startswith(sentence)


def test_an_option_is_refused_by_spark_with_our_sentence(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"the option 'stream' is not known"):
        read_stream(spark, ManualSource(), landing="/lake", options={"stream": "orders"})


def test_a_source_that_is_read_again_and_again_is_registered_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    landing, registered = str(tmp_path / "landing"), set[str]()
    register = type(spark.dataSource).register

    def noted(registration: Any, source: Any) -> None:
        registered.add(source.name())
        register(registration, source)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(spark.dataSource), "register", noted)
        source = KinesisSource(stream="orders", consumer="etl", region="eu-west-1")
        for options in ({}, {"maxRecordsPerTrigger": 5}, {}):
            read_stream(spark, source, landing=landing, options=options)
        read_stream(spark, replace(source, consumer="other"), landing=landing)
    assert len(registered) == 2


def test_spark_connect_is_told_what_to_use() -> None:
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    with pytest.raises(SetupError, match="Spark Connect"):
        read_stream(connect(), ManualSource(), landing="/lake")
