"""Spark's own file source reads a landing: batch, SQL and streams; nothing of it knows fanout."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fanout.errors import SetupError
from fanout.landers.land import land
from fanout.landing.retention import Retention
from fanout.testing.s3_clients import BUCKET
from fanout.testing.s3_server import serve_s3
from tests.jars.fetch import s3a_set
from tests.support.commands import ENVIRONMENT, FANOUT
from tests.support.manual_source import SCHEMA as COLUMNS
from tests.support.manual_source import ManualSource
from tests.support.s3 import s3_options
from tests.support.shaped_source import ShapedSource
from tests.support.timed_source import DAY, TimedSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from fanout.kinesis import KinesisSource
    from fanout.testing.kinesis.server import KinesisServer

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "landing.md").read_text()
_, BATCH, STREAM, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SCHEMA = "shard string, sequence long, data binary"


class Landed:
    """A landing that a test fills, and what Spark reads there."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.location = str(root / "landing")
        self.segments = f"{self.location}/segments"
        self.source = ManualSource()
        self.options: dict[str, Any] = {}
        self.batches: list[list[int]] = []
        self._count = 0

    def land(self, entries: int) -> None:
        """Start a run, and land as many entries of three records."""
        asyncio.run(self._land(entries))

    async def _land(self, entries: int) -> None:
        async with land(self.source, self.location, max_wait=0.0, **self.options) as landing:
            for _ in range(entries):
                numbers = range(self._count, self._count + 3)
                self._count += 3
                self.source.put(*(b"%d" % number for number in numbers))
                await anext(landing)

    def orphan(self) -> None:
        """Put a file beside the others that no entry names, as a killed run does."""
        segments = Path(self.segments)
        (first, *_) = sorted(segments.glob("*.parquet"))
        table = pq.read_table(first)
        pq.write_table(table, segments / "run-000999-00000001.parquet")

    def batch(self) -> list[int]:
        return numbers(self.spark.read.schema(SCHEMA).parquet(self.segments))

    def sql(self, query: str) -> DataFrame:
        """Run a query that names the files `parquet.`."""
        return self.spark.sql(query.replace("parquet.", f"parquet.`{self.segments}`"))

    def stream(self, **options: Any) -> list[int]:
        """Run a stream until it has read what is there; return what all its runs have read."""
        files = self.spark.readStream.schema(SCHEMA).options(**options).parquet(self.segments)

        def remember(df: DataFrame, _: int) -> None:
            self.batches.append(numbers(df))

        query = (
            files.writeStream.foreachBatch(remember)
            .option("checkpointLocation", str(self.root / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [number for batch in self.batches for number in batch]


def numbers(df: DataFrame) -> list[int]:
    """Return the numbers that are the data of records."""
    return sorted(int(row.data) for row in df.select("data").collect())


@pytest.fixture
def landed(spark: SparkSession, tmp_path: Path) -> Landed:
    return Landed(spark, tmp_path)


def test_spark_reads_the_files_of_entries_alone(landed: Landed, spark: SparkSession) -> None:
    """By each of its ways, also after files of the log that repeat all lines."""
    landed.land(5)
    landed.orphan()
    assert landed.batch() == [*range(15)]
    assert landed.stream() == [*range(15)]
    landed.land(20)
    landed.orphan()
    assert spark.read.parquet(landed.segments).count() == 75
    (row,) = landed.sql("SELECT count(*), max(sequence) FROM parquet.").collect()
    assert tuple(row) == (75, 75)
    assert landed.stream(maxFilesPerTrigger=8) == [*range(75)]
    # Files come in the order of entries.
    assert [len(batch) for batch in landed.batches] == [15, 24, 24, 12]
    spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "3")
    try:
        assert landed.batch() == [*range(75)]
    finally:
        spark.conf.unset("spark.sql.streaming.fileSink.log.compactInterval")


def test_the_directory_above_is_no_table(landed: Landed, spark: SparkSession) -> None:
    landed.land(1)
    with pytest.raises(Exception, match=r"[Uu]nable to infer schema|not a Parquet file"):
        spark.read.parquet(str(Path(landed.segments).parent))


@pytest.mark.long
def test_files_that_are_too_old_leave_before_they_are_deleted(
    landed: Landed, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed.options = {"keep": timedelta(hours=1)}
    landed.land(6)
    assert landed.stream(maxFilesPerTrigger=5) == [*range(18)]
    landed.land(3)
    now = Retention.now()
    monkeypatch.setattr(Retention, "now", staticmethod(lambda: now + 3_601_000))
    landed.land(2)
    assert landed.batch() == [*range(27, 33)]
    # The stream is behind, and misses what has left the log: Spark's file source says nothing.
    assert landed.stream() == [*range(18), *range(27, 33)]


@pytest.mark.long
def test_directories_by_date_are_a_column(landed: Landed) -> None:
    landed.source = TimedSource()
    landed.options = {"partition_by_date": "time"}
    landed._count = 2 * DAY - 1
    landed.land(1)
    days = landed.sql("SELECT date, count(*) AS n FROM parquet. GROUP BY 1 ORDER BY 1").collect()
    assert [(str(row.date), row.n) for row in days] == [("1970-01-02", 1), ("1970-01-03", 2)]
    assert landed.stream() == [*range(2 * DAY - 1, 2 * DAY + 2)]


TEXTS = [
    "DE", "a/b", "50%", "a%2Fb", "x=y", "ü 日本 😀", " sp ace ", "q\"'`", "007", "#?&+;",
    "~|<>@$,!", "{[^]}\\*:", "a\tb\n\x00", ".", "null", "e\u0301", "x" * 240, None, "true",
]  # fmt: skip


@pytest.mark.long
def test_directories_by_values_are_read_as_they_were_landed(
    landed: Landed, spark: SparkSession
) -> None:
    """Each reader has each value, also where a directory's name escapes it."""
    schema = pa.schema([*COLUMNS, ("text", pa.string()), ("time", pa.timestamp("us", "UTC"))])
    landed.source = ShapedSource(
        schema,
        text=lambda data: TEXTS[int(data) % len(TEXTS)],
        time=lambda data: int(data) % 3 * DAY * 1000,
    )
    landed.options = {"partition_by": ["text", "day(time)"]}
    landed.land(2 * len(TEXTS))
    wanted = [TEXTS[number % len(TEXTS)] for number in range(6 * len(TEXTS))]

    def texts(df: DataFrame) -> list[str | None]:
        return [row.text for row in df.orderBy("sequence").collect()]

    columns = f"{SCHEMA}, text string, time timestamp, time_day date"
    assert texts(spark.read.schema(columns).parquet(landed.segments)) == wanted
    assert texts(spark.read.parquet(landed.segments)) == wanted
    if spark.version >= "4":  # the first one with data sources in Python
        framed = spark.read.format("fanout").option("landing", landed.location).load()
        assert texts(framed) == wanted
    assert landed.stream() == [*range(6 * len(TEXTS))]
    days = landed.sql("SELECT count(*) AS n FROM parquet. WHERE time_day = DATE '1970-01-02'")
    assert days.collect()[0].n == 2 * len(TEXTS)


@pytest.mark.long
def test_spark_guesses_the_types_of_directories(landed: Landed, spark: SparkSession) -> None:
    """As docs/landing.md says: a schema keeps a text of digits alone."""
    landed.source = ShapedSource(pa.schema([*COLUMNS, ("text", pa.string())]), text="007")
    landed.options = {"partition_by": "text"}
    landed.land(1)
    assert {row.text for row in spark.read.parquet(landed.segments).collect()} == {7}
    named = spark.read.schema(f"{SCHEMA}, text string").parquet(landed.segments)
    assert {row.text for row in named.collect()} == {"007"}
    setting = "spark.sql.sources.partitionColumnTypeInference.enabled"
    spark.conf.set(setting, "false")
    try:
        assert {row.text for row in spark.read.parquet(landed.segments).collect()} == {"007"}
    finally:
        spark.conf.unset(setting)


@pytest.mark.long
def test_columns_that_were_added_are_null_before(landed: Landed, spark: SparkSession) -> None:
    """A stream that began before reads on, and one with the new columns reads all."""
    landed.land(2)
    assert landed.stream() == [*range(6)]
    landed.source = ShapedSource(pa.schema([("note", pa.string()), *COLUMNS]), note="new")
    landed.source.put(*(b"%d" % number for number in range(6)))
    landed.land(2)
    assert landed.stream() == landed.batch() == [*range(12)]
    expected = [(None, 6), ("new", 6)]
    named = spark.read.schema(f"note string, {SCHEMA}")
    for reader in (named, spark.read.option("mergeSchema", "true")):
        rows = reader.parquet(landed.segments).groupBy("note").count().orderBy("note").collect()
        assert [tuple(row) for row in rows] == expected


@pytest.mark.long
def test_the_examples_of_the_page_read_it(
    landed: Landed,
    spark: SparkSession,
    orders: KinesisSource,
    kinesis: KinesisServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kinesis.put_records("orders", ((str(number), b"%d" % number) for number in range(20)))
    location = str(landed.root / "orders")

    async def land_all() -> None:
        async with land(orders, location, available_now=True) as landing:
            async for _ in landing:
                pass

    asyncio.run(land_all())
    copy = str(landed.root / "copy")
    checkpoint = str(landed.root / "checkpoint")
    names = {"spark": spark, "LOCATION": location, "CHECKPOINT": checkpoint, "COPY": copy}
    try:
        exec(BATCH, names)  # noqa: S102 - the page is ours
        assert "shardId-000000000000" in capsys.readouterr().out
        exec(STREAM, names)  # noqa: S102 - the page is ours
    finally:
        spark.sql("DROP TABLE IF EXISTS orders")
    assert numbers(spark.read.parquet(copy)) == [*range(20)]


class Command:
    """`fanout land`, which is killed again and again while a stream grows."""

    def __init__(self, server: KinesisServer, location: Path, records: int) -> None:
        self._server = server
        self._command = ["land", "kinesis://orders", str(location), "--max-records", "400"]
        self.records = records

    def put(self) -> None:
        for first in range(0, self.records, 500):
            group = range(first, first + 500)
            self._server.put_records("orders", ((str(n), b"%d" % n) for n in group))

    @contextmanager
    def _running(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(  # noqa: S603 - our own code
            [*FANOUT, *self._command, *options],
            env=ENVIRONMENT | self._server.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def killed_after(self, lines: int) -> None:
        """Kill it when it has landed as many files."""
        with self._running("--json", "--max-wait", "0.2") as process:
            assert process.stdout is not None
            for line in itertools.islice(process.stdout, lines):
                assert json.loads(line)["rows"]
            process.send_signal(signal.SIGKILL)

    def finish(self) -> None:
        with self._running("--available-now") as process:
            _, stderr = process.communicate()
            assert (process.returncode, stderr) == (0, "")


@pytest.mark.prove
@pytest.mark.timeout(300)
def test_each_record_is_read_once_while_the_lander_is_killed(
    spark: SparkSession, kinesis: KinesisServer, tmp_path: Path
) -> None:
    command = Command(kinesis, tmp_path / "landing", 20_000)
    segments = str(tmp_path / "landing" / "segments")
    command.killed_after(0)
    putting = threading.Thread(target=command.put)
    putting.start()
    command.killed_after(1)
    read: Counter[int] = Counter()
    schema = spark.read.parquet(segments).schema
    query = (
        spark.readStream.schema(schema)
        .option("maxFilesPerTrigger", 7)
        .parquet(segments)
        .writeStream.foreachBatch(lambda df, _: read.update(numbers(df)))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        for lines in (3, 1, 11, 2, 7):
            command.killed_after(lines)
            assert query.exception() is None
        putting.join()
        command.finish()
        query.processAllAvailable()
    finally:
        query.stop()
    assert read == Counter(range(command.records))
    assert numbers(spark.read.parquet(segments)) == [*range(command.records)]


@pytest.mark.prove
@pytest.mark.timeout(300)
def test_spark_reads_a_bucket_by_s3a(jars: Callable[[str], list[Path]]) -> None:
    try:
        jars(s3a_set())
    except SetupError as error:  # for the oldest pyspark
        pytest.skip(str(error))
    name = uuid.uuid4().hex
    source = ManualSource()

    async def land_some(endpoint: str) -> None:
        options = s3_options(endpoint)
        location = f"s3://{BUCKET}/{name}"
        async with land(source, location, max_wait=0.0, storage_options=options) as landing:
            for number in range(25):
                source.put(b"%d" % number)
                await anext(landing)

    with serve_s3() as endpoint:
        asyncio.run(land_some(endpoint))
        done = subprocess.run(  # noqa: S603 - our own code
            [sys.executable, "-m", "tests.spark.landed_files_on_s3", endpoint, f"{BUCKET}/{name}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "batch": [*range(25)],
        "stream": [*range(25)],
    }
