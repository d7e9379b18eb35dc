"""A queue of Kinesis into Spark: each record once, by its id."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.spark.doomed_driver import run_and_kill
from tests.spark.doomed_share_driver import MOMENTS, queue_of
from tests.support.kinesis.queue import EmbeddedWork
from tests.support.spark.harness import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame

    from fanout.spark import FanOutQuery

    Start = Callable[..., FanOutQuery]

pytestmark = pytest.mark.spark

RECORDS = 400


class Numbers(Recorder):
    """A handler that collects what its records hold."""

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        super().__call__(df.select("data", "recordId"), batch_id)

    @property
    def found(self) -> list[int]:
        return sorted(int(bytes(row.data)) for row in self.rows)


@pytest.fixture
def work(aws: None) -> Iterator[EmbeddedWork]:  # noqa: ARG001 - used for what it does
    with ExitStack() as stack:
        work = stack.enter_context(EmbeddedWork())
        for moment in MOMENTS:
            work.create(moment)
        yield work


@pytest.mark.long
def test_every_record_comes_once_wherever_the_driver_was_killed(
    start: Start, work: EmbeddedWork, tmp_path: Path
) -> None:
    for moment in MOMENTS:
        work.put(range(RECORDS // 2), moment)
    address = work.server.endpoint_url
    run_and_kill(address, str(tmp_path), module="tests.spark.doomed_share_driver")
    for moment in MOMENTS:
        work.put(range(RECORDS // 2, RECORDS), moment)
    handlers = {moment: Numbers() for moment in MOMENTS}
    queries = {
        moment: start(
            queue_of(address, moment),
            handlers[moment],
            checkpoint_location=str(tmp_path / moment),
        )
        for moment in MOMENTS
    }
    for handler in handlers.values():
        handler.wait_for_rows(RECORDS)
    for moment in MOMENTS:
        queries[moment].stop()
        assert handlers[moment].found == list(range(RECORDS)), moment


def test_a_query_that_is_stopped_goes_on_where_it_was(
    start: Start, work: EmbeddedWork, tmp_path: Path
) -> None:
    name, address = MOMENTS[0], work.server.endpoint_url
    found: list[int] = []
    for half in (range(200), range(200, 400)):
        work.put(half, name)
        handler = Numbers()
        query = start(queue_of(address, name), handler, checkpoint_location=str(tmp_path))
        handler.wait_for_rows(200)
        query.stop()
        found += handler.found
    assert found == list(range(400))
