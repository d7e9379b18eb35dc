"""One short campaign for each sink, and one for each mistake that a campaign has to find."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.provers.crash.campaign import run_campaign
from tests.provers.crash.moments import CrashMoment, Pipeline, Sink, Strike, StrikeKind
from tests.provers.crash.plan import CrashOptions, Round
from tests.provers.planted.crash_bugs import CRASH_BUGS
from tests.support.process_list import running_with
from tests.support.spark.table_formats import require

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.provers.crash.report import CrashReport

# Half a minute each where nothing else runs; they wait for JVMs, which take their time.
pytestmark = [pytest.mark.prove, pytest.mark.spark, pytest.mark.timeout(600)]

# A kill at each of them leaves as much of a batch as a sink can have without having it.
KILLS = {
    Sink.PARQUET: CrashMoment.BEFORE_MARKER,
    Sink.POSTGRES: CrashMoment.BEFORE_TABLE_COMMIT,
    Sink.JDBC: CrashMoment.BEFORE_TABLE_COMMIT,
    Sink.DELTA: CrashMoment.BEFORE_TABLE_COMMIT,
    Sink.ICEBERG: CrashMoment.BEFORE_TABLE_COMMIT,
    Sink.KINESIS: CrashMoment.AFTER_PUT,
}


@pytest.fixture(autouse=True)
def _temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    yield
    assert running_with(str(directory)) == {}


def struck(sink: Sink, strike: Strike, planted: str = "") -> CrashReport:
    """Run a campaign of one round; the test is skipped where there are no jars of a sink."""
    if sink in {Sink.DELTA, Sink.ICEBERG}:
        require(sink)
    options = CrashOptions(rounds=1, sink=sink, pipelines=(strike.pipeline,), planted=planted)
    report = run_campaign(options, plan=[Round((strike,), 0.1, 0.5)])
    assert all(each.reached for each in report.struck)
    assert all(each.caught_up is not None and not each.failures for each in report.rounds)
    return report


@pytest.mark.fault("A job that writes to Kinesis is killed")
@pytest.mark.fault("A job that writes to a table is killed at each step of a batch")
@pytest.mark.parametrize("sink", KILLS)
def test_a_kill_loses_and_duplicates_nothing(sink: Sink) -> None:
    report = struck(sink, Strike(KILLS[sink], StrikeKind.KILL_DRIVER, Pipeline.KINESIS))
    verdict = report.verdicts[Pipeline.KINESIS]
    assert report.holds, verdict
    assert verdict.read > 100
    assert (verdict.repeated > 0) is (sink is Sink.KINESIS)


@pytest.mark.parametrize(
    "name", [name for name, bug in CRASH_BUGS.items() if bug.sink is not Sink.KAFKA]
)
def test_a_planted_bug_is_found(name: str) -> None:
    bug = CRASH_BUGS[name]
    report = struck(bug.sink, bug.shown_by, name)
    assert getattr(report.verdicts[Pipeline.KINESIS], bug.counted) > 0
    assert not report.holds


def test_the_planted_bugs_fit_the_library() -> None:
    for bug in CRASH_BUGS.values():
        for edit in bug.change:
            edit.check()
