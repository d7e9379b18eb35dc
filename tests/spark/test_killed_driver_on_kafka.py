"""A driver that reads Kafka is killed inside a batch, at three moments; the next one goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pyarrow.parquet as pq
import pytest

from tests.spark.doomed_driver import MOMENTS, from_kafka, run_and_kill
from tests.support.kafka.topics import Topic, transactional
from tests.support.spark.harness import PATIENCE, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from confluent_kafka import Producer

    from fanout.spark import FanOutQuery
    from fanout.testing.kafka.broker import KafkaBroker

    Start: TypeAlias = Callable[..., FanOutQuery]

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture(scope="module")
def topics(kafka_broker: KafkaBroker) -> Mapping[str, Topic]:
    return {moment: Topic(kafka_broker, partitions=2, name=moment) for moment in MOMENTS}


@pytest.fixture(scope="module")
def killed(
    topics: Mapping[str, Topic],
    kafka_broker: KafkaBroker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The checkpoints of a killed driver; new records have come since."""
    directory = tmp_path_factory.mktemp("killed")
    writer = transactional(kafka_broker, "killed-driver")
    for topic in topics.values():
        put(topic, writer)
    run_and_kill("kafka", kafka_broker.bootstrap_servers, str(directory))
    for topic in topics.values():
        put(topic, writer)
    return directory


def put(topic: Topic, writer: Producer) -> None:
    """Write 30 records that are to come, and some that are not."""
    topic.put(15, partition=1)
    topic.transaction(writer, 10, commit=True)
    topic.transaction(writer, 5, commit=False)
    topic.put(5)


def segments(checkpoint: Path) -> list[Path]:
    return sorted((checkpoint / "fanout" / "segments").iterdir())


def content(segment: Path) -> set[tuple[int, int]]:
    table = pq.read_table(segment, columns=["partition", "offset"])
    return {(row["partition"], row["offset"]) for row in table.to_pylist()}


def finish(start: Start, topic: Topic, killed: Path) -> Recorder:
    """Run the job again until every record was handled, and check that each was handled once."""
    recorder = Recorder()
    query = start(
        from_kafka(topic.broker.bootstrap_servers, topic.name),
        recorder,
        checkpoint_location=str(killed / topic.name),
        max_records=20,
        available_now=True,
    )
    assert query.await_termination(PATIENCE)
    rows = [(row.partition, row.offset, bytes(row.value)) for row in recorder.rows]
    written = {(number, *record) for number, log in topic.log.items() for record in log}
    assert sorted(rows) == sorted(written)
    return recorder


@pytest.mark.long
def test_the_driver_was_killed_before_and_after_its_entries(killed: Path) -> None:
    found = {moment: killed / moment / "fanout" for moment in MOMENTS}
    counted = {
        moment: (len(list(path.glob("segments/*"))), len(list(path.glob("batches/*.json"))))
        for moment, path in found.items()
    }
    assert counted == {"before-entry": (1, 0), "after-entry": (1, 1), "in-handler": (1, 1)}


@pytest.mark.fault("A Spark driver is killed, by SIGKILL, at any moment of a batch")
@pytest.mark.parametrize("moment", ["after-entry", "in-handler"])
def test_the_batch_comes_again_with_the_same_rows(
    start: Start, topics: Mapping[str, Topic], killed: Path, moment: str
) -> None:
    [segment] = segments(killed / moment)
    first = content(segment)
    recorder = finish(start, topics[moment], killed)
    assert recorder.calls[0].batch_id == 0
    assert {(row.partition, row.offset) for row in recorder.calls[0].rows} == first


@pytest.mark.fault("A Spark driver is killed, by SIGKILL, at any moment of a batch")
def test_a_segment_without_an_entry_is_drained_again_and_removed(
    start: Start, topics: Mapping[str, Topic], killed: Path
) -> None:
    [orphan] = segments(killed / "before-entry")
    recorder = finish(start, topics["before-entry"], killed)
    assert recorder.calls[0].batch_id == 0
    assert orphan not in segments(killed / "before-entry")
