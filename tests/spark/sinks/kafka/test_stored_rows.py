"""The files that a DataFrame's rows are stored in, before tasks on this machine write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fanout.kafka.writing.row_batches import column_of
from fanout.spark.sinks.kafka.stored_rows import stored_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

UNIX = datetime(1970, 1, 1, tzinfo=UTC)
# What a session may set for files of its own.
SETTINGS = {
    "spark.sql.files.maxRecordsPerFile": "7",
    "spark.sql.parquet.compression.codec": "gzip",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.parquet.writeLegacyFormat": "true",
}


@pytest.fixture(params=[False, True], ids=["as it is", "set otherwise"])
def session(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """Return the session, as it is by default or with settings of a user."""
    settings = SETTINGS if request.param else {}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, old in before.items():
        if old is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, old)


def read(files: Sequence[str]) -> list[dict[str, Any]]:
    batches = [batch for file in files for batch in pq.read_table(file).to_batches()]
    found: list[dict[str, Any]] = []
    for batch in batches:
        names = batch.schema.names
        columns = [column_of(batch, name) for name in names]
        found += pa.RecordBatch.from_arrays(columns, names=names).to_pylist()
    return found


def test_rows_are_stored_in_their_order_as_they_are(session: SparkSession) -> None:
    rows = session.range(0, 100, numPartitions=12).selectExpr(
        "cast(id as string) value",
        "case when id % 3 > 0 then unhex('ff00') end key",
        "'unused' topic",
        "case when id = 5 then 2 end partition",
        "case when id > 0 then timestamp_micros(id * 300000000000001) end timestamp",
        "case when id = 1 then array(named_struct('key', 'k', 'value', unhex('fe')),"
        " named_struct('key', '', 'value', null)) when id = 2 then array() end headers",
    )
    with stored_rows(rows, "t") as files:
        found = read(files)
        paths = [Path(file) for file in files]
    assert [row["value"] for row in found] == [b"%d" % number for number in range(100)]
    assert {row["key"] for row in found} == {None, b"\xff\x00"}
    assert [row["partition"] for row in found[4:7]] == [None, 2, None]
    assert "topic" not in found[0]
    assert found[0]["timestamp"] is None
    times = [row["timestamp"] for row in found[1:]]
    assert times == [UNIX + timedelta(milliseconds=n * 300_000_000_000) for n in range(1, 100)]
    assert found[1]["headers"] == [{"key": "k", "value": b"\xfe"}, {"key": "", "value": None}]
    assert (found[2]["headers"], found[3]["headers"]) == ([], None)
    assert not any(path.exists() for path in paths)


def test_rows_may_name_their_topics_and_there_may_be_none(spark: SparkSession) -> None:
    rows = spark.range(3).selectExpr("'v' value", "if(id = 1, null, 'a') topic")
    with stored_rows(rows, None) as files:
        topics = [one for file in files for one in pq.read_table(file)["topic"].to_pylist()]
    assert topics == ["a", None, "a"]
    with stored_rows(rows.filter("false"), None) as files:
        assert sum(pq.read_metadata(file).num_rows for file in files) == 0


def test_no_file_is_left_of_rows_that_fail(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rows = spark.range(100).selectExpr("if(id = 99, raise_error('no'), 'v') value")
    with pytest.raises(Exception, match="no"), stored_rows(rows, "t"):
        pass
    assert list(tmp_path.iterdir()) == []
