"""Records of 10 MiB in 64 shards: what a writer and a reader hold in memory, and that all come."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.support.kinesis.reading import Stream

ROOT = Path(__file__).parents[2]
SHARDS = RECORDS = 64
MIB = 1 << 20
IN_FLIGHT = 32 * MIB  # the writer's default
# Data, base64, the request as text and as bytes, and what the network holds of it. One record more
# than fit is made before it waits.
COPIES = 5
SLACK = 64 * MIB

pytestmark = [
    pytest.mark.prove,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not Path("/proc/self/status").exists(), reason="only Linux reports resident memory"
    ),
]


def run(module: str, *arguments: object) -> str:
    done = subprocess.run(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"MALLOC_TRIM_THRESHOLD_": "131072"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def test_memory_is_bounded_by_the_bytes_in_flight() -> None:
    allowed = 256 * MIB
    with KinesisServer(KinesisRules()) as server:
        stream = Stream(server, shards=SHARDS)
        stream.limit_records(10 * MIB)
        stream.distribute()
        written = int(run("tests.kinesis.memory_of_writer", server.endpoint_url, RECORDS))
        assert written <= COPIES * IN_FLIGHT + SLACK
        arguments = (allowed, 15 * 13 * MIB, RECORDS + 1)
        read = json.loads(
            run("tests.kinesis.memory_growth", server.endpoint_url, "etl", *arguments)
        )
        assert sum(map(len, read["log"].values())) == RECORDS + 1
        assert read["grown"] <= allowed + 2 * SLACK
