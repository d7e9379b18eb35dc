"""The reader that lands a source by itself, as Spark's planner calls it, without Spark."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.serializers import CPickleSerializer
from pyspark.sql.streaming.datasource import ReadAllAvailable

from fanout.core.sentence import Sentence
from fanout.errors import (
    CheckpointError,
    FanOutError,
    OptionError,
    ServiceError,
    SplitFailedError,
    StreamStateError,
)
from fanout.landing import lander
from fanout.landing.log import landed_log
from fanout.spark.dataframe import landing_thread
from fanout.spark.dataframe.data_source import LandingDataSource
from fanout.spark.dataframe.landing_thread import LandingOptions, LandingThread
from fanout.spark.dataframe.options import ReadOptions
from fanout.spark.dataframe.source_options import LandedSource
from fanout.spark.dataframe.source_reader import SourceStreamReader
from tests.support.manual_source import SCHEMA, ManualSource
from tests.support.patience import PATIENCE
from tests.support.spark.harness import eventually, fanout_threads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from pathlib import Path

ALL = ReadAllAvailable()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(landed_log, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(landing_thread, "_ENTRY_SECONDS", 0.0)
    monkeypatch.setattr(lander, "_WAIT_FOR_LOCK", 0.0)
    yield
    assert fanout_threads() == []


@pytest.fixture
def source() -> ManualSource:
    return ManualSource()


@pytest.fixture
def planner(tmp_path: Path, source: ManualSource) -> Iterator[Callable[..., SourceStreamReader]]:
    """Make the reader of a new planner process; they end with the test."""
    made = []
    location = str(tmp_path / "landing")

    def make(**how: int) -> SourceStreamReader:
        options = ReadOptions(landing=location)
        landing = LandingOptions(location, max_wait=0.0, **how)  # type: ignore[arg-type]
        made.append(SourceStreamReader(options, SCHEMA, landing, lambda: source))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def put(source: ManualSource, first: int, last: int) -> list[int]:
    numbers = list(range(first, last + 1))
    source.put(*(b"%d" % number for number in numbers))
    return numbers


def rows(reader: SourceStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    worker = sent(reader)
    return [
        sequence
        for partition in sent(reader.partitions(start, end))
        for batch in worker.read(partition)
        for sequence in batch.column("sequence").to_pylist()
    ]


def sent(value: Any) -> Any:
    """Return what a worker gets."""
    serializer: Any = CPickleSerializer()
    return serializer.loads(serializer.dumps(value))


def read(reader: SourceStreamReader, start: dict[str, Any], count: int) -> dict[str, Any]:
    """Wait until so many records are there; return the offset after them."""
    ends = []

    def there() -> bool:
        ends.append(reader.latestOffset(start, ALL))
        return len(rows(reader, start, ends[-1])) >= count

    eventually(there, f"{count} records")
    return ends[-1]


def test_files_of_a_query_are_compressed_fast(
    planner: Callable[[], SourceStreamReader], source: ManualSource, tmp_path: Path
) -> None:
    put(source, 1, 5)
    with stopped(planner()) as reader:
        read(reader, reader.initialOffset(), 5)
    (file,) = (tmp_path / "landing" / "segments").glob("*.parquet")
    columns = pq.ParquetFile(file).metadata.row_group(0)
    assert {columns.column(n).compression for n in range(columns.num_columns)} == {"LZ4"}


def test_the_planner_lands_and_its_successor_continues(
    planner: Callable[[], SourceStreamReader], source: ManualSource
) -> None:
    before = put(source, 1, 25)
    with stopped(planner()) as first:
        start = first.initialOffset()
        middle = read(first, start, 25)
        assert rows(first, start, middle) == before
        first.commit(middle)
        during = put(source, 26, 30)
        read(first, middle, 5)
    after = put(source, 31, 40)
    with stopped(planner()) as second:
        end = read(second, middle, 15)
        assert rows(second, middle, end) == during + after
        assert rows(second, start, middle) == before


@contextmanager
def stopped(reader: SourceStreamReader) -> Iterator[SourceStreamReader]:
    """Stop a reader at the end of a block, as Spark does."""
    try:
        yield reader
    finally:
        reader.stop()


def test_the_error_of_the_source_is_raised(
    planner: Callable[[], SourceStreamReader], source: ManualSource
) -> None:
    reader = planner()
    start = reader.initialOffset()
    source.fail(ServiceError("the stream is gone"))
    raised: list[FanOutError] = []

    def fails() -> bool:
        try:
            reader.latestOffset(start, ALL)
        except FanOutError as error:
            raised.append(error)
        return bool(raised)

    eventually(fails, "the error")
    assert isinstance(raised[0], SplitFailedError)
    assert "the stream is gone" in str(raised[0])
    with pytest.raises(SplitFailedError):
        reader.commit(start)


@pytest.mark.parametrize("given", ["as options", "as a value"])
def test_the_error_of_the_source_has_the_words_of_the_user(
    given: str, source: ManualSource, tmp_path: Path
) -> None:
    landed = parse(landing=str(tmp_path / "landing"), maxWait="0")
    expected = "check endpointUrl, or failOnDataLoss=false goes on"
    if given == "as a value":
        landed = LandedSource.parse({"landing": str(tmp_path / "landing")}, source)  # type: ignore[assignment]
        expected = "check endpoint_url, or on_data_loss='earliest' goes on"
    reader = SourceStreamReader(landed.reading, SCHEMA, landed.landing, lambda: source)
    with stopped(reader):
        start = reader.initialOffset()
        said = Sentence.of("check {endpoint_url}, or {on_data_loss='earliest'} goes on")
        source.fail(ServiceError(said))
        eventually(lambda: fails(lambda: reader.latestOffset(start, ALL)), "the error")
        with pytest.raises(SplitFailedError) as raised:
            reader.commit(start)
    assert expected in str(raised.value)


def fails(call: Callable[[], object]) -> bool:
    try:
        call()
    except FanOutError:
        return True
    return False


def test_a_landing_that_cannot_be_used_is_an_error_at_once(
    planner: Callable[[], SourceStreamReader], tmp_path: Path
) -> None:
    (tmp_path / "landing").write_text("a file")
    with pytest.raises(CheckpointError, match="cannot"):
        planner().initialOffset()


def test_a_spark_that_does_not_tell_of_its_triggers_is_named_in_the_log(
    planner: Callable[[], SourceStreamReader], caplog: pytest.LogCaptureFixture
) -> None:
    """Spark 4.0 and 4.1 pass no start."""
    reader = planner()
    start = reader.initialOffset()
    reader.latestOffset(start, ALL)
    assert caplog.messages == []
    for _ in range(2):
        reader.latestOffset()
    (message,) = caplog.messages
    assert message == (
        f"pyspark {pyspark.__version__} does not tell fanout of Trigger.AvailableNow: a query with "
        "it reads what earlier ones have landed; use another trigger, or pyspark 4.2 or newer"
    )


def test_of_two_planners_one_lands(planner: Callable[[], SourceStreamReader]) -> None:
    planner().initialOffset()
    with pytest.raises(CheckpointError, match="process"):
        planner().initialOffset()


def test_a_run_of_what_is_available_waits_until_it_is_landed(
    planner: Callable[[], SourceStreamReader], source: ManualSource
) -> None:
    expected = put(source, 1, 25)
    reader = planner()
    reader.prepareForTriggerAvailableNow()
    start = offset = reader.initialOffset()
    while (end := reader.latestOffset(offset, ALL)) != offset:
        offset = end
    assert rows(reader, start, offset) == expected
    assert source.available_now[-1] is True
    report = reader.reportLatestOffset() or {}
    assert (report["recordsLanded"], report["landingPaused"]) == (25, False)


def test_workers_have_no_source(planner: Callable[[], SourceStreamReader]) -> None:
    reader = planner()
    reader.initialOffset()
    worker = sent(reader)
    assert worker._thread is None
    assert worker._make_source is None


class FakeLanding:
    """Entries of ten bytes, as many as are asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def __aiter__(self) -> FakeLanding:
        return self

    async def __anext__(self) -> Any:
        self.asked += 1
        return type("Entry", (), {"number": self.asked, "bytes": 10})


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeLanding:
    """Let sources be landed by a fake."""
    fake = FakeLanding()

    @asynccontextmanager
    async def land(*_: object, **__: object) -> AsyncIterator[FakeLanding]:
        yield fake

    monkeypatch.setattr(landing_thread, "land", land)
    return fake


