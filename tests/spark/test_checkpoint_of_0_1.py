"""Queries on checkpoints that version 0.1.0 wrote and was killed on, inside a handler."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fanout.landing.log.checkpoint_status import read_positions
from tests.spark.lending import LendingSource
from tests.support.manual_source import ManualSource
from tests.support.spark.harness import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.spark import FanOutQuery

    Start = Callable[..., FanOutQuery]

pytestmark = pytest.mark.spark

STORED = Path(__file__).parents[1] / "checkpoints" / "version_0_1"


@pytest.fixture
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Copy the checkpoint that a test names."""
    target = tmp_path / "checkpoint"
    shutil.copytree(STORED / request.param, target)
    return str(target)


def numbers(first: int, past: int) -> list[bytes]:
    return [str(number).encode() for number in range(first, past)]


@pytest.mark.parametrize("stored", ["query"], indirect=True)
def test_a_query_replays_the_batch_that_was_killed_and_goes_on_behind_it(
    start: Start, stored: str
) -> None:
    source = ManualSource("a", "b")
    source.put(*numbers(0, 60), split="a")
    source.put(*numbers(100, 110), split="b")
    source.idle("b")
    source.end("b", "c", "d")
    source.put(*numbers(200, 205), split="c")
    source.idle("d")
    source.put(*numbers(60, 65), split="a")
    source.put(*numbers(300, 303), split="d")
    handler = Recorder()

    query = start(source, handler, checkpoint_location=stored)
    handler.wait_for_rows(23)
    query.stop()

    assert handler.calls[0].batch_id == 3
    assert [row.data for row in handler.calls[0].rows] == numbers(100, 110) + numbers(200, 205)
    assert handler.batch_ids[1:] == [*range(4, 4 + len(handler.calls) - 1)]
    behind = [row.data for call in handler.calls[1:] for row in call.rows]
    assert sorted(behind) == sorted(numbers(60, 65) + numbers(300, 303))


@pytest.mark.long
@pytest.mark.parametrize("stored", ["share"], indirect=True)
def test_a_query_takes_the_pending_segments_and_drops_what_is_unconfirmed(
    start: Start, stored: str
) -> None:
    source = LendingSource(members=2, per_poll=10)
    source.accept(30)
    source.put(10)  # 31 to 35 come again: their acknowledgement was not confirmed
    handler = Recorder()

    query = start(source, handler, checkpoint_location=stored)
    handler.wait_for_rows(30)
    query.stop()

    assert handler.batch_ids[0] == 1
    # Batches 0 and 1 have ten records each, the pending segments ten and five.
    assert sorted(handler.sequences) == [*range(11, 41)]
    assert sorted(source.dropped) == [*range(31, 36)]


@pytest.mark.parametrize("stored", ["query"], indirect=True)
def test_positions_of_the_newest_batch_are_read(stored: str) -> None:
    splits = read_positions(stored).splits
    assert {id_: state.ended for id_, state in splits.items()} == {
        "a": False,
        "b": True,
        "c": False,
        "d": False,
    }
