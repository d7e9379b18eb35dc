"""A driver that is killed inside a batch, at three moments; the next one goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.spark.doomed_driver import MOMENTS, from_kinesis, run_and_kill
from tests.support.spark.harness import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fanout.spark import FanOutQuery

    Start = Callable[..., FanOutQuery]

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture(scope="module")
def kinesis() -> Iterator[KinesisServer]:
    with KinesisServer(KinesisRules.fast()) as server:
        for moment in MOMENTS:
            server.create_stream(moment, 2)
            put(server, moment, 0)
        yield server


@pytest.fixture(scope="module")
def killed(kinesis: KinesisServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a killed driver; new records have come since."""
    directory = tmp_path_factory.mktemp("killed")
    run_and_kill("kinesis", kinesis.endpoint_url, str(directory))
    for moment in MOMENTS:
        put(kinesis, moment, 30)
    return directory


def put(server: KinesisServer, stream: str, first: int) -> None:
    numbers = [str(n).encode() for n in range(first, first + 30)]
    server.put_records(stream, ((n.decode(), n) for n in numbers))


def segments(checkpoint: Path) -> list[Path]:
    return sorted((checkpoint / "fanout" / "segments").iterdir())


def content(segment: Path) -> set[tuple[str, str]]:
    table = pq.read_table(segment, columns=["shardId", "sequenceNumber"])
    return {(row["shardId"], row["sequenceNumber"]) for row in table.to_pylist()}


def finish(start: Start, kinesis: KinesisServer, killed: Path, moment: str) -> Recorder:
    """Run the job again until every record was handled, and check that each was handled once."""
    recorder = Recorder()
    query = start(
        from_kinesis(kinesis.endpoint_url, moment),
        recorder,
        checkpoint_location=str(killed / moment),
        max_records=20,
    )
    recorder.wait_for_rows(60)
    query.stop()
    assert sorted(int(row.data) for row in recorder.rows) == list(range(60))
    return recorder


@pytest.mark.parametrize("moment", ["after-entry", "in-handler"])
def test_the_batch_comes_again_with_the_same_rows(
    start: Start, kinesis: KinesisServer, killed: Path, moment: str
) -> None:
    [segment] = segments(killed / moment)
    first = content(segment)
    recorder = finish(start, kinesis, killed, moment)
    assert recorder.calls[0].batch_id == 0
    assert {(row.shardId, row.sequenceNumber) for row in recorder.calls[0].rows} == first


def test_a_segment_without_an_entry_is_drained_again_and_removed(
    start: Start, kinesis: KinesisServer, killed: Path
) -> None:
    [orphan] = segments(killed / "before-entry")
    recorder = finish(start, kinesis, killed, "before-entry")
    assert recorder.calls[0].batch_id == 0
    assert orphan not in segments(killed / "before-entry")