def test_an_entry_grows_until_the_query_looks_for_it(
    monkeypatch: pytest.MonkeyPatch, fake: FakeLanding
) -> None:
    monkeypatch.setattr(landing_thread, "_ENTRY_SECONDS", 60.0)
    thread = LandingThread(
        ManualSource(), LandingOptions("anywhere", max_wait=0.0), available_now=False
    )
    thread.start()
    try:
        for entries in (1, 2, 3):
            eventually(lambda entries=entries: fake.asked == entries, f"{entries} entries")  # type: ignore[misc]
            settle(thread)
            assert fake.asked == entries
            thread.look_for_records()
    finally:
        assert thread.stop()


def test_a_query_gets_what_has_arrived(
    monkeypatch: pytest.MonkeyPatch,
    planner: Callable[..., SourceStreamReader],
    source: ManualSource,
) -> None:
    """Each look for an offset finds it: the query would begin a batch without it otherwise."""
    monkeypatch.setattr(landing_thread, "_ENTRY_SECONDS", 60.0)
    monkeypatch.setattr(landing_thread, "_ARRIVED_SECONDS", 60.0)
    reader = planner()
    end = reader.initialOffset()
    for number in (1, 2, 3):
        start, expected = end, put(source, number, number)
        end = reader.latestOffset(start, ALL)
        assert rows(reader, start, end) == expected


