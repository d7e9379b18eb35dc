"""The JVM of the driver dies and Python lives: no query may end as if all were well."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.lost_jvm_driver import STATES
from tests.support.patience import PATIENCE

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    driver = subprocess.run(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", "tests.spark.lost_jvm_driver", str(tmp_path_factory.mktemp("lost"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert driver.stdout, driver.stderr
    return json.loads(driver.stdout)


@pytest.mark.parametrize("state", STATES)
def test_a_query_says_that_the_jvm_has_gone(outcomes: Any, state: str) -> None:
    outcome = outcomes[state]
    assert outcome["error"] == "SparkLostError", outcome
    assert outcome["message"].startswith("Spark's JVM has gone away")
    assert "start the query again on the same checkpoint" in outcome["message"]
    assert outcome["cause"]
    assert outcome["exception"]
