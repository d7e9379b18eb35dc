from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fanout.testing.kinesis.rules import KinesisRules

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.testing.kinesis.server import KinesisServer


def test_the_fixture_is_a_running_server(kinesis_server: KinesisServer) -> None:
    assert kinesis_server.create_stream("orders").endswith(":stream/orders")


def test_the_fixture_is_quick(kinesis_server: KinesisServer) -> None:
    assert kinesis_server.rules == KinesisRules.fast()


def test_the_plugin_imports_no_server() -> None:
    code = (
        "import sys, fanout.testing.pytest_plugin;"
        "assert not {'moto', 'boto3', 'fanout.testing.kinesis.server'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 (our own interpreter)


USES_KAFKA = "def test_it(kafka_broker): assert kafka_broker.pid"


def run_without_kafka(directory: Path, **environment: str) -> str:
    """Run a test that wants the broker where its jars are not there and cannot be had."""
    test = directory / "test_it.py"
    test.write_text(USES_KAFKA)
    answer = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", test.name],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env={**os.environ, "JAVA_HOME": "/nowhere", "XDG_CACHE_HOME": str(directory)} | environment,
    )
    return answer.stdout


def test_where_kafka_cannot_be_had_its_tests_are_skipped(tmp_path: Path) -> None:
    output = run_without_kafka(tmp_path, FANOUT_REQUIRE_KAFKA="")
    assert "1 skipped" in output
    assert "JAVA_HOME is /nowhere, which has no bin/java" in output


@pytest.mark.long
def test_where_kafka_is_required_its_tests_fail(tmp_path: Path) -> None:
    output = run_without_kafka(tmp_path, FANOUT_REQUIRE_KAFKA="1")
    assert "1 error" in output
    assert "JAVA_HOME is /nowhere, which has no bin/java" in output
