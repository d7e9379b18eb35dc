"""Run one batch of a handover without a stream and without a query."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import functions as sf

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.drain import Drained
from fanout.core.events import Batch, Split
from fanout.core.positions import Cursor, Range
from fanout.errors import (
    BatchFailedError,
    BatchNotWrittenError,
    CheckpointError,
    FencedError,
    OptionError,
    ServiceError,
    SetupError,
    StreamStateError,
    UnwritableRecordError,
)
from fanout.landing.claims import claim
from fanout.landing.log.entries import BatchEntry, TakenSegments
from fanout.landing.log.ledger import BatchLedger
from fanout.landing.log.set_aside import SetAsideLog, count_set_aside, newest_set_aside
from fanout.landing.segments.segment_filler import NoRecords, Stopped
from fanout.landing.segments.segments import Filled, SegmentLog
from fanout.spark.hadoop.jvm_lock import JvmProcess
from fanout.spark.hadoop.storage import open_storage
from fanout.spark.query.batch_context import BatchContext, current_batch
from fanout.spark.query.batch_runner import BatchResult, BatchRunner
from fanout.spark.query.failed_batches import FailedBatches
from fanout.spark.query.query_stream import PendingBatch
from fanout.spark.workers.loop_thread import LoopThread
from tests.support.manual_source import SCHEMA, records_of
from tests.support.spark.harness import Recorder, fail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from fanout.landing.claims import Ownership
    from fanout.landing.segments.segment_filler import FillResult
    from fanout.landing.storage.storage import Storage
    from fanout.spark.query.batch_runner import Handler
    from fanout.spark.query.failed_batches import OnFailedBatch
    from fanout.spark.query.query_stream import BatchContent

pytestmark = pytest.mark.spark

QUERY = "9c1d3a52-query"
SPLIT = Split("a")


def at(sequence: int) -> Checkpoint:
    state = SplitPosition(SPLIT, Cursor(sequence))
    return Checkpoint("manual:one", MappingProxyType({SPLIT.id: state}))


class Bench:
    """A runner whose handovers are laid out in advance; acknowledgements are kept."""

    def __init__(self, spark: SparkSession, storage: Storage, ownership: Ownership) -> None:
        self.spark = spark
        self.storage = storage
        self.ownership = ownership
        self.ledger = BatchLedger(storage, ownership)
        self.log = SegmentLog(storage.scratch(), 1, SCHEMA, max_records=100, max_bytes=1 << 20)
        self.acknowledged: list[Checkpoint] = []
        self.set_aside = SetAsideLog(storage, ownership)
        self.on_failed_batch: OnFailedBatch | None = None
        self.stopped = False
        loop = LoopThread()
        self.context = lambda entry: BatchContext(
            entry.batch_id, entry.query_id, storage, ownership, loop, watermark=entry.watermark
        )

    def first_entry(self) -> BatchEntry:
        entry = self.ledger.look_up(0)
        assert entry is not None
        return entry

    def again(self) -> Bench:
        """Read the checkpoint as the next run does."""
        return Bench(self.spark, self.storage, self.ownership)

    def run(
        self, batch_id: int, handover: BatchContent, handler: Handler, schema: pa.Schema = SCHEMA
    ) -> BatchResult:
        runner = BatchRunner(
            self.spark,
            schema,
            handler,
            storage=self.storage,
            ledger=self.ledger,
            context=self.context,
            take=lambda _: handover,
            failed=FailedBatches(self.on_failed_batch, self.set_aside),
            acknowledge=self.acknowledged.append,
        )
        return runner.run(batch_id, QUERY, lambda: self.stopped)

    def filled(self, *data: bytes, after: int = 0) -> Filled:
        segment, until = self.log.open(), after + len(data)
        batch = Batch(SPLIT, records_of(SPLIT, data, after), Range(Cursor(after), Cursor(until)))
        segment.add(Drained((batch,), at(until)))
        return Filled(segment, at(until))


@pytest.fixture
def bench(spark: SparkSession, checkpoint: str) -> Iterator[Bench]:
    storage = open_storage(spark, checkpoint)
    with claim(storage, JvmProcess(spark)) as ownership:
        yield Bench(spark, storage, ownership)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_records_are_stored_acknowledged_and_handled(bench: Bench, recorder: Recorder) -> None:
    result = bench.run(0, bench.filled(b"one", b"two"), recorder)
    assert recorder.sequences == [1, 2]
    assert (result.batch_id, result.rows, result.finished) == (0, 2, False)
    (segment,) = bench.first_entry().segments
    assert result.bytes == bench.storage.size(segment.name)
    assert bench.first_entry().positions == at(2)
    assert bench.acknowledged == [at(2)]


def test_records_are_acknowledged_after_their_handler_has_returned(
    bench: Bench,
) -> None:
    def handler(_: object, __: int) -> None:
        assert bench.acknowledged == []

    with pytest.raises(BatchFailedError):
        bench.run(0, bench.filled(b"one"), fail)
    assert bench.acknowledged == []
    bench.run(0, bench.filled(b"other"), handler)
    assert bench.acknowledged == [at(1)]


@pytest.mark.long
def test_a_handler_that_failed_leaves_its_batch_to_a_replay(
    bench: Bench, recorder: Recorder
) -> None:
    with pytest.raises(BatchFailedError):
        bench.run(0, bench.filled(b"one", b"two"), fail)
    bench.run(0, bench.filled(b"other"), recorder)
    assert recorder.sequences == [1, 2]


def read_a_broken_file(df: DataFrame, directory: Path) -> None:
    (directory / "broken.parquet").write_bytes(b"no file of Parquet")
    df.sparkSession.read.schema("id long").parquet(str(directory)).collect()


def fail_in_a_worker(df: DataFrame, _: Path) -> None:
    def refuse(_: object) -> None:
        raise ValueError("no such country")

    df.foreach(refuse)


def ask_for_a_missing_column(df: DataFrame, _: Path) -> None:
    df.select("country").collect()


# Spark 3.5 has the cause in its own sentence, which names the file once.
BROKEN = (
    "SparkException: .*RuntimeException: .*broken.parquet is not a Parquet file"
    if pyspark.__version__.startswith("3.")
    else "SparkException: .*broken.parquet.*; caused by .* not a Parquet file"
)


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (read_a_broken_file, BROKEN),
        (fail_in_a_worker, "ValueError: no such country"),
        (ask_for_a_missing_column, "country"),
    ],
)
def test_what_spark_says_about_a_handler_is_one_line(
    bench: Bench, tmp_path: Path, use: Callable[[DataFrame, Path], None], says: str
) -> None:
    with pytest.raises(BatchFailedError, match=f"^the handler raised .* in batch 0: .*{says}") as e:
        bench.run(0, bench.filled(b"one"), lambda df, _: use(df, tmp_path))
    assert "\n" not in str(e.value)
    assert "\tat " not in str(e.value)


@pytest.mark.long
def test_a_batch_is_not_replayed_with_other_columns_than_it_has(bench: Bench) -> None:
    with pytest.raises(BatchFailedError):
        bench.run(0, bench.filled(b"one"), fail)
    added = SCHEMA.append(pa.field("added", pa.int64()))
    for schema, names in ((added, "added"), (SCHEMA.remove(0), SCHEMA.names[0])):
        with pytest.raises(CheckpointError, match=f"differs from .* by the columns {names}; .*"):
            bench.run(0, Stopped(), fail, schema)


def test_acquired_records_of_several_segments_are_one_batch_for_ever(
    bench: Bench, recorder: Recorder
) -> None:
    pending = [bench.ledger.pending.keep(bench.filled(b"x", b"y"), "") for _ in range(3)]
    with pytest.raises(BatchFailedError):
        bench.run(0, PendingBatch(tuple(pending[:2])), fail)
    result = bench.run(0, PendingBatch(tuple(pending)), recorder)
    assert recorder.sequences == [1, 1, 2, 2]
    assert result.rows == 4
    assert result.bytes == sum(one.segment.size for one in pending[:2])
    bench.run(1, Stopped(), recorder)
    bench.run(2, NoRecords(at(2)), recorder)
    newest = bench.ledger.newest
    assert newest is not None
    assert newest.taken == TakenSegments(2, "")
    later = bench.again()
    assert later.ledger.pending.left == (pending[2],)
    later.run(3, PendingBatch(later.ledger.pending.left), recorder)
    assert recorder.batch_ids == [0, 3]
    assert bench.again().ledger.pending.left == ()


def test_a_batch_of_several_segments_ends_where_the_last_one_does(
    bench: Bench, recorder: Recorder
) -> None:
    filled = [bench.filled(b"x", b"y", after=after) for after in (0, 2, 4)]
    pending = [bench.ledger.pending.keep(each, "") for each in filled]
    bench.run(0, PendingBatch(tuple(pending[:2])), recorder)
    assert bench.first_entry().positions == at(4)
    assert bench.acknowledged == [at(4)]
    later = bench.again()
    assert later.ledger.positions() == at(4)
    later.run(1, PendingBatch(later.ledger.pending.left), recorder)
    assert bench.again().ledger.positions() == at(6)
    assert recorder.sequences == [1, 2, 3, 4, 5, 6]


@pytest.mark.long
def test_rows_are_in_the_order_of_their_segments_although_a_later_one_is_larger(
    bench: Bench,
) -> None:
    """Sinks number the rows of a batch so."""
    small, large = bench.filled(b"x"), bench.filled(*[bytes(200)] * 50, after=1)
    pending = tuple(bench.ledger.pending.keep(each, "") for each in (small, large))
    seen: list[int] = []

    def handle(df: DataFrame, _: int) -> None:
        numbered = df.select("sequence", sf.monotonically_increasing_id().alias("number"))
        seen.extend(row.sequence for row in numbered.sort("number").collect())

    bench.run(0, PendingBatch(pending), handle)
    assert seen == list(range(1, 52))


@pytest.mark.long
def test_what_an_earlier_run_has_left_pending_is_read_whole_before_it_is_handled(
    bench: Bench, recorder: Recorder
) -> None:
    pending = bench.ledger.pending.keep(bench.filled(b"one", b"two"), "")
    path = Path(bench.storage.location) / pending.segment.name
    data = path.read_bytes()
    later = bench.again()
    path.write_bytes(data.replace(b"two", b"2wo"))
    with pytest.raises(
        CheckpointError, match="cannot be read; if it is damaged, restore this file"
    ):
        later.run(0, PendingBatch(later.ledger.pending.left), recorder)
    path.unlink()
    with pytest.raises(CheckpointError, match="is missing; restore this file"):
        later.run(0, PendingBatch(later.ledger.pending.left), recorder)
    assert later.ledger.newest is None
    path.write_bytes(data)
    later.run(0, PendingBatch(later.ledger.pending.left), recorder)
    assert recorder.sequences == [1, 2]


@pytest.mark.parametrize("finished", [False, True])
def test_idle_progress_is_stored(bench: Bench, recorder: Recorder, finished: bool) -> None:  # noqa: FBT001 - a parameter of the test
    assert bench.run(0, NoRecords(at(3), finished), recorder) == BatchResult(0, finished=finished)
    assert bench.first_entry() == BatchEntry(0, QUERY, (), at(3))
    assert bench.acknowledged == [at(3)]
    assert recorder.calls == []


def test_a_batch_without_any_progress_has_an_entry_too(bench: Bench, recorder: Recorder) -> None:
    bench.run(0, bench.filled(b"one"), recorder)
    assert bench.run(1, NoRecords(at(1), finished=True), recorder) == BatchResult(1, finished=True)
    assert bench.ledger.newest == BatchEntry(1, QUERY, (), at(1))


@pytest.mark.long
def test_the_entry_of_a_batch_without_records_goes_with_the_next_batch(
    bench: Bench, recorder: Recorder
) -> None:
    with_records = {0, 6, 7, 8}
    for batch_id in range(9):
        content = bench.filled(b"one") if batch_id in with_records else NoRecords(at(1))
        bench.run(batch_id, content, recorder)
        kept = [int(file.name.removesuffix(".json")) for file in bench.storage.list("batches")]
        assert kept == sorted({each for each in with_records if each < batch_id} | {batch_id})


def test_a_replay_of_idle_progress_calls_nobody(
    bench: Bench, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fanout.spark.query.batch_runner")
    bench.run(0, NoRecords(at(3)), recorder)
    assert bench.run(0, bench.filled(b"one"), recorder) == BatchResult(0)
    assert recorder.calls == []
    assert caplog.messages == ["batch 0 comes again, and had no records to repeat"]


@pytest.mark.long
def test_a_replay_says_how_many_records_are_repeated(
    bench: Bench, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fanout.spark.query.batch_runner")
    for _ in range(2):
        bench.run(0, bench.filled(b"one", b"two"), recorder)
    assert caplog.messages == ["replaying batch 0 with its 2 records"]


def test_a_batch_that_a_stop_ends_has_an_entry_without_records(
    bench: Bench, recorder: Recorder
) -> None:
    bench.run(0, bench.filled(b"one"), recorder)
    assert bench.run(1, Stopped(), recorder) == BatchResult(1, finished=True)
    assert bench.ledger.newest == BatchEntry(1, QUERY, (), at(1))
    assert bench.acknowledged == [at(1)]


def test_a_stop_before_the_first_batch_stores_the_origin(bench: Bench, recorder: Recorder) -> None:
    bench.ledger.write_origin(at(7).to_json())
    assert bench.run(0, Stopped(), recorder) == BatchResult(0, finished=True)
    assert bench.ledger.newest == BatchEntry(0, QUERY, (), at(7))


@pytest.mark.parametrize("handover", [Stopped(), NoRecords(at(1))])
def test_spark_takes_no_batch_for_done_that_a_newer_run_may_fill(
    bench: Bench, spark: SparkSession, checkpoint: str, recorder: Recorder, handover: FillResult
) -> None:
    bench.run(0, bench.filled(b"one"), recorder)
    storage = open_storage(spark, checkpoint)
    newer = BatchLedger(storage, bench.ownership)
    newer.write(BatchEntry(1, QUERY, (), at(9)))
    with pytest.raises(CheckpointError, match="another run"):
        bench.run(1, handover, recorder)


def test_a_handler_can_ask_which_batch_it_is_called_for(bench: Bench) -> None:
    asked = []

    def handler(_: object, __: int) -> None:
        asked.append(current_batch())

    bench.run(0, bench.filled(b"one"), handler)
    assert [(one.batch_id, one.query_id, one.storage) for one in asked] == [
        (0, QUERY, bench.storage)
    ]
    with pytest.raises(StreamStateError, match="no handler is running"):
        current_batch()


# Batches that are set aside.


class Aside:
    """A function for failed batches that records what it gets, and then raises or returns."""

    def __init__(self, raised: BaseException | None = None) -> None:
        self.calls: list[tuple[list[int], int, BatchFailedError]] = []
        self._raised = raised

    def __call__(self, df: DataFrame, batch_id: int, error: BatchFailedError) -> None:
        sequences = sorted(row.sequence for row in df.collect())
        self.calls.append((sequences, batch_id, error))
        if self._raised is not None:
            raise self._raised


def test_a_batch_whose_handler_fails_is_given_to_the_users_function(
    bench: Bench, recorder: Recorder
) -> None:
    bench.on_failed_batch = aside = Aside()
    result = bench.run(0, bench.filled(b"one", b"two"), fail)
    [(sequences, batch_id, error)] = aside.calls
    assert (sequences, batch_id) == ([1, 2], 0)
    assert isinstance(error.__cause__, ValueError)
    assert str(error) == "the handler raised ValueError in batch 0: no space in the warehouse"
    assert (result.rows, result.failed) == (2, error)
    assert bench.acknowledged == [at(2)]
    bench.run(1, bench.filled(b"three", after=2), recorder)
    assert recorder.sequences == [3]
    found = newest_set_aside(bench.storage)
    assert found is not None
    assert (found.batch, found.rows, found.error) == (0, 2, "ValueError")


@pytest.mark.long
def test_a_replay_of_a_batch_that_was_set_aside_never_calls_the_handler(
    bench: Bench, recorder: Recorder
) -> None:
    bench.on_failed_batch = aside = Aside()
    bench.run(0, bench.filled(b"one", b"two"), fail)
    again = bench.again()  # the driver has died before Spark had noted the end of the batch
    again.on_failed_batch = aside
    result = again.run(0, Stopped(), recorder)
    assert recorder.calls == []
    assert [call[:2] for call in aside.calls] == [([1, 2], 0)] * 2
    assert result.failed is aside.calls[1][2]
    assert str(result.failed) == "in an earlier run the handler raised ValueError in batch 0"
    assert count_set_aside(bench.storage) == 1


@pytest.mark.long
def test_a_batch_that_was_cut_off_while_it_was_set_aside_is_so_in_the_next_run(
    bench: Bench, recorder: Recorder
) -> None:
    def stop(_: DataFrame, __: int, ___: BatchFailedError) -> None:
        bench.stopped = True
        raise RuntimeError("its job was cancelled")

    bench.on_failed_batch = stop
    with pytest.raises(BatchFailedError, match="its job was cancelled"):
        bench.run(0, bench.filled(b"one"), fail)
    again = bench.again()
    with pytest.raises(OptionError, match=r"batch 0 was being set aside .* pass on_failed_batch"):
        again.run(0, Stopped(), recorder)
    again.on_failed_batch = aside = Aside()
    again.run(0, Stopped(), recorder)
    assert [call[:2] for call in aside.calls] == [([1], 0)]
    assert recorder.calls == []


@pytest.mark.long
def test_a_function_that_fails_too_fails_the_batch_and_the_handler_is_called_again(
    bench: Bench, recorder: Recorder
) -> None:
    bench.on_failed_batch = Aside(OSError("no space there either"))
    with pytest.raises(BatchFailedError, match=r"^on_failed_batch raised OSError: no space there"):
        bench.run(0, bench.filled(b"one"), fail)
    assert bench.acknowledged == []
    assert newest_set_aside(bench.storage) is None
    bench.run(0, Stopped(), recorder)
    assert recorder.sequences == [1]


@pytest.mark.parametrize("what", ["error", "cause"])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_function_refuses_a_batch_by_raising_the_error_that_it_was_given(
    bench: Bench, what: str, *, stopped: bool
) -> None:
    def refuse(_: DataFrame, __: int, error: BatchFailedError) -> None:
        bench.stopped = stopped  # in this moment
        assert error.__cause__ is not None
        raise error if what == "error" else error.__cause__

    bench.on_failed_batch = refuse
    with pytest.raises(BatchFailedError, match=r"^the handler raised ValueError in batch 0") as e:
        bench.run(0, bench.filled(b"one"), fail)
    assert isinstance(e.value.__cause__, ValueError)
    assert newest_set_aside(bench.storage) is None


def raising(error: BaseException) -> Handler:
    def handler(_: DataFrame, __: int) -> None:
        raise error

    return handler


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(1),
        KeyboardInterrupt(),
        ConnectionResetError(),
        CheckpointError("a newer run"),
        FencedError("another job"),
        ServiceError("no broker answers"),
        SetupError("no driver"),
        OptionError("no such column"),
        StreamStateError("twice"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_is_not_about_the_rows_sets_no_batch_aside(
    bench: Bench, error: BaseException
) -> None:
    bench.on_failed_batch = aside = Aside()
    with pytest.raises(BatchFailedError):
        bench.run(0, bench.filled(b"one"), raising(error))
    assert aside.calls == []


@pytest.mark.parametrize(
    "error", [ValueError("x"), UnwritableRecordError("too large"), BatchNotWrittenError("no")]
)
def test_an_error_that_may_be_about_the_rows_sets_the_batch_aside(
    bench: Bench, error: Exception
) -> None:
    bench.on_failed_batch = aside = Aside()
    bench.run(0, bench.filled(b"one"), raising(error))
    assert [call[2].__cause__ for call in aside.calls] == [error]


class RefusedError(Exception):
    """What a driver of a database raises."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__("no")
        self.sqlstate = sqlstate


