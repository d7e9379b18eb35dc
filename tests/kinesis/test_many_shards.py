"""256 shards in one process: what it holds in memory, and that everything arrives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[2]

SHARDS = 256
EVENTS = 4
EVENT_RECORDS = 2
EVENT_BYTES = 512 << 10
# As it comes over the wire, in base64 and with some hundred bytes around it.
WIRE_BYTES = EVENT_BYTES * 4 // 3
# Memory beside events: connections, and the bytes that their buffers have read ahead.
SLACK = 64 << 20
# glibc keeps a little of what events have occupied while they were decoded. With this set it goes
# back at once, and resident memory tells what is really held.
GIVING_BACK: Mapping[str, str] = MappingProxyType({"MALLOC_TRIM_THRESHOLD_": "131072"})
NOTHING: Mapping[str, str] = MappingProxyType({})

pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(
        not Path("/proc/self/status").exists(), reason="only Linux reports resident memory"
    ),
]


@dataclass(frozen=True, slots=True)
class Backlog:
    """An embedded Kinesis whose 256 shards have events waiting, and the numbers of the records."""

    server: KinesisServer
    log: dict[str, list[str]]

    def read(
        self, consumer: str, *, allowed: int, held: int, environment: Mapping[str, str] = NOTHING
    ) -> int:
        """Read everything in another process; return the bytes by which its memory grew."""
        arguments = (allowed, held, SHARDS * EVENTS * EVENT_RECORDS)
        command = [sys.executable, "-m", "tests.kinesis.memory_growth", self.server.endpoint_url]
        reader = subprocess.run(  # noqa: S603 - our own interpreter and module
            [*command, consumer, *map(str, arguments)],
            cwd=ROOT,
            env=os.environ | dict(environment),
            stdout=subprocess.PIPE,
            check=True,
        )
        result = json.loads(reader.stdout)
        assert result["log"] == self.log
        return int(result["grown"])


@pytest.fixture(scope="module")
def backlog() -> Iterator[Backlog]:
    rules = replace(KinesisRules(), max_event_records=EVENT_RECORDS)
    # The readers are other processes. Here it takes half a gigabyte without HTTP.
    with KinesisServer(rules) as server:
        server.create_stream("orders", SHARDS)
        data = bytes(EVENT_BYTES // EVENT_RECORDS)
        log = {}
        for shard in range(SHARDS):
            name = f"shardId-{shard:012}"
            put = server.put_records("orders", [("key", data)] * EVENTS * EVENT_RECORDS, shard=name)
            log[name] = [number for _, number in put]
        yield Backlog(server, log)


@pytest.mark.fault("256 shards have large events waiting at once")
def test_resident_memory_grows_by_3_events_of_each_shard_at_most(backlog: Backlog) -> None:
    grown = backlog.read("memory_growth", allowed=4 << 30, held=2 * SHARDS * WIRE_BYTES)
    assert grown <= SHARDS * 3 * EVENT_BYTES + SLACK


@pytest.mark.fault("256 shards have large events waiting at once")
def test_resident_memory_grows_by_the_bytes_in_flight_where_events_are_large(
    backlog: Backlog,
) -> None:
    allowed = 256 << 20
    held = allowed - 2 * WIRE_BYTES
    grown = backlog.read("frugal", allowed=allowed, held=held, environment=GIVING_BACK)
    assert grown <= allowed + SLACK
