"""Batches in directories of Parquet files: written once, and never seen in part."""

from __future__ import annotations

import re
import shutil
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from fanout.errors import (
    BatchFailedError,
    BatchNotWrittenError,
    CheckpointError,
    OptionError,
    SetupError,
    StreamStateError,
)
from fanout.landing.claims import run_name
from fanout.spark import ParquetSink
from fanout.spark.sinks.tables.parquet_sink import _later
from tests.spark.sinks.kafka.harness import CONTENT, OTHER, run
from tests.support.manual_source import ManualSource
from tests.support.spark.harness import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from fanout.spark import FanOutQuery

pytestmark = pytest.mark.spark

# The first and the last instant of Spark, in microseconds.
EXTREMES = (-(2**63), 2**63 - 1)


def orders(spark: SparkSession, begin: int, end: int) -> DataFrame:
    return spark.range(begin, end, numPartitions=3).selectExpr("id", "id % 2 AS half")


def ids(sink: ParquetSink, spark: SparkSession) -> list[int]:
    return sorted(row.id for row in sink.read(spark).collect())


@pytest.mark.fault("A batch comes again that the table has")
def test_a_batch_that_comes_again_is_written_once(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(path=str(tmp_path / "out"))
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(sink, orders(spark, 0, 10), 0)
        files = {*(tmp_path / "out").rglob("*.parquet")}
        here.call(sink, orders(spark, 0, 10), 0)
        assert {*(tmp_path / "out").rglob("*.parquet")} == files
        here.call(sink, orders(spark, 10, 15), 1)
    assert ids(sink, spark) == [*range(15)]
    found = sink.read(spark).select("query", "sink", "batch").distinct().collect()
    assert {(row.sink, row.batch) for row in found} == {("parquet", 0), ("parquet", 1)}


@pytest.mark.long
def test_a_batch_of_an_older_checkpoint_is_not_taken_for_the_one_that_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = ParquetSink(path=str(tmp_path / "out"))
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(sink, orders(spark, 0, 10), 0)  # of an earlier version
        here.call(sink, orders(spark, 0, 10), 0, content=CONTENT)
        here.call(sink, orders(spark, 10, 20), 1, content=CONTENT)
        here.call(sink, orders(spark, 10, 20), 1, content=CONTENT)
        here.call(sink, orders(spark, 20, 30), 3, content=CONTENT)  # batch 2 had no records
        with pytest.raises(CheckpointError, match="which holds another batch with this id"):
            here.call(sink, orders(spark, 30, 40), 1, content=OTHER)
    with run(spark, tmp_path / "checkpoint") as here:
        with pytest.raises(CheckpointError, match=r"batch 2 was .* holds the later batch 3"):
            here.call(sink, orders(spark, 30, 40), 2, content=OTHER)
        here.call(sink, orders(spark, 30, 40), 4, content=OTHER)
    assert ids(sink, spark) == [*range(40)]


@pytest.mark.long
@pytest.mark.parametrize("number", [0, 9, 10, 99, 347, 1990])
def test_later_batches_are_told_by_their_names(spark: SparkSession, number: int) -> None:
    java: Any = spark._jvm
    pattern = java.org.apache.hadoop.fs.GlobFilter(_later(number))
    numbers = [*range(2100), 10**9]
    later = [n for n in numbers if pattern.accept(java.org.apache.hadoop.fs.Path(f"/a/batch={n}"))]
    assert later == [n for n in numbers if n > number]


@pytest.mark.fault("A killed attempt leaves files or tables behind")
def test_a_batch_without_the_marker_is_not_read_and_is_written_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    # A session that overwrites single partitions would leave rows of the earlier attempt.
    sink = ParquetSink(path=str(tmp_path / "out"), partition_by="half")
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        with run(spark, tmp_path / "checkpoint") as here:
            here.call(sink, orders(spark, 0, 10), 0)
            here.call(sink, orders(spark, 10, 20), 1)
            (marker,) = (tmp_path / "out").rglob("batch=1/_SUCCESS")
            marker.unlink()
            assert ids(sink, spark) == [*range(10)]
            here.call(sink, orders(spark, 10, 20).where("half = 0"), 1)
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert ids(sink, spark) == [*range(10), *range(10, 20, 2)]


@pytest.mark.long
def test_a_directory_that_somebody_has_renamed_is_no_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = ParquetSink(path=str(tmp_path / "out"))
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(sink, orders(spark, 0, 10), 0)
    (batch,) = (tmp_path / "out").rglob("batch=0")
    (batch.parent / "batch=10.bak").mkdir()
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(sink, orders(spark, 10, 20), 1)
    assert ids(sink, spark) == [*range(20)]


@pytest.mark.long
def test_the_marker_does_not_depend_on_the_session(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(path=str(tmp_path / "out"))
    spark.conf.set("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    try:
        with run(spark, tmp_path / "checkpoint") as here:
            here.call(sink, orders(spark, 0, 10), 0)
    finally:
        spark.conf.unset("mapreduce.fileoutputcommitter.marksuccessfuljobs")
    assert ids(sink, spark) == [*range(10)]


@pytest.mark.long
def test_sinks_of_one_handler_have_states_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "out")
    even = ParquetSink(path=path, sink_name="even", transform=lambda df: df.where("half = 0"))
    odd = ParquetSink(path=path, sink_name="odd", transform=lambda df: df.where("half = 1"))

    def write(df: DataFrame, batch_id: int) -> None:
        even.write(df, batch_id)
        odd.write(df, batch_id)

    with run(spark, tmp_path / "checkpoint") as here:
        here.call(even, orders(spark, 0, 10), 0)  # the run ends before the second sink
        here.call(write, orders(spark, 0, 10), 0)
    assert ids(even, spark) == [0, 2, 4, 6, 8]
    assert ids(odd, spark) == [1, 3, 5, 7, 9]


@pytest.mark.fault("A value looks like a number in the name of a directory")
@pytest.mark.long
def test_partitions_are_read_as_they_were_written(spark: SparkSession, tmp_path: Path) -> None:
    names = ["code", "day", "count", "price", "flag"]
    sink = ParquetSink(path=str(tmp_path / "out"), partition_by=names, sink_name="01")
    rows = spark.sql(
        "SELECT 1 AS id, '007' AS code, date'2026-01-02' AS day, 5L AS count, 1.50BD AS price,"
        " true AS flag UNION ALL SELECT 2, '7', null, 2, 2, null"
    )
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(sink, rows, 0)
        query_id = here.query_id
    found, of_batch = sink.read(spark), (query_id, "01", 0)
    in_order = found.select("id", *names, "query", "sink", "batch").collect()
    assert sorted(map(tuple, in_order)) == [
        (1, "007", date(2026, 1, 2), 5, Decimal("1.50"), True, *of_batch),
        (2, "7", None, 2, Decimal("2.00"), None, *of_batch),
    ]
    assert [found.schema[name].dataType for name in names] == [
        rows.schema[name].dataType for name in names
    ]
    assert [field.metadata for field in found.schema] == [{}] * 9


def test_partitions_of_an_earlier_release_are_read(spark: SparkSession, tmp_path: Path) -> None:
    below = tmp_path / "out" / "query=a" / "sink=parquet" / "batch=3"
    orders(spark, 0, 2).write.partitionBy("half").parquet(str(below))
    found = ParquetSink(path=str(tmp_path / "out"), partition_by="half").read(spark)
    assert sorted((row.half, row.batch) for row in found.collect()) == [(0, 3), (1, 3)]


@pytest.mark.long
def test_instants_are_directories_in_no_time_zone(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(path=str(tmp_path / "out"), partition_by=("at", "local"))
    # The hour that comes twice in New York, and the ends of what Spark has.
    instants = [1793511000000000, 1793514600123456, -62135596800000000, -1, 0, *EXTREMES]
    rows = spark.createDataFrame([(one,) for one in instants], "id bigint").selectExpr(
        "id", "timestamp_micros(id) AS at", "timestamp_ntz'2026-03-08 02:30:00' AS local"
    )
    for number, zone in enumerate(("UTC", "America/New_York", "Asia/Kolkata")):
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            with run(spark, tmp_path / "checkpoint") as here:
                here.call(sink, rows, number)
            found = sink.read(spark).selectExpr("id", "unix_micros(at)", "CAST(local AS string)")
            read = sorted(map(tuple, found.collect()))
        finally:
            spark.conf.unset("spark.sql.session.timeZone")
        wall = "2026-03-08 02:30:00"
        assert read == sorted((one, one, wall) for one in instants * (number + 1))


@pytest.mark.long
@pytest.mark.parametrize(
    "value",
    ["''", "'__HIVE_DEFAULT_PARTITION__'", "CAST(unhex('80') AS string)", "'a\\0b'"],
)
def test_a_string_that_a_directory_would_alter_is_refused(
    spark: SparkSession, tmp_path: Path, value: str
) -> None:
    sink = ParquetSink(path=str(tmp_path / "out"), partition_by="code")
    with run(spark, tmp_path / "checkpoint") as here:
        with pytest.raises(BatchNotWrittenError, match="the name of a directory"):
            here.call(sink, spark.sql(f"SELECT 1 AS id, {value} AS code"), 0)
        codes = ["a/b=c%20 :?*[x]{,}\\\n", "007", "null", "..", "é😀\ufffd", " ", None]
        here.call(
            sink, spark.createDataFrame([(1, code) for code in codes], "id int, code string"), 0
        )
    found = sink.read(spark).select("code").collect()
    assert {code for (code,) in found} == {*codes}


@pytest.mark.long
def test_directories_beside_those_of_an_earlier_version_have_their_types(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = ParquetSink(path=str(tmp_path / "out"), partition_by="code")
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(sink, spark.sql("SELECT 1 AS id, '07' AS code"), 1)
    (written,) = (tmp_path / "out").rglob("batch=1")
    earlier = spark.sql("SELECT 2 AS id, '007' AS code").write.partitionBy("code")
    earlier.parquet(str(written.parent / "batch=0"))
    assert sorted(row.code for row in sink.read(spark).collect()) == ["007", "07"]


def test_binary_directories_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(path=str(tmp_path / "out"), partition_by="code")
    with (
        run(spark, tmp_path / "checkpoint") as here,
        pytest.raises(OptionError, match="'code', which is binary, and the name of a directory"),
    ):
        here.call(sink, spark.sql("SELECT 1 AS id, unhex('80') AS code"), 0)


@pytest.mark.long
def test_columns_that_later_batches_have_are_read(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(path=str(tmp_path / "out"))
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(sink, spark.sql("SELECT 1 AS id"), 0)
        here.call(sink, spark.sql("SELECT 2 AS id, 'figs' AS item"), 1)
        assert {tuple(row) for row in sink.read(spark).select("id", "item").collect()} == {
            (1, None),
            (2, "figs"),
        }
        here.call(sink, spark.sql("SELECT 'x' AS id"), 2)
        with pytest.raises(
            StreamStateError, match=r"types that do not fit .*(?i:int).*; read them"
        ):
            sink.read(spark)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["[x]", "{a,b}", "a\\b", "a:b", "a*b", "a?b", "100%", "%2F", "a b", "é", "a:[x]\\{b}"]
)
def test_a_path_is_no_pattern(spark: SparkSession, tmp_path: Path, name: str) -> None:
    (tmp_path / "xb").mkdir()
    sink = ParquetSink(path=str(tmp_path / name / "out"), partition_by="half")
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(sink, orders(spark, 0, 10), 0)
    assert ids(sink, spark) == [*range(10)]


@pytest.mark.long
def test_files_that_a_session_would_skip_are_missed(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(path=str(tmp_path / "out"))
    with run(spark, tmp_path / "checkpoint") as here:
        here.call(sink, orders(spark, 0, 10), 0)
    for name in ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles"):
        spark.conf.set(name, "true")
    try:
        found = sink.read(spark)
        for file in (tmp_path / "out").rglob("*.parquet"):
            file.unlink()
        with pytest.raises(Exception, match=r"FILE_NOT_EXIST|does not exist"):
            found.collect()
    finally:
        for name in ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles"):
            spark.conf.unset(name)


@pytest.mark.long
def test_other_readers_find_the_dates_of_a_session_with_the_old_calendar(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = ParquetSink(path=str(tmp_path / "out"))
    tables = spark.sql("SHOW TABLES").collect()
    rows = spark.sql("SELECT date'0001-01-01' AS day, timestamp'1500-01-01 00:00:00Z' AS at")
    names = ("datetimeRebaseModeInWrite", "int96RebaseModeInWrite")
    for name in names:
        spark.conf.set(f"spark.sql.parquet.{name}", "LEGACY")
    try:
        with run(spark, tmp_path / "checkpoint") as here:
            here.call(sink, rows, 0)
    finally:
        for name in names:
            spark.conf.unset(f"spark.sql.parquet.{name}")
    (file,) = (tmp_path / "out").rglob("*.parquet")
    found = parquet.read_table(file, coerce_int96_timestamp_unit="us", partitioning=None)
    assert found["day"].to_pylist() == [date(1, 1, 1)]
    assert found["at"].cast("timestamp[us]").to_pylist() == [datetime(1500, 1, 1)]  # noqa: DTZ001
    assert spark.sql("SHOW TABLES").collect() == tables


@pytest.mark.fault("A value looks like a number in the name of a directory")
@pytest.mark.parametrize("name", ["batch", "Query", "SINK"])
def test_columns_with_the_names_of_directories_are_refused(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    sink = ParquetSink(path=str(tmp_path / "out"))
    with (
        run(spark, tmp_path / "checkpoint") as here,
        pytest.raises(OptionError, match=f"column '{name}' must have another name"),
    ):
        here.call(sink, orders(spark, 0, 2).withColumn(name, F.lit("mine")), 0)
    assert not (tmp_path / "out").exists()


def test_a_query_writes_what_it_reads(
    spark: SparkSession, tmp_path: Path, start: Callable[..., FanOutQuery]
) -> None:
    sink = ParquetSink(path=str(tmp_path / "out"))
    source = ManualSource(bounded=True)
    source.put(*(b"%d" % n for n in range(100)))
    source.end("a")
    assert start(source, sink, available_now=True).await_termination(PATIENCE)
    assert sorted(row.sequence for row in sink.read(spark).collect()) == [*range(1, 101)]


@pytest.mark.long
def test_a_copy_of_a_checkpoint_loses_no_record_without_an_error(
    spark: SparkSession, tmp_path: Path, checkpoint: str, start: Callable[..., FanOutQuery]
) -> None:
    sink, copy = ParquetSink(path=str(tmp_path / "out")), str(tmp_path / "copy")
    source = ManualSource("a", bounded=True)
    source.put(b"0")
    assert start(source, sink, available_now=True).await_termination(PATIENCE)
    shutil.copytree(checkpoint, copy)
    source.put(b"1")
    assert start(source, sink, available_now=True).await_termination(PATIENCE)
    source.put(b"2")
    copied = start(source, sink, available_now=True, checkpoint_location=copy)
    with pytest.raises(BatchFailedError, match="which holds another batch with this id"):
        copied.await_termination(PATIENCE)
    assert start(source, sink, available_now=True).await_termination(PATIENCE)
    assert sorted(bytes(row.data) for row in sink.read(spark).collect()) == [b"0", b"1", b"2"]


@pytest.mark.fault("A run that lost its checkpoint to another one writes nothing more")
def test_a_run_that_lost_the_checkpoint_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(path=str(tmp_path / "out"))
    with run(spark, tmp_path / "checkpoint") as here:
        here.storage.delete(run_name(here.ownership.run))
        with pytest.raises(CheckpointError, match="this run stops"):
            here.call(sink, orders(spark, 0, 10), 0)
    assert not (tmp_path / "out").exists()


def test_a_failed_write_is_said_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sink = ParquetSink(path=str(tmp_path / "file"))
    with run(spark, tmp_path / "checkpoint") as here:
        with pytest.raises(
            BatchNotWrittenError, match=r"batch 3 was not written to .*/file: "
        ) as at:
            here.call(sink, orders(spark, 0, 10), 3)
        assert "\n" not in str(at.value)


def test_the_cause_of_a_failed_task_is_said(spark: SparkSession, tmp_path: Path) -> None:
    sink = ParquetSink(path=str(tmp_path / "out"), partition_by="code")
    rows = spark.range(1).selectExpr("id", "repeat('x', 300) AS code")
    with run(spark, tmp_path / "checkpoint") as here:
        with pytest.raises(BatchNotWrittenError, match=r"batch 3 .*; caused by .*") as at:
            here.call(sink, rows, 3)
        assert "\n" not in str(at.value)
    assert re.search(r"caused by \w+Exception: .*(Mkdirs failed|name too long)", str(at.value))


@pytest.mark.fault("A grant, a column or a library is missing, or the server is away")
def test_a_file_system_that_spark_lacks_is_said_before_the_first_record(
    start: Callable[..., FanOutQuery],
) -> None:
    with pytest.raises(SetupError, match="Spark cannot write to path='nope://lake/orders'"):
        start(ManualSource(), ParquetSink(path="nope://lake/orders"))


def test_it_is_said_in_the_first_batch_of_an_own_handler(
    start: Callable[..., FanOutQuery],
) -> None:
    source = ManualSource()
    source.put(b"figs")
    query = start(source, ParquetSink(path="nope://lake/orders").write)
    with pytest.raises(BatchFailedError, match=r"SetupError in .* write to path='nope:"):
        query.await_termination(PATIENCE)


def test_nothing_is_read_before_the_first_batch(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StreamStateError, match="no batch of the sink is in"):
        ParquetSink(path=str(tmp_path / "out")).read(spark)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"path": ""}, "path='' must be the URI of a directory"),
        ({"path": "/out", "partition_by": ("a", "a")}, "must be the names of columns, each once"),
        ({"path": "/out", "partition_by": "Batch"}, "column 'Batch' must have another name"),
        ({"path": "/out", "partition_by": [1]}, "must be the names of columns, each once"),
        ({"path": "/out", "sink_name": "a/b"}, "sink_name='a/b' must be"),
        ({"path": "/out", "transform": "x"}, "transform='x' must be a function"),
    ],
)
def test_bad_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        ParquetSink(**options)
