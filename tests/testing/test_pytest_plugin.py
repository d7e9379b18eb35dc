from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from fanout.testing.rules import KinesisRules

if TYPE_CHECKING:
    from fanout.testing.kinesis_server import KinesisServer


def test_the_fixture_is_a_running_server(kinesis_server: KinesisServer) -> None:
    assert kinesis_server.create_stream("orders").endswith(":stream/orders")


def test_the_fixture_is_quick(kinesis_server: KinesisServer) -> None:
    assert kinesis_server.rules == KinesisRules.fast()


def test_the_plugin_imports_no_server() -> None:
    code = (
        "import sys, fanout.testing.pytest_plugin;"
        "assert not {'moto', 'boto3', 'fanout.testing.kinesis_server'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603 (our own interpreter)