def test_what_is_available_is_landed_without_pauses(
    monkeypatch: pytest.MonkeyPatch, fake: FakeLanding
) -> None:
    monkeypatch.setattr(landing_thread, "_ENTRY_SECONDS", 60.0)
    options = LandingOptions("anywhere", max_bytes_ahead=30)
    thread = LandingThread(ManualSource(), options, available_now=True)
    thread.start()
    try:
        eventually(lambda: fake.asked == 4, "4 entries")
    finally:
        assert thread.stop()


def test_a_planner_stops_quietly_in_the_moment_in_which_its_landing_ends(
    planner: Callable[[], SourceStreamReader],
    source: ManualSource,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed, go_on = threading.Event(), threading.Event()

    def run(landing: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner() as runner:
            runner.run(landing)
        closed.set()
        go_on.wait(PATIENCE)

    monkeypatch.setattr(asyncio, "run", run)
    put(source, 1, 3)
    reader = planner()
    reader.prepareForTriggerAvailableNow()
    read(reader, reader.initialOffset(), 3)
    assert closed.wait(PATIENCE)
    landing = reader._thread
    assert landing is not None
    with monkeypatch.context() as impatient:
        impatient.setattr(landing_thread, "_STOP_SECONDS", 0.0)
        assert not landing.stop()  # Spark has it called by a signal, and would show what it raises
    go_on.set()
    assert landing.stop()


def test_a_query_that_lands_keeps_no_log_of_all_files(
    planner: Callable[..., SourceStreamReader], source: ManualSource, tmp_path: Path
) -> None:
    """It would have a line for each file, in memory too."""
    reader = planner()
    start = reader.initialOffset()
    put(source, 1, 5)
    read(reader, start, 5)
    assert not (tmp_path / "landing" / "segments" / "_spark_metadata").exists()


def test_the_progress_of_the_landing_is_reported(
    planner: Callable[..., SourceStreamReader], source: ManualSource
) -> None:
    """The query may be at the end of the landing, and that hours behind the service."""
    reader = planner(max_bytes_ahead=1)
    names = ("entriesBehind", "recordsLanded", "sourceMillisBehind", "landingPaused")

    def reported() -> tuple[object, ...]:
        found = reader.reportLatestOffset() or {}
        return tuple(found.get(name) for name in names)

    start = reader.initialOffset()
    source.lag = 3_600.5
    put(source, 1, 5)
    end = read(reader, start, 5)
    eventually(lambda: reported() == (0, 5, 3_600_500, True), "a landing that waits")
    source.lag = 0.0
    put(source, 6, 10)
    reader.commit(end)
    eventually(lambda: reported() == (1, 10, 0, True), "a landing that went on")
    reader.commit(read(reader, end, 5))
    eventually(lambda: reported() == (0, 10, 0, False), "a landing that waits for nothing")


def test_the_landing_waits_for_a_query_that_is_behind(fake: FakeLanding) -> None:
    options = LandingOptions("anywhere", max_bytes_ahead=30)
    thread = LandingThread(ManualSource(), options, available_now=False)
    thread.start()
    try:
        thread.needed_from(-2, {-2: 5, -1: 5})
        for needed, asked in ((0, 4), (1, 4), (3, 6), (4, 7)):
            thread.needed_from(needed)
            eventually(lambda asked=asked: fake.asked == asked, f"{asked} entries")  # type: ignore[misc]
            settle(thread)
            assert fake.asked == asked
    finally:
        assert thread.stop()


@pytest.mark.parametrize("end", [SystemExit(1), GeneratorExit()])
def test_a_function_of_the_source_that_ends_its_thread_ends_the_landing_with_an_error(
    source: ManualSource, tmp_path: Path, end: Any
) -> None:
    thread = LandingThread(source, LandingOptions(str(tmp_path)), available_now=False)
    thread.start()
    source.fail(end)
    with pytest.raises(StreamStateError, match=f"raised {type(end).__name__}") as e:
        thread.wait_for_entry(1)
    assert e.value.__cause__ is not None
    assert thread.stop()


def test_an_entry_that_was_read_at_once_is_not_waited_for(fake: FakeLanding) -> None:
    """A query finds it in the storage, maybe before the landing yields it."""
    options = LandingOptions("anywhere", max_bytes_ahead=5)
    thread = LandingThread(ManualSource(), options, available_now=False)
    thread.start()
    try:
        thread.needed_from(4)
        eventually(lambda: fake.asked == 4, "4 entries")
        settle(thread)
        assert fake.asked == 4
    finally:
        assert thread.stop()


def test_what_a_batch_has_read_is_not_waited_for(
    planner: Callable[..., SourceStreamReader], source: ManualSource
) -> None:
    """Spark commits the last batch when the next one has records, so that may never be."""
    reader = planner(max_bytes_ahead=1)
    start = reader.initialOffset()
    put(source, 1, 5)
    middle = read(reader, start, 5)
    during = put(source, 6, 10)
    assert rows(reader, middle, read(reader, middle, 5)) == during


def test_what_earlier_runs_landed_is_ahead_too(
    planner: Callable[..., SourceStreamReader], source: ManualSource
) -> None:
    with stopped(planner()) as first:
        start = first.initialOffset()
        put(source, 1, 5)
        read(first, start, 5)
    second = planner()
    second.latestOffset(start, ALL)
    settle(second._landed)
    assert sum(second._landed._unread.values()) > 0


def settle(thread: LandingThread) -> None:
    """Let the loop of the thread do all that it can do at once."""
    assert thread._loop is not None
    for _ in range(50):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), thread._loop).result(10)


