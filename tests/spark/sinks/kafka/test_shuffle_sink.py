"""Batches that Spark writes to a shuffle on a real broker, and what its readers make of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from fanout.errors import BadFrameError, OptionError, ServiceError, UnwritableRecordError
from fanout.kafka import Activity, Cluster
from fanout.kafka.transactions.transactions import Transactions
from fanout.spark import ShuffleSink
from fanout.spark.sinks.kafka import job, shuffle_frames
from fanout.spark.sinks.kafka.stored_tokens import SinkState
from fanout.spark.sinks.kafka.transaction import ExactlyOnce
from tests.spark.sinks.kafka.harness import Run, run
from tests.support.kafka.shuffle_reading import Drained, drain
from tests.support.kafka.topics import PLAINTEXT, Topic
from tests.support.kafka.transacting import reported

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = pytest.mark.spark

PARTITIONS = 3


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> Topic:
    return Topic(kafka_broker, partitions=PARTITIONS)


def options(topic: Topic, **more: Any) -> dict[str, Any]:
    return {
        "cluster": Cluster(topic.broker.bootstrap_servers, security=PLAINTEXT),
        "topic": topic.name,
        "timestamp": "at",
    } | more


def sink(topic: Topic, **more: Any) -> ShuffleSink:
    return ShuffleSink(**options(topic, **more))


def rows(spark: SparkSession, first: int, behind: int, keys: int = 5) -> DataFrame:
    """Return rows at the times from one on; the key is that of a time modulo 5."""
    ids = spark.range(first, behind, numPartitions=3)
    return ids.selectExpr(
        f"concat('k', id % {keys}) key", "string(id) value", "timestamp_millis(id) at", "1 more"
    )


def read(topic: Topic, here: Run) -> Drained:
    asyncio.run(reported(topic.broker, f"fanout-{here.query_id}-shuffle"))
    found = asyncio.run(drain(topic))
    assert set(found.producers) == set(range(PARTITIONS)), (
        "each partition has the frames of all producers"
    )
    assert {one.partitions for one in found.producers.values()} == {PARTITIONS}
    return found


def numbers(*spans: range) -> list[str]:
    return sorted(str(number) for span in spans for number in span)


def test_each_key_is_in_one_partition_in_order_and_the_watermark_in_all(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    handler = sink(topic, out_of_orderness=0.002, partition_count=PARTITIONS)
    with run(spark, tmp_path) as here:
        here.write(handler, rows(spark, 0, 100), 0)
        first = read(topic, here)
        # One key: two partitions have no rows.
        here.write(handler, rows(spark, 100, 150, keys=1), 1)
        found = read(topic, here)
    assert (first.watermark, first.values) == (96, numbers(range(100)))
    assert (found.watermark, found.values) == (146, numbers(range(150)))
    assert found.late == []
    keys = [{key for key, _, _ in part} for part in found.records.values()]
    assert sum(map(len, keys)) == len(set.union(*keys)) == 5
    for part in found.records.values():
        times = [time for _, _, time in part if time is not None]
        assert times == sorted(times)
        assert [str(time) for time in times] == [value for _, value, _ in part]
    for one in found.producers.values():
        assert (one.seen[0].activity, one.repeated, one.outdated) == (Activity.ACTIVE, 0, 0)


@pytest.mark.long
def test_the_watermark_is_that_of_the_stream_where_nothing_else_is_said(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    handler = sink(topic, transform=lambda df: df.where("value < 10"))
    with run(spark, tmp_path) as here:
        here.write(handler, rows(spark, 0, 10), 0)
        assert read(topic, here).watermark is None
        here.write(handler, rows(spark, 0, 10), 1, watermark=5)
        assert read(topic, here).watermark == 5
        # Nothing is left of the rows, but the stream has gone on.
        here.write(handler, rows(spark, 10, 20), 2, watermark=15)
        found = read(topic, here)
    assert found.watermark == 15
    assert {one.seen[0].activity for one in found.producers.values()} == {Activity.ACTIVE}


@pytest.mark.long
def test_a_batch_of_which_nothing_is_left_is_idle_until_the_next_one(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    def handler(df: DataFrame, batch_id: int) -> None:
        sink(topic, out_of_orderness=0).write(df.where(f"{batch_id} <> 1"), batch_id)

    with run(spark, tmp_path) as here:
        for batch_id in range(3):
            here.call(handler, rows(spark, 10 * batch_id, 10 * batch_id + 10), batch_id)
            found = read(topic, here)
            activity = Activity.IDLE if batch_id == 1 else Activity.ACTIVE
            assert {one.seen[0].activity for one in found.producers.values()} == {activity}
            assert found.watermark == (28 if batch_id == 2 else 8)


@pytest.mark.long
def test_the_watermark_is_that_of_what_was_written_also_where_each_look_gives_other_rows(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    later = F.timestamp_millis((F.rand() * 1_000_000).cast("long"))
    handler = sink(topic, timestamp=later, out_of_orderness=0)
    with run(spark, tmp_path) as here:
        here.write(handler, rows(spark, 0, 100), 0)
        found = read(topic, here)
    times = [time for part in found.records.values() for _, _, time in part if time is not None]
    assert found.watermark == max(times) - 1


class KilledError(BaseException):
    """The driver is gone: nothing of it runs any more."""


def kill(*_: object, **__: object) -> None:
    raise KilledError


DEATHS: dict[str, tuple[object, str] | None] = {
    "before anything is written": (job, "write_rows"),
    "when tasks have written": (job, "announce"),
    "when the watermark is written": (Transactions, "mark"),
    "when the marker is set": (SinkState, "record"),
    "when the token is stored": (Transactions, "commit"),
    "when the transaction is committed": (SinkState, "record_committed"),
    "before Spark knows": None,
}
# Three that differ in what the next generation does: it aborts, commits, or writes nothing.
_IN_TEST = {"when tasks have written", "when the token is stored", "before Spark knows"}


@pytest.mark.long
@pytest.mark.parametrize(
    "death",
    [
        death if death in _IN_TEST else pytest.param(death, marks=pytest.mark.prove)
        for death in DEATHS
    ],
)
def test_a_query_that_was_killed_goes_on_as_a_newer_generation(
    spark: SparkSession, topic: Topic, tmp_path: Path, death: str
) -> None:
    handler = sink(topic, out_of_orderness=0)
    with run(spark, tmp_path) as here:
        here.write(handler, rows(spark, 0, 10), 0)
        before = read(topic, here)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ExactlyOnce, "_abort", lambda *_: None)  # the dead do not clean up
            if (place := DEATHS[death]) is None:
                here.write(handler, rows(spark, 10, 20), 1)
            else:
                patch.setattr(*place, kill)
                with pytest.raises(KilledError):
                    here.write(handler, rows(spark, 10, 20), 1)
    with run(spark, tmp_path) as here:
        handler.recover(here.context(1))
        here.write(handler, rows(spark, 10, 20), 1)
        assert read(topic, here).watermark == 18
        here.write(handler, rows(spark, 20, 30), 2)
        found = read(topic, here)
    assert (found.values, found.watermark, found.late) == (numbers(range(30)), 28, [])
    for number, one in found.producers.items():
        old = before.producers[number].generation
        assert (one.generation, one.announced, one.outdated) == ((old or 0) + 1, 1, 0)


@pytest.mark.long
def test_an_attempt_that_failed_leaves_no_watermark(
    spark: SparkSession, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[object] = []
    original = shuffle_frames.announce

    async def fail_once(delivery: Any, *args: Any) -> Any:
        written = await original(delivery, *args)
        announced.append(delivery.mode)
        if len(announced) == 1:
            raise UnwritableRecordError("no")
        return written

    monkeypatch.setattr(job, "announce", fail_once)
    handler = sink(topic, out_of_orderness=0)
    with run(spark, tmp_path) as here:
        with pytest.raises(UnwritableRecordError):
            here.write(handler, rows(spark, 0, 1000), 0)
        here.write(handler, rows(spark, 0, 10), 0)
        found = read(topic, here)
    assert (found.values, found.watermark) == (numbers(range(10)), 8)


@pytest.mark.long
def test_a_batch_that_comes_again_at_least_once_does_no_harm(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    handler = sink(topic, out_of_orderness=0, delivery_guarantee="at_least_once")
    with run(spark, tmp_path) as here:
        for _ in range(2):
            here.write(handler, rows(spark, 0, 10), 0)
        here.write(handler, rows(spark, 10, 20), 1)
        found = asyncio.run(drain(topic))
    assert found.values == numbers(range(10), range(20))
    assert found.watermark == 18
    assert {one.repeated for one in found.producers.values()} == {1}


@pytest.mark.long
def test_two_queries_are_two_producers(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    both: dict[str, Any] = {"producers": 2, "generation": 3}
    for number in range(2):
        place = tmp_path / str(number)
        place.mkdir()
        with run(spark, place) as here:
            handler = sink(topic, producer=number, **both)
            here.write(handler, rows(spark, 0, 10), 0, watermark=5 + number)
            found = read(topic, here)
            assert found.watermark == (5 if number else None)
    assert {one.generation for one in found.producers.values()} == {3}


@pytest.mark.long
def test_a_producer_whose_stream_has_no_watermark_yet_is_waited_for(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    def write(number: int, batch_id: int, wanted: str, watermark: int | None) -> Drained:
        place = tmp_path / str(number)
        place.mkdir(exist_ok=True)
        handler = sink(
            topic,
            producer=number,
            producers=2,
            generation=3,
            transform=lambda df: df.where(wanted),
        )
        with run(spark, place) as here:
            here.write(handler, rows(spark, 0, 10), batch_id, watermark)
            return read(topic, here)

    for number in range(2):
        write(number, 0, "true", 5)
    # Started again: not every shard has had a record yet, and none of these is wanted.
    write(0, 1, "false", None)
    found = write(1, 1, "true", 50)
    assert {one.seen[0].activity for one in found.producers.values()} == {Activity.ACTIVE}
    assert found.watermark == 5


@pytest.mark.long
def test_what_cannot_be_written_says_why(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    with run(spark, tmp_path) as here:
        writes: list[tuple[Callable[[], None], type[Exception], str]] = [
            (
                lambda: here.write(sink(topic, key=F.lit(None).cast("string")), one, 0),
                BadFrameError,
                "keys: .* are null",
            ),
            (
                lambda: here.write(sink(topic, partition_count=4), one, 0),
                ServiceError,
                "has 3 partitions, and by partition_count it has 4",
            ),
            (
                lambda: here.write(sink(topic, timestamp="more"), one, 0),
                OptionError,
                "'eventTime' is int, and must be timestamp",
            ),
        ]
        one = rows(spark, 0, 1)
        for write, kind, message in writes:
            with pytest.raises(kind, match=message):
                write()
        with pytest.raises(ServiceError, match="by partition_count it has 4"):
            sink(topic, partition_count=4).prepare(spark, here.loop)
    with pytest.raises(OptionError, match="share a generation"):
        sink(topic, producers=2)
    with pytest.raises(OptionError, match="pass timestamp="):
        sink(topic, timestamp=None, out_of_orderness=1)
