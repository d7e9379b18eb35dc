"""A short campaign against real Spark and Kafka, in which there is something to find."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.provers.crash.campaign import LOG, run_campaign
from tests.provers.crash.moments import CrashMoment, Pipeline, Strike, StrikeKind
from tests.provers.crash.plan import CampaignFailedError, CrashOptions, Round
from tests.provers.planted.crash_bugs import CRASH_BUGS
from tests.support.process_list import running_with

if TYPE_CHECKING:
    from collections.abc import Iterator

# Half a minute each where nothing else runs; they wait for JVMs, which take their time.
pytestmark = [
    pytest.mark.alone,
    pytest.mark.usefixtures("_kafka_jars"),
    pytest.mark.timeout(600),
]


@pytest.fixture(autouse=True)
def temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    yield directory
    assert running_with(str(directory)) == {}


def struck(moment: CrashMoment, kind: StrikeKind, pipeline: Pipeline) -> Round:
    return Round((Strike(moment, kind, pipeline),), 0.1, 0.5)


@pytest.mark.spark
def test_whatever_is_killed_each_record_is_written_once_but_where_a_sink_may_repeat_some(
    temporary_files: Path,
) -> None:
    plan = [
        struck(CrashMoment.AFTER_TOKEN, StrikeKind.KILL_DRIVER, Pipeline.KAFKA),
        struck(CrashMoment.BEFORE_END, StrikeKind.KILL_BROKER, Pipeline.KAFKA),
        # Written, and not committed by Spark: the next driver writes it again.
        struck(CrashMoment.BEFORE_COMMIT, StrikeKind.KILL_DRIVER, Pipeline.KINESIS),
    ]
    options = CrashOptions(
        rounds=len(plan),
        pipelines=(Pipeline.KINESIS, Pipeline.KAFKA),
        at_least_once=(Pipeline.KINESIS,),
    )
    report = run_campaign(options, plan=plan)
    assert all(each.reached for each in report.struck)
    once, repeating = report.verdicts[Pipeline.KAFKA], report.verdicts[Pipeline.KINESIS]
    assert once.holds
    assert once.read > 1_000
    assert all(each.caught_up is not None and not each.failures for each in report.rounds)
    assert repeating.duplicated > 0
    assert (repeating.lost, repeating.altered) == (0, 0)
    assert report.open_transactions == 0
    assert not report.holds
    # What was wrong is kept for a look.
    assert report.kept is not None
    assert Path(report.kept).parent == temporary_files
    assert (Path(report.kept) / Pipeline.KINESIS / "fanout").is_dir()


@pytest.mark.spark
@pytest.mark.prove
def test_a_coordinator_that_checks_no_position_is_found_out() -> None:
    name = "a coordinator checks no position"
    bug = CRASH_BUGS[name]
    options = CrashOptions(rounds=2, pipelines=(bug.shown_by.pipeline,), planted=name)
    report = run_campaign(options, plan=[Round((bug.shown_by,), 0.1, 0.5)] * 2)
    assert all(each.reached for each in report.struck)
    assert report.verdicts[bug.shown_by.pipeline].duplicated > 0
    assert not report.holds


def test_a_job_that_never_starts_ends_the_campaign(
    monkeypatch: pytest.MonkeyPatch, temporary_files: Path
) -> None:
    monkeypatch.setattr(
        "tests.provers.crash.campaign._DRIVER", "tests.provers.crash.no_such_module"
    )
    with pytest.raises(CampaignFailedError, match="never got under way") as caught:
        run_campaign(CrashOptions(rounds=1, pipelines=(Pipeline.KAFKA,)))
    [kept] = temporary_files.iterdir()
    assert str(kept / LOG) in str(caught.value)
    assert "no_such_module" in (kept / LOG).read_text()


def test_nothing_is_left_of_a_campaign_that_is_interrupted(temporary_files: Path) -> None:
    command = [sys.executable, "-m", "tests.provers", "crash", "--pipeline", "kafka"]
    environment = os.environ | {"TMPDIR": str(temporary_files)}
    with subprocess.Popen(command, env=environment) as process:  # noqa: S603 - our own command
        try:
            while not any(temporary_files.glob(f"fanout-crash-*/{Pipeline.KAFKA}")):
                assert process.poll() is None
                time.sleep(0.05)  # until the driver runs
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
    assert list(temporary_files.iterdir()) == []
