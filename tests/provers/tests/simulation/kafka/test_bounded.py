"""Bounded reads of simulated clusters whose brokers fail: they end, and have all there was."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fanout.core.opening import open_stream
from fanout.errors import FanOutError
from fanout.testing.virtual_time.loop import SimLoop, running_loop, simulate
from tests.provers.simulation.job.process_run import ProcessRun
from tests.provers.simulation.kafka.faults import KafkaFaultKind
from tests.provers.simulation.kafka.plan_draws import draw_kafka_plan
from tests.provers.simulation.kafka.world import KafkaWorld
from tests.provers.simulation.kinesis.oracle.held_events import HeldEvents
from tests.provers.simulation.randomness import stream_of

if TYPE_CHECKING:
    from fanout.kafka.partitions import Partition
    from tests.provers.simulation.kafka.plan import KafkaPlan

# What is the end for one broker is not that for another, and what had to strike one after the other
# strikes together where there is no reader before.
_LEFT_OUT = {KafkaFaultKind.LAGGING_LEADER, KafkaFaultKind.REFUSED, KafkaFaultKind.CORRUPT}


def harmless(seed: int) -> KafkaPlan:
    """Draw a plan in which nothing is lost, and no request is refused for good."""
    plan = draw_kafka_plan(seed)
    kept = (
        fault
        for fault in plan.cluster_faults
        if not (fault.traits.lossy or fault.traits.fatal or fault.kind in _LEFT_OUT)
    )
    return replace(
        plan,
        start="earliest",
        # A pattern that matches nothing, as a broker that has just started says, ends at once.
        selection="topics" if plan.selection == "pattern" else plan.selection,
        broken=None,
        faults=(),
        cluster_faults=tuple(kept),
    )


def ends(world: KafkaWorld) -> dict[Partition, int]:
    now, committed = running_loop().time(), world.oracle.committed
    found = {partition: log.era(now) for partition, log in world.oracle.logs.items()}
    return {
        partition: era.end(now, committed=committed)
        for partition, era in found.items()
        if era is not None
    }


async def read(plan: KafkaPlan) -> int:
    """Read what there is at a moment; return how many records that were."""
    world = KafkaWorld(plan, lambda _: None)
    await asyncio.sleep(stream_of(plan.seed, "bounded").uniform(0, plan.seconds))
    for number in range(1, 100):
        run = ProcessRun(number, HeldEvents(1 << 40))
        witness, first = world.witness(run), ends(world)
        opening = open_stream(
            world.source(run),
            available_now=True,
            on_resubscribe=witness.resubscribes,
            random=world.product,
        )
        try:
            async with opening as stream:
                last = ends(world)
                run.opened = True
                witness.opened(stream)
                reading = world.oracle.begin(stream.positions, run, anew=True)
                async for batch in stream:
                    reading.deliver(batch)
                    run.held.get(batch)
                witness.closing(reading)
        except FanOutError:
            assert not run.opened, "a stream that is open fails of nothing that passes"
            await asyncio.sleep(10.0)
            continue
        witness.closed()
        for partition, end in first.items():
            place = reading.places[partition]
            assert not reading.owed(partition, place.next, end), f"{partition} was not read"
            assert place.next <= last[partition], f"{partition} was read beyond its stop"
        return world.oracle.checked
    raise AssertionError("the stream is never opened")


@pytest.mark.parametrize("part", range(4))
def test_a_bounded_read_ends_with_all_that_was_there_and_nothing_more(part: int) -> None:
    records = 0
    for seed in range(25 * part, 25 * part + 25):
        plan = harmless(seed)

        def loop(plan: KafkaPlan = plan) -> SimLoop:
            return SimLoop(schedule=plan.task_order(), max_seconds=3600.0)

        records += simulate(read, plan, loop_factory=loop)
    assert records > 300