def test_a_wait_ends_when_spark_is_gone(
    monkeypatch: pytest.MonkeyPatch, planner: Callable[[], SourceStreamReader]
) -> None:
    monkeypatch.setattr(landing_thread, "_LOOK_SECONDS", 0.01)
    reader = planner()
    reader.initialOffset()
    monkeypatch.setattr(os, "getppid", lambda: 1)
    with pytest.raises(SystemExit):
        reader._landed.wait_for_entry(1000)


@pytest.mark.long
def test_a_planner_that_is_terminated_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from tests.spark.dataframe.test_source_reader import *\n"
        "landing = LandingOptions(sys.argv[1], max_wait=0.0)\n"
        "options = ReadOptions(landing=sys.argv[1])\n"
        "reader = SourceStreamReader(options, SCHEMA, landing, ManualSource)\n"
        "reader.initialOffset(); print('ready', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "landing")]
    with subprocess.Popen(  # noqa: S603 - our own interpreter and module
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (128 + signal.SIGTERM, "")
    assert not list((tmp_path / "landing" / "_scratch").iterdir())


@pytest.mark.long
def test_an_error_is_told_although_a_thread_of_the_landing_does_not_end(tmp_path: Path) -> None:
    """Spark's runner calls `stop` before it reports the error."""
    code = (
        "import sys, threading; from tests.spark.dataframe.test_source_reader import *\n"
        "from fanout.core.cancellation import in_thread\n"
        "from fanout.spark.dataframe import source_reader\n"
        "landing_thread._STOP_SECONDS, source_reader._TELL_SECONDS = 0.1, 1.0\n"
        "async def hang(_): await in_thread(threading.Event().wait)\n"
        "lander.Landing._watch = lambda *_: hang(_)\n"
        "landing = LandingOptions(sys.argv[1], max_wait=0.0)\n"
        "options = ReadOptions(landing=sys.argv[1])\n"
        "reader = SourceStreamReader(options, SCHEMA, landing, ManualSource)\n"
        "reader.initialOffset(); reader.stop(); print('told', flush=True)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "landing")]
    ended = subprocess.run(  # noqa: S603 - our own interpreter and module
        command, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "told\n", "")


def parse(**options: str) -> LandedSource:
    kinesis = {"source": "kinesis", "stream": "orders", "consumer": "etl", "landing": "/lake"}
    landed = LandedSource.parse(kinesis | {name.lower(): options[name] for name in options}, None)
    assert landed is not None
    return landed


def test_options_say_how_it_is_landed() -> None:
    landed = parse(reader="etl", keep="30d", maxWait="2.5", maxBytesAhead="1000")
    assert (landed.landing.keep.days, landed.landing.max_wait) == (30, 2.5)  # type: ignore[union-attr]
    assert landed.landing.max_bytes_ahead == 1000
    assert landed.reading.reader == "etl"
    assert landed.make().schema.names[0] == "partitionKey"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"keep": "30d"}, "keep deletes what was landed longer ago: name the query with the"),
        ({"keep": "soon", "reader": "etl"}, "keep='soon' must be an age such as 90m, 12h, 7d or"),
        ({"maxWait": "-1"}, "maxWait=-1 must be 0 to 3600 seconds"),
        ({"maxWait": "nan"}, "maxWait=nan must be 0 to 3600 seconds"),
        ({"maxBytesAhead": "0"}, "maxBytesAhead=0 must be at least 1"),
        ({"readr": "etl"}, "the option 'readr' is not known; did you mean 'reader'?"),
        ({"maxRecordsPerTriger": "1"}, "did you mean 'maxRecordsPerTrigger'?"),
        ({"storage.secret_access_key": "x"}, "storage.secret_access_key would show a secret"),
    ],
)
def test_a_mistake_is_named(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError) as refused:
        parse(**options).make()
    assert sentence in str(refused.value)


def test_a_batch_read_has_no_source() -> None:
    with pytest.raises(OptionError, match=r"source is an option of spark\.readStream"):
        LandingDataSource({"source": "kinesis", "landing": "/lake"}).reader(None)  # type: ignore[arg-type]
