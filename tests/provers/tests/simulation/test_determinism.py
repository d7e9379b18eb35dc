"""A seed gives the same run in every process, in any order of sets."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.provers.tests.simulation.digests import DIGESTS


def _output_of_a_process(hash_seed: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.provers.tests.simulation.digests"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def outputs() -> list[list[str]]:
    """The output of two processes, in lines as of `digests`."""
    with ThreadPoolExecutor() as processes:
        return list(processes.map(_output_of_a_process, ("0", "1")))


@pytest.mark.parametrize("name", DIGESTS)
def test_a_seed_gives_the_same_run_in_every_process(name: str, outputs: list[list[str]]) -> None:
    here = f"{name}: {' '.join(DIGESTS[name]())}"

    for lines in outputs:
        assert here in lines
