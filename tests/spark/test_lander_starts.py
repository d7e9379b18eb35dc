"""When the jobs of landers begin, and when they do so no more."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fanout.spark.landers.jobs import LanderJobs
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    import pytest


def test_jobs_begin_a_tenth_of_a_second_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[int, float]] = []
    all_begun = threading.Event()

    def run_job(jobs: LanderJobs, lander: int) -> None:
        begun.append((lander, time.monotonic()))
        if len(begun) == 4:
            all_begun.set()
        jobs._closing.wait()

    monkeypatch.setattr(LanderJobs, "_run_job", run_job)
    stopped: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    before = time.monotonic()
    with LanderJobs(stopped, lambda *_: None, landers=4, on_end=lambda *_: None):
        assert all_begun.wait(PATIENCE)
    assert sorted(lander for lander, _ in begun) == [0, 1, 2, 3]
    for lander, at in begun:
        assert at - before >= 0.1 * lander


def test_a_job_that_ends_after_its_lander_was_told_to_stop_is_not_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[int] = []
    ends: list[int] = []
    told = threading.Event()

    def run_job(_: LanderJobs, lander: int) -> None:
        begun.append(lander)
        told.wait(PATIENCE)

    monkeypatch.setattr(LanderJobs, "_run_job", run_job)
    stopped: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None))
    with LanderJobs(stopped, lambda *_: None, landers=1, on_end=lambda *_: ends.append(1)) as jobs:
        jobs.start_no_more()
        told.set()
        for thread in jobs._threads:  # the block has not ended: another lander may be slow to stop
            thread.join(20)
            assert not thread.is_alive()
    assert len(begun) <= 1
    assert not ends
