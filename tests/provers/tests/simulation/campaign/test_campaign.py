from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from fanout.errors import SetupError
from tests.provers.simulation.campaign import worker
from tests.provers.simulation.campaign.campaign import run_campaign
from tests.provers.simulation.campaign.failures import FailureKind, RunFailure, try_kinesis_seed
from tests.provers.simulation.campaign.totals import Totals
from tests.provers.tests.simulation.campaign.seed_runs import DEADLY, ENDLESS, answer, misbehave
from tests.provers.tests.simulation.planted_defect import begin_again

_UNTIL_INTERRUPTED = """
import itertools
from tests.provers.simulation.campaign.campaign import run_campaign
from tests.provers.tests.simulation.campaign.seed_runs import answer
if __name__ == "__main__":
    try:
        for result in run_campaign(itertools.count(), processes=2, run=answer):
            print(result.seed, flush=True)
    except KeyboardInterrupt:
        print("interrupted")
"""


def not_of_another_process(_: int) -> RunFailure:
    raise AssertionError


def test_a_seed_that_hangs_or_kills_its_process_is_a_failure_and_the_others_are_run() -> None:
    results = list(run_campaign(range(40), processes=2, patience=6, run=misbehave))

    assert sorted(result.seed for result in results) == list(range(40))
    failures = sorted(
        (each for each in results if isinstance(each, RunFailure)), key=lambda f: f.seed
    )
    assert failures == [
        RunFailure(DEADLY, FailureKind.DIED, "died: its process has ended with exit code 3"),
        RunFailure(ENDLESS, FailureKind.HUNG, "hung: it ran for more than 6 s"),
    ]


def test_a_process_that_takes_too_long_to_begin_says_how_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "_STARTUP", 0.0)
    with pytest.raises(SetupError, match=r"could not begin \(it ran for more than 0 s\)"):
        list(run_campaign(range(1), processes=1))


def test_a_process_that_cannot_begin_is_no_failure_of_a_seed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(not_of_another_process, "__module__", "nowhere")
    monkeypatch.setitem(sys.modules, "nowhere", sys.modules[__name__])

    with pytest.raises(SetupError, match=r"could not begin .* exit code 1"):
        list(run_campaign(range(4), run=not_of_another_process))
    assert "No module named 'nowhere'" in capfd.readouterr().err


def test_whoever_stops_early_leaves_no_process() -> None:
    with closing(run_campaign(range(10_000), processes=2, run=answer)) as results:
        next(results)
        assert multiprocessing.active_children()

    assert multiprocessing.active_children() == []


def test_ctrl_c_ends_it_without_a_word_from_its_processes() -> None:
    with subprocess.Popen(  # noqa: S603 - our own interpreter and program
        [sys.executable, "-c", _UNTIL_INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        output, complaints = process.communicate()

    # The signal may come between a number and the end of its line.
    assert (process.returncode, complaints) == (0, "")
    assert output.endswith("interrupted\n")


def test_other_processes_and_this_one_run_every_seed_once_and_come_to_the_same() -> None:
    alone, together = (
        sorted(run_campaign(range(6), processes=processes), key=lambda result: result.seed)
        for processes in (0, 2)
    )

    assert alone == together
    assert [result.seed for result in alone] == list(range(6))
    assert sum(map(Totals.of, alone), Totals()).records > 0


def test_a_defect_is_found_and_named_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    begin_again(monkeypatch)

    results = list(run_campaign(range(8), processes=0))

    failures = [each for each in results if isinstance(each, RunFailure)]
    assert len(results) == 8
    assert any("sent a record that is not after its position" in each.text for each in failures)
    assert failures[0] == try_kinesis_seed(failures[0].seed)
    assert failures[0].command == f"python -m tests.provers sim replay {failures[0].seed}"
