"""Let faults strike a cluster for some minutes, measure stalls, and count the records."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from asyncio.subprocess import PIPE
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, final

from fanout.testing.kafka.cluster import KafkaCluster
from tests.provers.cluster.faults import FAULTS
from tests.provers.cluster.peers import ConsumerPeer, Peer, SharePeer, TransactionPeer
from tests.provers.cluster.records import PARTITIONS, Load, Progress, count_topic
from tests.provers.cluster.roles import Role, ShareRole, ShuffleRole, SourceRole, WriterRole
from tests.provers.cluster.spark_role import __file__ as _spark_file

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("ClusterReport", "run_cluster_campaign")

_TOPICS: Final = ("in", "out", "out-peer", "out-spark", "shuffled")
_READY: Final = 300.0
_SETTLE: Final = 8.0
_RECOVER: Final = 120.0
_LOOK: Final = 0.2
_FILE: Final = Path(_spark_file)


@final
@dataclass(slots=True)
class ClusterReport:
    """What a campaign has found.

    Args:
        seconds: How long faults struck.
        times: How often each fault came.
        stalls: The longest stall of each role, by fault.
        counts: What each role has got, as confluent-kafka counts it or it did itself.
        failures: The errors after which a role was begun again.
        gaps: Where numbers of a key are missing, or which, by role.
        stuck: Roles that made no progress for two minutes after a fault.
    """

    seconds: float = 0.0
    times: Counter[str] = field(default_factory=Counter)
    stalls: defaultdict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    failures: dict[str, dict[str, int]] = field(default_factory=dict)
    gaps: dict[str, list[str]] = field(default_factory=dict)
    stuck: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether nothing of ours is lost, repeated or out of order, and nothing is stuck."""
        wrong = ("lost", "repeated", "lost or out of order")
        ours = [counts for name, counts in self.counts.items() if "librdkafka" not in name]
        return not self.stuck and not any(each.get(name) for each in ours for name in wrong)

    def to_json(self) -> str:
        """Write the report on one line."""
        names = ("seconds", "times", "stalls", "counts", "failures", "gaps", "stuck", "holds")
        return json.dumps({name: getattr(self, name) for name in names})

    def table(self) -> str:
        """Write the longest stalls as a table, in seconds."""
        roles = list(dict.fromkeys(role for stalls in self.stalls.values() for role in stalls))
        lines = [f"| fault | times | {' | '.join(roles)} |", "|---" * (len(roles) + 2) + "|"]
        for fault, stalls in self.stalls.items():
            cells = (f"{stalls[role]:.1f}" if role in stalls else "" for role in roles)
            lines.append(f"| {fault} | {self.times[fault]} | {' | '.join(cells)} |")
        return "\n".join(lines)


def run_cluster_campaign(
    minutes: float, seed: int, *, spark: bool, note: Callable[[str], None]
) -> ClusterReport:
    """Run a campaign.

    Args:
        minutes: For how long faults begin.
        seed: What their order and nodes are drawn from.
        spark: Whether a query of Spark runs as well.
        note: Receives a line for each fault.
    """
    with TemporaryDirectory() as scratch, KafkaCluster() as cluster:
        for topic in _TOPICS:
            cluster.create_topic(topic, PARTITIONS)
        campaign = _Campaign(cluster, Random(seed), Path(scratch), note)
        return asyncio.run(campaign.run(minutes * 60, spark=spark))


