"""The metrics of landers, read through a real SDK while landers die, against what was read."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING

from fanout.core.positions import Cursor
from tests.landers.rig import Rig, until
from tests.support.collected_metrics import Collected
from tests.support.manual_source import ManualSource

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = 40


class Oracle:
    """Take batches, and count what they hold."""

    def __init__(self, rig: Rig) -> None:
        self.rows: list[tuple[str, int]] = []
        self.bytes = 0
        self._rig = rig

    async def has(self, records: int) -> None:
        while len(self.rows) < records:
            batch = await self._rig.batch()
            self.rows += await self._rig.rows(batch)
            self.bytes += sum(file.size for file in batch.segments)


async def test_each_number_is_that_of_the_oracle_while_a_lander_dies(tmp_path: Path) -> None:
    source = ManualSource("a", "b")
    collected = Collected()

    def put() -> None:
        for split in "ab":
            source.put(*(b"canary" for _ in range(RECORDS)), split=split)

    with closing(collected):
        async with asyncio.timeout(60.0), Rig(source, tmp_path, max_records=10).running() as rig:
            counted, oracle = rig.coordinator.statistics, Oracle(rig)
            with collected.metrics.watch(rig.coordinator):
                assert "fanout.landers" not in collected.now()
                for lander in (0, 1):
                    rig.start(lander)
                await until(lambda: len(counted().landers) == 2)
                put()
                await oracle.has(2 * RECORDS)
                now = collected.now()
                assert now["fanout.landers"] == {"": 2}
                assert now["fanout.lander.sessions"] == {"": 2}
                limit = rig.connection.pacing.max_bytes_in_flight
                assert now["fanout.memory.limit"] == {"": 2 * limit}
                assert now["messaging.client.consumed.messages"] == {"": len(oracle.rows)}
                assert now["fanout.consumed.bytes"] == {"": oracle.bytes}
                await rig.kill(0)
                now = collected.now()
                assert now["fanout.landers"] == {"": 1}
                assert now["fanout.lander.sessions"] == {"": 2}
                assert now["fanout.memory.limit"] == {"": limit}
                rig.start(0)
                put()
                await oracle.has(4 * RECORDS)
                await until(lambda: all(at.delivered == Cursor(80) for at in rig.progress))
                now, found = collected.now(), collected.all()
                assert now["fanout.landers"] == {"": 2}
                assert now["fanout.lander.sessions"] == {"": 3}
                assert sorted(oracle.rows) == [(split, n) for split in "ab" for n in range(1, 81)]
                assert now["messaging.client.consumed.messages"] == {"": 4 * RECORDS}
                assert now["fanout.consumed.bytes"] == {"": oracle.bytes}
                assert now["fanout.gaps"] == {"": 0}
                assert sum(now["fanout.splits"].values()) == 2
                assert "canary" not in "".join(metric.to_json() for metric in found.values())
        now = collected.now()
        assert now["fanout.lander.sessions"] == {"": 3}
        assert now["messaging.client.consumed.messages"] == {"": 4 * RECORDS}
        assert "fanout.landers" not in now
