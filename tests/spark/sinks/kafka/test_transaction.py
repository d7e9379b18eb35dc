"""End a run at any step: the next one completes the output.

There are no Spark jobs: the tests write what tasks would write.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from fanout import TransactionStatistics
from fanout.errors import (
    BatchNotWrittenError,
    CheckpointError,
    FencedError,
    OptionError,
    UnwritableRecordError,
)
from fanout.kafka.cluster import Cluster
from fanout.kafka.transactions.commit_token import CommitToken, Incarnation
from fanout.kafka.transactions.outcome import TransactionState
from fanout.kafka.transactions.transactions import Transactions
from fanout.kafka.writing.writer import open_writer
from fanout.spark import KafkaSink
from fanout.spark.sinks.kafka.connection import connect
from fanout.spark.sinks.kafka.job import AttemptFailedError, JobResult
from fanout.spark.sinks.kafka.stored_tokens import SinkState
from fanout.spark.sinks.kafka.transaction import ExactlyOnce
from tests.spark.sinks.kafka.harness import Output, Run, run
from tests.support.kafka.topics import PLAINTEXT
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from fanout.kafka.writing.producer_id import Transactional
    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = pytest.mark.spark


class KilledError(BaseException):
    """The driver is gone: nothing of it runs any more."""


class Sink:
    """A sink whose tasks are here."""

    def __init__(self, output: Output, here: Run, **options: Any) -> None:
        self.output = output
        self.run = here
        self.target = KafkaSink(
            cluster=Cluster(output.broker.bootstrap_servers, security=PLAINTEXT),
            topic=output.name,
            **options,
        ).target
        self.connection = connect(self.target, here.loop)
        self.modes: list[Transactional] = []

    def batch(self, batch_id: int) -> ExactlyOnce:
        return ExactlyOnce(self.target, self.run.context(batch_id), self.connection)

    def write(
        self, batch_id: int, *values: bytes, then: Callable[[], object] = lambda: None
    ) -> None:
        """Write values as a batch; afterwards the tasks do something else."""

        def send(mode: Transactional) -> JobResult:
            self.modes.append(mode)
            result = self.put(mode, *values)
            then()
            return result

        job: Any = SimpleNamespace(run=send)
        self.batch(batch_id).write(job)

    def put(self, mode: Transactional, *values: bytes, partition: int = 0) -> JobResult:
        """Do what tasks do: write to the partitions from one on."""
        return self.run.loop.call(self._put(mode, values, partition))

    async def _put(self, mode: Transactional, values: tuple[bytes, ...], first: int) -> JobResult:
        async with open_writer(self.target.options.cluster, mode=mode) as writer:
            if values:
                columns = {
                    "topic": [self.output.name] * len(values),
                    "partition": pa.array(
                        [(first + n) % 4 for n in range(len(values))], pa.int32()
                    ),
                    "value": list(values),
                }
                await writer.write(pa.record_batch(columns))
            written = await writer.flush()
        return JobResult(written.rows, written.bytes, written.partitions)

    def phase(self) -> TransactionState:
        name = self.target.transactional_id(self.run.query_id)
        description = self.connection.call(self.connection.transactions.describe(name))
        assert description is not None
        return description.state


@pytest.fixture
def output(kafka_broker: KafkaBroker) -> Output:
    return Output(kafka_broker)


FIRST = (b"a", b"b", b"c", b"d", b"e")
SECOND = (b"f", b"g")


def kill(*_: object) -> None:
    raise KilledError


DEATHS: dict[str, tuple[type, str] | None] = {
    "before anything is written": (Sink, "put"),
    "when tasks have written": (Transactions, "mark"),
    "when the marker is set": (SinkState, "record"),
    "when the token is stored": (Transactions, "commit"),
    "when the transaction is committed": (SinkState, "record_committed"),
    "before Spark knows": None,
}


@pytest.mark.parametrize("death", DEATHS)
def test_the_driver_is_killed(
    spark: SparkSession, output: Output, tmp_path: Path, death: str
) -> None:
    with run(spark, tmp_path) as here, pytest.MonkeyPatch.context() as patch:
        sink = Sink(output, here)
        patch.setattr(ExactlyOnce, "_abort", lambda *_: None)  # the dead do not clean up
        if (place := DEATHS[death]) is None:
            sink.write(0, *FIRST)
        else:
            patch.setattr(*place, kill)
            with pytest.raises(KilledError):
                sink.write(0, *FIRST)
    with run(spark, tmp_path) as here:
        sink = Sink(output, here)
        sink.batch(0).recover()
        assert sink.phase() is not TransactionState.ONGOING, "readers would wait"
        sink.write(0, *FIRST)
        sink.write(1, *SECOND)
        recorded = list(DEATHS).index(death) >= list(DEATHS).index("when the token is stored")
        assert len(sink.modes) == 1 + (not recorded), "what was recorded is not written again"
    assert output.values() == sorted(FIRST + SECOND)


def test_a_batch_is_written_again_with_a_new_epoch_when_an_attempt_fails(
    spark: SparkSession, output: Output, tmp_path: Path
) -> None:
    left = [AttemptFailedError("a worker died"), AttemptFailedError("another one")]

    def fail() -> None:
        if left:
            raise left.pop()

    with run(spark, tmp_path) as here:
        sink = Sink(output, here)
        sink.write(0, *FIRST, then=fail)
        assert len({mode.incarnation for mode in sink.modes}) == 3
        counted = sink.target.statistics()
        assert counted.transactions == TransactionStatistics(begun=3, committed=1, aborted=2)
        assert (counted.batches, counted.records) == (1, len(FIRST))
    assert output.values() == sorted(FIRST)


def test_a_batch_that_fails_three_times_is_not_seen_and_keeps_nobody_waiting(
    spark: SparkSession, output: Output, tmp_path: Path
) -> None:
    def fail() -> None:
        raise AttemptFailedError("a worker died")

    with run(spark, tmp_path) as here:
        sink = Sink(output, here)
        with pytest.raises(BatchNotWrittenError, match=r"3 attempts.*a worker died") as caught:
            sink.write(0, *FIRST, then=fail)
        assert isinstance(caught.value.__cause__, AttemptFailedError)
        assert sink.phase() in {TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT}
        assert len(sink.modes) == 3
        assert output.values() == []
        sink.write(0, *FIRST)
    assert output.values() == sorted(FIRST)


def test_what_trying_again_cannot_help_is_tried_once(
    spark: SparkSession, output: Output, tmp_path: Path
) -> None:
    def fail() -> None:
        raise UnwritableRecordError("a record is too large")

    with run(spark, tmp_path) as here:
        sink = Sink(output, here)
        with pytest.raises(UnwritableRecordError):
            sink.write(0, *FIRST, then=fail)
        assert len(sink.modes) == 1
        assert sink.phase() in {TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT}


def test_a_zombie_task_writes_in_vain_before_and_after_the_commit(
    spark: SparkSession, output: Output, tmp_path: Path
) -> None:
    with run(spark, tmp_path) as here:
        sink = Sink(output, here)

        def fail_at_first() -> None:
            if len(sink.modes) == 1:
                raise AttemptFailedError("a worker died")
            with pytest.raises(FencedError):
                sink.put(sink.modes[0], b"zombie")

        sink.write(0, *FIRST, then=fail_at_first)
        with pytest.raises(FencedError):
            sink.put(sink.modes[0], b"zombie")
    assert output.values() == sorted(FIRST)


def test_what_a_zombie_writes_with_the_epoch_that_was_committed_is_never_committed(
    spark: SparkSession, output: Output, tmp_path: Path
) -> None:
    with run(spark, tmp_path) as here, pytest.MonkeyPatch.context() as patch:
        sink = Sink(output, here)
        patch.setattr(SinkState, "record_committed", kill)
        with pytest.raises(KilledError):
            sink.write(0, *SECOND)
        # It is the first to write to this partition, so the broker takes it for a new transaction.
        sink.put(sink.modes[0], b"zombie", partition=3)
        assert sink.phase() is TransactionState.ONGOING
    with run(spark, tmp_path) as here:
        sink = Sink(output, here)
        sink.batch(0).recover()
        assert sink.phase() is TransactionState.EMPTY
        sink.write(0, *SECOND)
        sink.write(1, *FIRST)
        assert len(sink.modes) == 1
    assert output.values() == sorted(FIRST + SECOND)


def take_over(here: Run) -> None:
    """Let a newer run, of another machine, own the checkpoint."""
    here.storage.create(f"runs/{here.ownership.run + 1}", b"{}")


def test_a_run_that_lost_the_checkpoint_commits_nothing(
    spark: SparkSession, output: Output, tmp_path: Path
) -> None:
    with run(spark, tmp_path) as here:
        sink = Sink(output, here)
        with pytest.raises(CheckpointError, match="taken over by a newer run"):
            sink.write(0, *FIRST, then=lambda: take_over(here))
        assert SinkState(here.storage, here.ownership, "kafka").unfinished() == []
        with pytest.raises(CheckpointError, match="taken over by a newer run"):
            sink.write(0, *FIRST)
        assert len(sink.modes) == 1, "a run without the checkpoint would abort that of the owner"
    assert output.values() == []


@pytest.mark.parametrize("place", [(SinkState, "record"), (Transactions, "commit")])
def test_two_drivers_write_a_batch_once(
    spark: SparkSession, output: Output, tmp_path: Path, place: tuple[type, str]
) -> None:
    """The newer one comes when the older one is about to store its token, or to commit."""
    other = tmp_path / "other"
    other.mkdir()
    with (
        run(spark, tmp_path) as older,
        run(spark, other) as there,
        pytest.MonkeyPatch.context() as patch,
    ):
        kind, method = place
        original = getattr(kind, method)
        newer_run = Run(older.query_id, older.storage, older.ownership, there.loop)

        def overtaken(self: Any, token: CommitToken) -> Any:
            patch.undo()
            take_over(older)
            newer_run.ownership = type(older.ownership)(
                older.storage, older.ownership.run + 1, b"{}", None
            )
            newer = Sink(output, newer_run)
            if method == "commit":
                return overtaken_in_the_loop(self, token, newer)
            newer.write(0, *FIRST)
            return original(self, token)

        async def overtaken_in_the_loop(self: Any, token: CommitToken, newer: Sink) -> Any:
            await asyncio.to_thread(newer.write, 0, *FIRST)
            return await original(self, token)

        sink = Sink(output, older)
        patch.setattr(kind, method, overtaken)
        if method == "record":
            with pytest.raises(CheckpointError, match="taken over by a newer run"):
                sink.write(0, *FIRST)
        else:
            sink.write(0, *FIRST)
    assert output.values() == sorted(FIRST)


def test_a_batch_that_is_marked_is_not_written_again_though_nobody_sees_its_token(
    spark: SparkSession, output: Output, tmp_path: Path
) -> None:
    """An older run may store its token when the newer one has just looked for it."""
    with run(spark, tmp_path) as here:
        Sink(output, here).write(0, *FIRST)
        for file in here.storage.list("sinks/kafka"):
            here.storage.delete(f"sinks/kafka/{file.name}")
        sink = Sink(output, here)
        sink.write(0, *FIRST)
        assert sink.modes == []
    assert output.values() == sorted(FIRST)


def test_a_recorded_transaction_that_expired_is_written_again(
    spark: SparkSession, output: Output, tmp_path: Path
) -> None:
    with run(spark, tmp_path) as here, pytest.MonkeyPatch.context() as patch:
        # The write ends within it, also where the machine stands still for some seconds.
        sink = Sink(output, here, transaction_timeout=10)
        patch.setattr(Transactions, "commit", kill)
        with pytest.raises(KilledError):
            sink.write(0, *FIRST)
        asyncio.run(_until(lambda: sink.phase() is TransactionState.COMPLETE_ABORT))
    with run(spark, tmp_path) as here:
        sink = Sink(output, here)
        sink.batch(0).recover()
        sink.write(0, *FIRST)
        assert len(sink.modes) == 1
    assert output.values() == sorted(FIRST)


def test_a_batch_that_takes_longer_than_its_transaction_says_both_times(
    spark: SparkSession, output: Output, tmp_path: Path
) -> None:
    with run(spark, tmp_path) as here, pytest.MonkeyPatch.context() as patch:
        sink = Sink(output, here, transaction_timeout=600)
        passed = 0.0
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed)
        patch.setattr("fanout.spark.sinks.kafka.transaction.time", clock)

        def wait() -> None:
            nonlocal passed
            passed = 600.0

        with pytest.raises(BatchNotWrittenError, match=r"took 6\d\d\.\d s, but .* after 600 s"):
            sink.write(0, *FIRST, then=wait)
        assert len(sink.modes) == 1
    assert output.values() == []


def test_a_transaction_that_brokers_do_not_allow_so_long_is_an_error_at_the_start(
    spark: SparkSession, output: Output, tmp_path: Path
) -> None:
    with run(spark, tmp_path) as here:
        sink = output.sink(transaction_timeout=10_000)
        with pytest.raises(OptionError, match=r"10000 seconds is longer .* which is 900 seconds"):
            sink.prepare(spark, here.loop)


def test_a_batch_without_rows_leaves_nothing(
    spark: SparkSession, output: Output, tmp_path: Path
) -> None:
    with run(spark, tmp_path) as here:
        sink = Sink(output, here)
        sink.write(0)
        sink.write(1, *FIRST)
        sink.write(2)
        names = [file.name for file in here.storage.list("sinks/kafka")]
        assert names == ["000000000001.committed.json", "000000000001.json"]
    assert output.values() == sorted(FIRST)


def token_of(sink: Sink, age: timedelta) -> CommitToken:
    created_at = datetime.now(UTC) - age
    return CommitToken(
        transactional_id=sink.target.transactional_id(sink.run.query_id),
        incarnation=Incarnation(1, 0),
        marker_group=sink.target.marker_group(sink.run.query_id),
        batch_id=0,
        partitions={sink.output.name: (0,)},
        created_at=created_at,
        expires_at=created_at + timedelta(minutes=15),
    )


def test_a_token_older_than_what_brokers_remember_is_left_to_people(
    spark: SparkSession, output: Output, tmp_path: Path
) -> None:
    with run(spark, tmp_path) as here:
        sink = Sink(output, here)
        state = SinkState(here.storage, here.ownership, "kafka")
        state.record(token_of(sink, timedelta(days=7)))
        for write in (sink.batch(0).recover, lambda: sink.write(0, *FIRST)):
            with pytest.raises(CheckpointError, match=f"it is unknown whether .* {output.name}"):
                write()
        assert sink.modes == []
        state.record_committed(0)
        sink.batch(0).recover()
        sink.write(0, *FIRST)
        assert sink.modes == [], "what is known to be committed is known for ever"


def test_a_token_that_brokers_remember_as_not_committed_is_forgotten(
    spark: SparkSession, output: Output, tmp_path: Path
) -> None:
    with run(spark, tmp_path) as here:
        sink = Sink(output, here)
        SinkState(here.storage, here.ownership, "kafka").record(token_of(sink, timedelta(days=5)))
        sink.write(0, *FIRST)
    assert output.values() == sorted(FIRST)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.05)