@final
class _Campaign:
    def __init__(
        self, cluster: KafkaCluster, random: Random, scratch: Path, note: Callable[[str], None]
    ) -> None:
        servers = cluster.bootstrap_servers
        self._cluster = cluster
        self._random = random
        self._scratch = scratch
        self._note = note
        self._load = Load(servers, "in")
        self._shuffle = ShuffleRole(servers, "shuffled")
        self._source = SourceRole(servers, "in")
        self._share = ShareRole(servers, "in")
        self._roles: list[Role] = [
            self._source,
            WriterRole(servers, "in", "out"),
            self._share,
            self._shuffle,
        ]
        self._peers: dict[str, Peer] = {
            "librdkafka consumer": ConsumerPeer(servers, "in"),
            "librdkafka transactions": TransactionPeer(servers, "in", "out-peer"),
            "librdkafka share": SharePeer(servers, "in"),
        }
        self._spark = Progress()
        self._spark_failures: Counter[str] = Counter()
        self._report = ClusterReport()

    async def run(self, seconds: float, *, spark: bool) -> ClusterReport:
        """Run roles and faults, and count at the end."""
        self._tasks = tasks = [asyncio.create_task(role.run()) for role in self._roles]
        shuffling = tasks[self._roles.index(self._shuffle)]
        reading = asyncio.create_task(self._shuffle.read())
        tasks.append(reading)
        loading = asyncio.create_task(self._load.run())
        query = await self._start_spark() if spark else None
        if query is not None:
            tasks.append(asyncio.create_task(self._hear(query)))
        for peer in self._peers.values():
            peer.start()
        self._measured = self._parts(spark=spark)
        try:
            await self._wait_for_all(time.monotonic(), _READY)
            began = time.monotonic()
            while time.monotonic() - began < seconds:
                for fault in self._random.sample(list(FAULTS), len(FAULTS)):
                    await self._strike(fault)
            self._report.seconds = time.monotonic() - began
            self._load.end()
            await loading
            shuffling.cancel()  # its last records are to be read, too
            await self._finish()
        finally:
            for task in (*tasks, loading):
                task.cancel()
            await asyncio.wait([*tasks, loading])
            if query is not None:
                await _end(query)
            for peer in self._peers.values():
                await asyncio.to_thread(peer.stop)
        await asyncio.to_thread(self._count, spark=spark)
        return self._report

    def _parts(self, *, spark: bool) -> dict[str, Progress]:
        parts = {role.name: role.progress for role in self._roles}
        if spark:
            parts["spark sink"] = self._spark
        return parts | {name: peer.progress for name, peer in self._peers.items()}

    async def _strike(self, fault: str) -> None:
        began = time.monotonic()
        await asyncio.to_thread(FAULTS[fault], self._cluster, self._random)
        over = time.monotonic()
        await asyncio.sleep(_SETTLE)
        await self._wait_for_all(over, _RECOVER, fault)
        until = time.monotonic()
        self._report.times[fault] += 1
        stalls = self._report.stalls[fault]
        now = {name: part.longest(began, until) for name, part in self._measured.items()}
        stalls.update({name: max(stalls.get(name, 0.0), stall) for name, stall in now.items()})
        text = ", ".join(f"{name} {stall:.1f}" for name, stall in now.items())
        self._note(f"{fault}: {until - began:.0f} s; stalls: {text}")

    async def _wait_for_all(self, since: float, patience: float, after: str = "the start") -> None:
        """Wait until every role has made progress."""
        deadline = time.monotonic() + patience
        ours = {name: part for name, part in self._measured.items() if name not in self._peers}
        while late := [name for name, part in ours.items() if not part.since(since)]:
            for task in self._tasks:
                if task.done():
                    task.result()
            if time.monotonic() > deadline:
                self._report.stuck += [f"{name} after {after}" for name in late]
                self._note(f"stuck: {late}")
                return
            await asyncio.sleep(_LOOK)

    async def _finish(self) -> None:
        """Wait until everything that was put has come out."""
        deadline = time.monotonic() + _RECOVER
        while time.monotonic() < deadline:
            if await self._is_out():
                break
            await asyncio.sleep(_LOOK)
        await asyncio.sleep(_SETTLE)

    async def _is_out(self) -> bool:
        """Return whether each of our roles has what was put."""
        due = sum(self._load.confirmed.values())
        read = sum(self._source.seen.next.values())
        if min(read, len(self._share.seen.times)) < due:
            return False
        shuffled = self._shuffle.seen.next
        if any(shuffled[key] < count for key, count in self._shuffle.counts.items()):
            return False
        copied = await asyncio.to_thread(count_topic, self._cluster.bootstrap_servers, "out")
        return sum(copied.next.values()) >= due

    def _count(self, *, spark: bool) -> None:
        servers, found = self._cluster.bootstrap_servers, self._report.counts
        # librdkafka may have written a record twice, which everyone then reads twice.
        put = count_topic(servers, "in")
        counts = dict(put.next)
        found["librdkafka producer"] = put.compare(self._load.confirmed, {})
        found["share"] = self._share.compare(put)
        self._report.gaps["share"] = self._share.seen.missing(put)
        found["shuffle"] = self._shuffle.seen.compare(self._shuffle.counts, {})
        topics = {"writer": "out", "librdkafka transactions": "out-peer"}
        topics |= {"spark sink": "out-spark"} if spark else {}
        seen = {name: count_topic(servers, topic) for name, topic in topics.items()}
        seen["source"] = self._source.seen
        seen["librdkafka consumer"] = self._peers["librdkafka consumer"].seen
        for name, each in seen.items():
            found[name] = each.compare(counts, put.wrong)
            self._report.gaps[name] = each.gaps
        failures = {role.name: dict(role.failures) for role in self._roles}
        failures |= {name: dict(peer.failures) for name, peer in self._peers.items()}
        failures["spark sink"] = dict(self._spark_failures)
        failures["load"] = {"not confirmed": self._load.failed} if self._load.failed else {}
        self._report.failures = {name: each for name, each in failures.items() if each}

    async def _start_spark(self) -> asyncio.subprocess.Process:
        path = os.pathsep.join(filter(None, [str(_FILE.parents[3]), os.environ.get("PYTHONPATH")]))
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"tests.provers.cluster.{_FILE.stem}",
            self._cluster.bootstrap_servers,
            str(self._scratch),
            stdin=PIPE,
            stdout=PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )

    async def _hear(self, query: asyncio.subprocess.Process) -> None:
        assert query.stdout is not None
        async for line in query.stdout:
            text = line.decode().strip()
            if text == "batch":
                self._spark.mark()
            elif text.startswith("failed"):
                self._spark_failures[text[:300]] += 1


async def _end(query: asyncio.subprocess.Process) -> None:
    assert query.stdin is not None
    query.stdin.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(_RECOVER):
            await query.wait()
    if query.returncode is None:
        query.kill()
        await query.wait()
