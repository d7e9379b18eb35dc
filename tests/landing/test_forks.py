"""A landing in a process that was forked, in which no threads of its parent are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fanout.testing.s3_clients import BUCKET
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


def forked(*arguments: str) -> list[str]:
    """Run the program that forks; what hangs in a fork is killed with its group."""
    ran = subprocess.run(  # noqa: S603 - ours
        [sys.executable, "-W", "ignore", "-m", "tests.landing.forked", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    return ran.stdout.splitlines()


def test_object_storage_that_the_parent_has_used_is_refused(moto: str) -> None:
    before, *after = forked("s3", f"s3://{BUCKET}/forked", moto)
    assert before == "None"
    for line in after:
        assert line.startswith("SetupError: object storage cannot be reached from process FORK, ")
        assert line.endswith(
            ": start it with the start method spawn or forkserver of multiprocessing"
        )
    assert len(after) == 2


def test_a_lock_of_the_parent_is_not_the_fork_s(tmp_path: Path) -> None:
    assert forked("lock", str(tmp_path / "lock")) == ["(False, False)", "(True, True)"]