def of_sink(cause: Exception) -> BatchNotWrittenError:
    error = BatchNotWrittenError("not written")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "cause", [RefusedError(None), RefusedError("57P01"), RefusedError("53100"), OSError(28, "full")]
)
def test_a_sink_whose_storage_fails_sets_no_batch_aside(bench: Bench, cause: Exception) -> None:
    bench.on_failed_batch = aside = Aside()
    with pytest.raises(BatchFailedError):
        bench.run(0, bench.filled(b"one"), raising(of_sink(cause)))
    assert aside.calls == []


def test_a_sink_that_refuses_rows_sets_the_batch_aside(bench: Bench) -> None:
    bench.on_failed_batch = aside = Aside()
    bench.run(0, bench.filled(b"one"), raising(of_sink(RefusedError("23514"))))
    assert len(aside.calls) == 1


def test_a_stop_of_spark_that_interrupts_the_handler_sets_no_batch_aside(bench: Bench) -> None:
    bench.on_failed_batch = aside = Aside()
    bench.stopped = True
    with pytest.raises(BatchFailedError):
        bench.run(0, bench.filled(b"one"), fail)
    assert aside.calls == []


@pytest.mark.long
def test_all_batches_that_were_set_aside_are_counted_and_the_newest_are_kept(
    bench: Bench,
) -> None:
    bench.on_failed_batch = lambda _, __, ___: None
    for batch_id in range(12):
        bench.run(batch_id, bench.filled(b"x", after=batch_id), fail)
    assert count_set_aside(bench.storage) == 12
    assert len(bench.storage.list("set-aside")) == 10
    found = newest_set_aside(bench.storage)
    assert found is not None
    assert (found.batch, found.places) == (11, ("a: 11 to 12",))
