from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.provers.planted.tested_bugs import TESTED_BUGS

_ROOT = Path(__file__).parents[4]
# Errors of an edit that is no mistake of a person.
_OF_THE_EDIT = ("AttributeError", "NameError", "PlantError", "UnboundLocalError")


@pytest.mark.parametrize("name", TESTED_BUGS)
def test_the_test_of_a_planted_bug_finds_it(name: str) -> None:
    # In a process of its own, since a Spark session there may not be one of these tests'.
    ran = subprocess.run(  # noqa: S603 - ours
        [sys.executable, "-m", "tests.provers.planted.tested_bugs", name],
        cwd=_ROOT,
        env=os.environ | {"PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == pytest.ExitCode.TESTS_FAILED, ran.stdout + ran.stderr
    failures = [line for line in ran.stdout.splitlines() if line.startswith(("E  ", "FAILED"))]
    assert not any(word in line for line in failures for word in _OF_THE_EDIT), ran.stdout
