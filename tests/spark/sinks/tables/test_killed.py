"""One handler with sinks of several kinds; their workers are killed, and the driver between two.

Delta and Iceberg take part where this pyspark has jars for them: `make prove-oldest`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psycopg
import pytest

from fanout.errors import SetupError
from tests.jars.fetch import delta_set, iceberg_set, spark_jars
from tests.spark.sinks.tables.killed_driver import RECORDS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.prove, pytest.mark.timeout(1200)]


def kinds() -> list[str]:
    found = ["parquet", "postgres"]
    for name, jars in (("delta", delta_set), ("iceberg", iceberg_set)):
        try:
            _ = spark_jars(jars())
        except SetupError:
            continue
        found.append(name)
    return found


@pytest.mark.fault("Workers of each sink are killed, and the driver between two sinks")
def test_kills_of_workers_and_between_two_sinks_lose_and_repeat_nothing(
    database_url: str, tmp_path: Path
) -> None:
    with psycopg.connect(database_url) as database:
        database.execute("CREATE TABLE orders (id bigint)")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    written = kinds()
    command = [sys.executable, "-m", "tests.spark.sinks.tables.killed_driver"]
    command += [str(tmp_path), database_url, *written]
    runs = [subprocess.run(command, env=environment, check=False).returncode for _ in range(2)]  # noqa: S603
    assert runs == [-signal.SIGKILL, 0]
    assert {one for one in written if (tmp_path / one).exists()} == set(written), "workers died"
    found = json.loads((tmp_path / "rows.json").read_text())
    with psycopg.connect(database_url) as database:
        found["postgres"] = [n for (n,) in database.execute("TABLE orders ORDER BY id")]
    assert found == {name: [*range(1, RECORDS + 1)] for name in written}
