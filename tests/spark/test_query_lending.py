"""A query whose source lends its records, with Spark; wherever its checkpoint is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.errors import BatchFailedError
from tests.spark.lending import LendingSource
from tests.support.spark.harness import PATIENCE, Gate, Recorder, eventually, fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.spark import FanOutQuery

    Start = Callable[..., FanOutQuery]

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_acquired_records_come_once_from_a_remote_checkpoint_too(
    start: Start, remote_checkpoint: str
) -> None:
    source, recorder = LendingSource(members=2, per_poll=4), Recorder()
    source.put(10)
    query = start(source, fail, checkpoint_location=remote_checkpoint, max_records=6)
    with pytest.raises(BatchFailedError):
        query.await_termination(PATIENCE)
    handled = len(source.accepted)
    assert handled > 0
    source.put(5)
    query = start(source, recorder, checkpoint_location=remote_checkpoint, max_records=6)
    recorder.wait_for_rows(15)
    query.stop()
    assert sorted(recorder.sequences) == list(range(1, 16))
    assert max(len(call.rows) for call in recorder.calls) <= 6


def test_a_stop_leaves_what_is_pending_to_the_next_run(start: Start) -> None:
    source, gate, recorder = LendingSource(per_poll=4), Gate(), Recorder()
    source.put(20)
    query = start(source, gate, max_records=4)
    gate.wait_until_entered()
    eventually(lambda: source.paused)
    gate.open()
    gate.wait_for_rows(4)
    query.stop()
    assert len(gate.rows) < 20
    start(source, recorder)
    recorder.wait_for_rows(20 - len(gate.rows))
    assert sorted(gate.sequences + recorder.sequences) == list(range(1, 21))
