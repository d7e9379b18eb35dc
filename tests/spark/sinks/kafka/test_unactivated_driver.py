"""Drivers whose virtual environment is not activated: `python3` is one without the library."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.sinks.kafka.harness import Output
from tests.support.kafka.topics import Topic

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker

# Long enough for a busy machine; nothing waits for it unless a driver hangs.
pytestmark = [pytest.mark.spark, pytest.mark.prove, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing in it; return its bin."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False, symlinks=True)
    return home / "bin"


def run_driver(
    master: str, output: Output, topic: Topic, directory: Path, python3: Path
) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    environment.pop("PYSPARK_PYTHON", None)
    environment["PATH"] = f"{python3}:{environment['PATH']}"
    return subprocess.run(  # noqa: S603 - our own interpreter and module
        [
            sys.executable,
            *("-m", "tests.spark.sinks.kafka.unactivated_driver", master),
            *(topic.broker.bootstrap_servers, topic.name, output.name),
            str(directory / "checkpoint"),
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_a_job_of_this_machine_writes_by_the_python_of_the_driver(
    kafka_broker: KafkaBroker, tmp_path: Path, bare: Path
) -> None:
    topic, output = Topic(kafka_broker), Output(kafka_broker)
    topic.put(10)
    done = run_driver("local[2]", output, topic, tmp_path, bare)
    assert done.returncode == 0, done.stderr
    assert output.values() == sorted(value or b"" for _, value in topic.log[0])


def test_a_job_of_a_cluster_says_what_to_install(
    kafka_broker: KafkaBroker, tmp_path: Path, bare: Path
) -> None:
    topic, output = Topic(kafka_broker), Output(kafka_broker)
    topic.put(10)
    done = run_driver("local-cluster[1,1,1024]", output, topic, tmp_path, bare)
    assert done.returncode == 1
    says = done.stderr.splitlines()[-1]
    assert says.startswith("SetupError: Spark's Python workers run python3 (Python 3."), done.stderr
    assert "No module named '" in says
    assert "install 'fanout-streams[kafka,spark]==" in says
    assert output.values() == []
