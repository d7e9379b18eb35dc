"""Run the tests of units on another event loop, and in an environment that is hostile to them.

What fails there alone follows something that it should not. tests/kinesis/test_environment.py has
the settings of clients of AWS one by one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
SUITES: Final = ("tests/core", "tests/kinesis", "tests/metrics")

DEAD: Final = "http://127.0.0.1:9"
HERE: Final = "127.0.0.1,localhost"
HOSTILE: Final = {
    "AWS_ACCOUNT_ID_ENDPOINT_MODE": "required",
    "AWS_DEFAULTS_MODE": "auto",
    "AWS_MAX_ATTEMPTS": "1",
    "AWS_REQUEST_MIN_COMPRESSION_SIZE_BYTES": "1",
    "AWS_RETRY_MODE": "adaptive",
    "AWS_STS_REGIONAL_ENDPOINTS": "legacy",
    "AWS_USE_DUALSTACK_ENDPOINT": "true",
    "AWS_USE_FIPS_ENDPOINT": "true",
    **dict.fromkeys(("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY"), DEAD),
    **dict.fromkeys(("all_proxy", "http_proxy", "https_proxy"), DEAD),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), HERE),
    "LANG": "C",
    "LC_ALL": "C",
    "PGCLIENTENCODING": "LATIN1",
    "PGTZ": "America/St_Johns",
    "PYTHONUTF8": "0",
    "TZ": "Asia/Kathmandu",
}


# Each takes a quarter of an hour on a small machine; each of its tests has the usual time.
@pytest.mark.prove
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("environment", "options"),
    [({}, ["-p", "tests.uvloop_everywhere"]), (HOSTILE, [])],
    ids=["uvloop", "hostile"],
)
def test_units_pass_elsewhere(environment: dict[str, str], options: list[str]) -> None:
    # Not one of the processes that this one may be among.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(  # noqa: S603 - the tests of this checkout
        [sys.executable, "-m", "pytest", "-q", "-m", "not prove", *options, *SUITES],
        cwd=ROOT,
        env=own | environment,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
