"""The metrics of a share group, read through a real SDK, against what was done with its records."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from fanout.errors import AcknowledgementError
from tests.support.collected_metrics import Collected, attributes
from tests.support.kafka.sharing import SHORT, deliveries, first, lent, new_group, offsets, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.testing.kafka.broker import KafkaBroker

OUTCOMES = ("accepted", "released", "rejected", "expired", "refused")


@pytest.fixture
def collected() -> Iterator[Collected]:
    with closing(Collected()) as opened:
        yield opened


def settled(**counts: int) -> dict[str, int]:
    return dict.fromkeys(OUTCOMES, 0) | counts


async def test_each_number_is_that_of_what_was_done_with_the_records(
    kafka_broker: KafkaBroker, collected: Collected
) -> None:
    group = await new_group(kafka_broker, 10)
    loop = asyncio.get_running_loop()
    async with group.open(max_poll_records=10) as stream:
        with collected.metrics.watch(stream):
            assert collected.now()["fanout.share.settled"] == settled()
            asked = loop.time()
            batch = await first(stream)
            assert offsets(batch) == list(range(10))
            now = collected.now()
            assert now["fanout.share.acquired"] == now["fanout.share.pending.records"] == {"": 10}
            assert now["fanout.share.redelivered"] == {"": 0}
            assert now["fanout.share.pending.bytes"][""] >= batch.nbytes
            await asyncio.sleep(0.3)
            assert 0.3 <= collected.now()["fanout.share.pending.age"][""] <= loop.time() - asked + 1

            await stream.lending.reject(batch, [0, 1, 2], reason="canary")
            await stream.acknowledge(batch)
            await until(stream, lambda counts: counts.pending_records == 0)
            now = collected.now()
            assert now["fanout.share.settled"] == settled(accepted=7, rejected=3)
            assert now["fanout.share.pending.records"] == {"": 0}
            assert now["fanout.share.pending.bytes"] == {"": 0}
            assert "fanout.share.pending.age" not in now

            await group.put(4)
            await stream.lending.release(await first(stream))
            again = await first(stream)
            assert (offsets(again), deliveries(again)) == ([10, 11, 12, 13], {2})
            now = collected.now()
            assert now["fanout.share.acquired"] == {"": 18}
            assert now["fanout.share.redelivered"] == {"": 4}
            assert now["fanout.share.settled"] == settled(accepted=7, rejected=3, released=4)
            assert now["fanout.share.pending.records"] == {"": 4}
            await stream.acknowledge(again)
            await until(stream, lambda counts: counts.pending_records == 0)
            now, found = collected.now(), collected.all()
            assert now["messaging.client.consumed.messages"] == {"": 18}
            assert "fanout.commits" not in now
    (base,) = attributes(found["fanout.share.acquired"])
    assert base == {
        "messaging.system": "kafka",
        "messaging.destination.name": group.topic.name,
        "messaging.consumer.group.name": group.id,
    }
    assert "canary" not in "".join(metric.to_json() for metric in found.values())
    now = collected.now()
    assert now["fanout.share.settled"] == settled(accepted=11, rejected=3, released=4)
    assert sum(now["fanout.share.settled"].values()) == now["fanout.share.acquired"][""]
    assert "fanout.share.pending.records" not in now


async def test_what_was_acknowledged_too_late_is_counted_as_lost_to_the_stream(
    kafka_broker: KafkaBroker, collected: Collected
) -> None:
    group = await new_group(kafka_broker, 5)
    async with group.open(group_settings=SHORT) as stream:
        with collected.metrics.watch(stream):
            late = await first(stream)
            await group.lengthen_locks(stream)
            again = await first(stream)
            assert offsets(again) == offsets(late)
            with pytest.raises(AcknowledgementError, match="too late"):
                await stream.acknowledge(late)
            await stream.acknowledge(again)
            await until(stream, lambda counts: counts.pending_records == 0)
            now = collected.now()
            assert now["fanout.share.settled"] == settled(accepted=5, expired=5)
            assert now["fanout.share.acquired"] == {"": 10}
            assert now["fanout.share.redelivered"] == {"": 5}
            assert lent(stream).expired == 5
