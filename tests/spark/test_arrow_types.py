"""A value of any Arrow type reaches a handler as it is, or its column is refused at the start."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
import pytest

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.drain import Drained
from fanout.core.events import Batch, Split
from fanout.core.positions import Cursor, Horizon, Range
from fanout.errors import BatchFailedError, OptionError
from fanout.kafka.writing.row_batches import prepare_rows
from fanout.kinesis.writing.entries import make_entries
from fanout.landing.claims import claim
from fanout.landing.log.ledger import BatchLedger
from fanout.landing.log.set_aside import SetAsideLog
from fanout.landing.segments.segment_filler import Stopped
from fanout.landing.segments.segments import Filled, SegmentLog
from fanout.spark.hadoop.jvm_lock import JvmProcess
from fanout.spark.hadoop.storage import open_storage
from fanout.spark.query.batch_context import BatchContext
from fanout.spark.query.batch_runner import BatchRunner
from fanout.spark.query.failed_batches import FailedBatches
from fanout.spark.workers.arrow_schema import check_spark_reads, spark_schema
from fanout.spark.workers.loop_thread import LoopThread
from tests.spark.arrow_columns import columns, in_arrow, in_spark
from tests.support.manual_source import ManualSource
from tests.support.spark.harness import Recorder, fail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from fanout.spark import FanOutQuery
    from fanout.spark.query.batch_runner import Handler
    from fanout.spark.query.query_stream import BatchContent

pytestmark = pytest.mark.spark

COLUMNS = columns()
SCHEMA = pa.schema({name: column.type for name, column in COLUMNS.items()})
RECORDS = pa.record_batch(list(COLUMNS.values()), schema=SCHEMA)

# Settings of a session that change what it reads of Parquet, or how.
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "defaults": {},
    "legacy rebase": {
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
        "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    },
    "exceptions for old days": {
        "spark.sql.parquet.datetimeRebaseModeInRead": "EXCEPTION",
        "spark.sql.session.timeZone": "America/New_York",
    },
    "Kathmandu, rows": {
        "spark.sql.parquet.enableVectorizedReader": "false",
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
        "spark.sql.session.timeZone": "Asia/Kathmandu",
    },
    "types": {
        "spark.sql.parquet.binaryAsString": "true",
        "spark.sql.parquet.int96AsTimestamp": "false",
        "spark.sql.parquet.int96TimestampConversion": "true",
        # Spark 3.5.1 ends then with an error for local times, where it reads row by row.
        "spark.sql.parquet.inferTimestampNTZ.enabled": str(pyspark.__version__ == "3.5.1").lower(),
        "spark.sql.legacy.parquet.nanosAsLong": "true",
        "spark.sql.parquet.writeLegacyFormat": "true",
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.parquet.enableNestedColumnVectorizedReader": "false",
    },
    "names": {
        "spark.sql.caseSensitive": "true",
        "spark.sql.parquet.mergeSchema": "true",
        "spark.sql.parquet.fieldId.read.enabled": "true",
        "spark.sql.parquet.fieldId.read.ignoreMissing": "true",
    },
    "the other reader": {
        "spark.sql.sources.useV1SourceList": "",
        "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
        "spark.sql.parquet.aggregatePushdown": "true",
    },
    "ANSI": {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "+14:00"},
    "not ANSI": {"spark.sql.ansi.enabled": "false", "spark.sql.session.timeZone": "-12:00"},
}


@contextmanager
def settings(spark: SparkSession, chosen: Mapping[str, str]) -> Iterator[None]:
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in chosen}
    for name, value in chosen.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


@pytest.fixture(scope="module")
def stored(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    storage = open_storage(spark, str(tmp_path_factory.mktemp("types") / "checkpoint"))
    with claim(storage, JvmProcess(spark)) as ownership:
        yield Stored(spark, storage, ownership)


class Stored:
    """A batch with a column of each type, whose handler has failed, so that it is replayed."""

    def __init__(self, spark: SparkSession, storage: object, ownership: object) -> None:
        self._spark, self._storage, self._ownership = spark, storage, ownership
        self._ledger = BatchLedger(storage, ownership)  # type: ignore[arg-type]
        log = SegmentLog(storage.scratch(), 1, SCHEMA, max_records=100, max_bytes=1 << 30)  # type: ignore[attr-defined]
        split, until = Split("a"), Cursor(RECORDS.num_rows)
        positions = Checkpoint(
            "manual:one", MappingProxyType({split.id: SplitPosition(split, until)})
        )
        segment = log.open()
        segment.add(Drained((Batch(split, RECORDS, Range(Horizon(), until)),), positions))
        with pytest.raises(BatchFailedError, match="no space"):
            self.run(fail, Filled(segment, positions))

    def run(self, handler: Handler, content: BatchContent | None = None) -> None:
        loop = LoopThread()
        runner = BatchRunner(
            self._spark,
            SCHEMA,
            handler,
            storage=self._storage,  # type: ignore[arg-type]
            ledger=self._ledger,
            context=lambda entry: BatchContext(
                entry.batch_id,
                entry.query_id,
                self._storage,  # type: ignore[arg-type]
                self._ownership,  # type: ignore[arg-type]
                loop,
            ),
            take=lambda _: content or Stopped(),
            failed=FailedBatches(None, SetAsideLog(self._storage, self._ownership)),  # type: ignore[arg-type]
            acknowledge=lambda _: None,
        )
        runner.run(0, "a query")


@pytest.mark.long
@pytest.mark.parametrize("chosen", SETTINGS.values(), ids=SETTINGS)
def test_each_value_of_each_type_is_equal_in_a_batch_and_in_its_replay(
    spark: SparkSession, stored: Stored, chosen: Mapping[str, str]
) -> None:
    differing: dict[str, tuple[list[str], list[str]]] = {}

    def compare(df: DataFrame, _: int) -> None:
        for name, column in COLUMNS.items():
            found, expected = in_spark(df, name), in_arrow(column)
            if found != expected:
                differing[name] = (found, expected)

    with settings(spark, chosen):
        stored.run(compare)
    assert differing == {}


@pytest.mark.long
@pytest.mark.parametrize("mode", ["LEGACY", "EXCEPTION"])
def test_old_days_are_equal_in_a_segment_of_a_release_that_did_not_say_its_calendar(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    found = {}

    def collect(df: DataFrame, _: int) -> None:
        found.update({name: in_spark(df, name) for name in ("date", "micros", "local_micros")})

    monkeypatch.setattr("fanout.landing.segments.segments._modern", lambda schema: schema)
    storage = open_storage(spark, str(tmp_path / "checkpoint"))
    with (
        settings(spark, {"spark.sql.parquet.datetimeRebaseModeInRead": mode}),
        claim(storage, JvmProcess(spark)) as ownership,
    ):
        Stored(spark, storage, ownership).run(collect)
    assert found == {name: in_arrow(COLUMNS[name]) for name in found}
    assert len(found) == 3


@pytest.mark.long
@pytest.mark.parametrize("mode", ["LEGACY", "EXCEPTION"])
def test_old_days_of_a_landing_are_equal_where_spark_reads_its_files_itself(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    segment = SegmentLog(
        tmp_path, 1, SCHEMA, max_records=100, max_bytes=1 << 30, compression="zstd"
    ).open()
    until = Cursor(RECORDS.num_rows)
    batch = Batch(Split("a"), RECORDS, Range(Horizon(), until))
    segment.add(Drained((batch,), Checkpoint("manual:one")))
    path = str(segment.seal().path)
    with settings(spark, {"spark.sql.parquet.datetimeRebaseModeInRead": mode}):
        df = spark.read.parquet(path)
        for name in ("date", "micros", "local_micros", "nested"):
            assert in_spark(df, name) == in_arrow(COLUMNS[name])


REFUSED = {
    "nanoseconds": (pa.timestamp("ns", "UTC"), r"timestamp\[ns, tz=UTC\].*cast it to timestamp"),
    "local nanoseconds": (pa.timestamp("ns"), r"timestamp\[ns\].*cast it to timestamp\('us'\)"),
    "seconds of a duration": (pa.duration("s"), r"duration\[s\].*cast it to duration\('us'\)"),
    "nanoseconds of a duration": (pa.duration("ns"), r"duration\[ns\].*cast it to duration\('us'"),
    "time32": (pa.time32("ms"), r"time32\[ms\].*cast it to a string"),
    "time64": (pa.time64("us"), r"time64\[us\].*cast it to a string"),
    "date64": (pa.date64(), r"date64\[ms\].*cast it to date32"),
    "uint8": (pa.uint8(), "uint8.*cast it to int64"),
    "uint64": (pa.uint64(), r"uint64.*cast it to decimal128\(20, 0\)"),
    "half": (pa.float16(), "halffloat.*cast it to float32"),
    "decimal of 40 digits": (pa.decimal256(40, 2), r"decimal256\(40, 2\).*38 digits"),
    "negative scale": (pa.decimal128(5, -2), r"decimal128\(5, -2\).*a scale from 0"),
    "months": (pa.month_day_nano_interval(), "month_day_nano_interval.*another type"),
    "string view": (pa.string_view(), "string_view.*such as a string"),
    "binary view": (pa.binary_view(), "binary_view"),
    "list view": (pa.list_view(pa.int64()), "list_view"),
    "runs": (pa.run_end_encoded(pa.int32(), pa.string()), "run_end_encoded"),
    "union": (pa.sparse_union([pa.field("a", pa.int64())]), "sparse_union"),
    "void": (pa.null(), "null.*leave it out"),
    "empty struct": (pa.struct([]), "struct<>"),
    "inside": (pa.list_(pa.struct([("t", pa.timestamp("ns"))])), r"has timestamp\[ns\] in it"),
    "key": (pa.map_(pa.uint32(), pa.string()), "has uint32 in it"),
    "words": (pa.dictionary(pa.int32(), pa.time64("ns")), r"has time64\[ns\] in it"),
}
if hasattr(pa, "uuid"):  # since pyarrow 18
    REFUSED["uuid"] = (pa.uuid(), "uuid")


@pytest.mark.parametrize(("kind", "says"), REFUSED.values(), ids=REFUSED)
def test_a_type_that_spark_does_not_read_is_refused_with_its_column(
    kind: pa.DataType, says: str
) -> None:
    schema = pa.schema([("shard", pa.string()), ("c", kind)])
    with pytest.raises(OptionError, match=rf"^the column 'c' .*{says}"):
        check_spark_reads(schema, case_sensitive=False)


def test_what_spark_has_no_type_for_is_named_by_its_column() -> None:
    with pytest.raises(OptionError, match=r"^the column 'c' is uint16, for which this version of"):
        spark_schema(pa.schema([("c", pa.uint16())]))


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("data", pa.string()), ("Data", pa.string())]),
        pa.schema([("c", pa.struct([("data", pa.string()), ("Data", pa.string())]))]),
    ],
)
def test_names_that_differ_in_case_are_two_where_the_session_says_so(schema: pa.Schema) -> None:
    check_spark_reads(schema, case_sensitive=True)
    with pytest.raises(OptionError, match="the column 'data' is there twice, as Spark compares"):
        check_spark_reads(schema, case_sensitive=False)


def test_a_query_refuses_a_column_before_anything_is_stored(
    start: Callable[..., FanOutQuery], tmp_path: Path
) -> None:
    source = ManualSource()
    source.schema = source.schema.append(pa.field("at", pa.timestamp("ns")))
    with pytest.raises(OptionError, match="the column 'at' is"):
        start(source, Recorder())
    assert not (tmp_path / "checkpoint").exists()
    assert source.trace == []


def test_sinks_write_the_large_types_that_a_session_may_hand_to_tasks() -> None:
    """So it does with `spark.sql.execution.arrow.useLargeVarTypes`."""
    header = {"key": "h", "value": b"v"}

    def row(text: pa.DataType, binary: pa.DataType, some: pa.DataType) -> pa.RecordBatch:
        columns = {
            "topic": pa.array(["orders"], text),
            "partition": pa.array([0], pa.int32()),
            "key": pa.array(["k"], text),
            "value": pa.array([b"v"], binary),
            "headers": pa.array([[header]], some),
        }
        return pa.record_batch(columns)

    def entry(text: pa.DataType, binary: pa.DataType) -> pa.RecordBatch:
        columns = {"partitionKey": pa.array(["k"], text), "data": pa.array([b"v"], binary)}
        return pa.record_batch(columns)

    small, large = (pa.string(), pa.binary()), (pa.large_string(), pa.large_binary())
    found = [
        prepare_rows(
            row(*kinds, pa.list_(pa.struct([("key", kinds[0]), ("value", kinds[1])]))),
            datetime(2026, 1, 1, tzinfo=UTC),
        )
        for kinds in (small, large)
    ]
    assert found[0].equals(found[1])
    entries = [[*make_entries(entry(*kinds))] for kinds in (small, large)]
    assert [[(one.key, one.data) for one in each] for each in entries] == [
        [(("k", None), b"v")]
    ] * 2
