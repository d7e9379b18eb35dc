"""The metrics of a stream of Kinesis while faults happen, held against what the test counted."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import fanout
from fanout.core.statistics import SplitState
from fanout.kinesis.aws.error_hints import code_of
from fanout.testing.fast_mode import fast
from fanout.testing.faults import CutConnection, EndEarly, RaiseInStream, RefuseSubscribe
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.support.collected_metrics import Collected, attributes
from tests.support.kinesis.reading import FIRST, Stream, eventually, seeded
from tests.test_secrets import DATA, KEY, leaked, secret_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


class Oracle:
    """Read a stream, and count what comes and why subscriptions end."""

    def __init__(self) -> None:
        self.records = self.bytes = 0
        self.causes: Counter[str] = Counter()

    @asynccontextmanager
    async def reading(self, stream: Stream, **options: Any) -> AsyncIterator[fanout.FanOut]:
        resume = options.pop("resume", None)
        async with fanout.open(
            stream.source(**options), resume=resume, on_resubscribe=self._tell, random=seeded()
        ) as opened:
            yield opened

    async def has(self, opened: fanout.FanOut, records: int) -> None:
        async with asyncio.timeout(20):
            while self.records < records:
                batch = await anext(opened)
                self.records += batch.num_records
                self.bytes += batch.nbytes
                await opened.acknowledge(batch)

    def _tell(self, _split: object, cause: Exception, _delay: float) -> None:
        self.causes[code_of(cause) or type(cause).__name__] += 1


@pytest.fixture
def stream(
    aws: None,  # noqa: ARG001 - used for what it does
) -> Iterator[Stream]:
    rules = replace(KinesisRules.fast(), max_event_records=2)
    with fast(rules), KinesisServer(rules) as server:
        yield Stream(server, shards=2)


@pytest.fixture
def collected() -> Iterator[Collected]:
    opened = Collected()
    yield opened
    opened.provider.shutdown()


async def test_each_number_is_that_of_the_oracle_while_subscriptions_fail(
    stream: Stream, collected: Collected
) -> None:
    oracle = Oracle()
    stream.put(20)
    stream.inject(
        RefuseSubscribe(status=400, code="LimitExceededException", times=3),
        RaiseInStream(shard=FIRST, event=2, code="KMSThrottlingException", times=2),
        CutConnection(event=2),
        EndEarly(event=3),
    )
    async with oracle.reading(stream) as opened, asyncio.TaskGroup() as tasks:
        with collected.metrics.watch(opened):
            await oracle.has(opened, 20)
            waiting = tasks.create_task(anext(opened))
            await eventually(lambda: sum(stream.server.statistics().faults.values()) == 7)
            await eventually(lambda: sum(oracle.causes.values()) == 7)
            waiting.cancel()
            now = collected.now()
            assert now["messaging.client.consumed.messages"] == {"": oracle.records} == {"": 20}
            assert now["fanout.consumed.bytes"] == {"": oracle.bytes}
            assert now["fanout.resubscriptions"] == dict(oracle.causes)
            assert oracle.causes == {
                "LimitExceededException": 3,
                "KMSThrottlingException": 2,
                "ClientPayloadError": 1,
                "SubscriptionEndedError": 1,
            }
            assert now["fanout.gaps"] == {"": 0}
            assert now["fanout.memory.limit"] == {"": stream.source().max_bytes_in_flight}
        base = attributes(collected.all()["fanout.gaps"])
    assert base == [
        {
            "messaging.system": "aws_kinesis",
            "messaging.destination.name": "orders",
            "messaging.consumer.group.name": "etl",
        }
    ]
    assert collected.now()["fanout.resubscriptions"] == dict(oracle.causes)


async def test_the_counters_of_a_shard_outlive_a_reshard(
    stream: Stream, collected: Collected
) -> None:
    oracle = Oracle()
    stream.put(10)
    stream.inject(EndEarly(shard=FIRST, event=2))
    async with oracle.reading(stream) as opened:
        with collected.metrics.watch(opened):
            await oracle.has(opened, 10)
            children = stream.server.split_shard("orders", FIRST)
            for child in children:
                stream.put(3, shard=child)
            await oracle.has(opened, 16)
            assert opened.statistics().splits[FIRST].state is SplitState.ENDED
            await eventually(lambda: collected.now()["fanout.splits"] == {"ended": 1, "live": 3})
            now = collected.now()
            assert now["messaging.client.consumed.messages"] == {"": 16}
            assert now["fanout.consumed.bytes"] == {"": oracle.bytes}
            assert now["fanout.resubscriptions"] == {"SubscriptionEndedError": 1}
            assert now["fanout.split.lag.time"].keys() <= {*children, "shardId-000000000001"}


async def test_a_gap_is_counted_and_measured(stream: Stream, collected: Collected) -> None:
    oracle = Oracle()
    stream.put(6, shard=FIRST)
    async with oracle.reading(stream) as opened:
        await oracle.has(opened, 2)
        saved = opened.positions
    await asyncio.sleep(0.05)
    stream.server.expire("orders")
    stream.put(6, shard=FIRST)
    behind = Oracle()
    async with behind.reading(stream, resume=saved, on_data_loss="earliest") as opened:
        with collected.metrics.watch(opened):
            await behind.has(opened, 6)
            now = collected.now()
            statistics = opened.statistics()
    assert now["fanout.gaps"] == {"": 1}
    assert now["fanout.gap.duration"] == {"": statistics.splits[FIRST].gap_seconds}
    assert 0.05 <= now["fanout.gap.duration"][""] < 10
    assert now["fanout.resubscriptions"] == dict(behind.causes) == {"InvalidArgumentException": 1}
    assert now["messaging.client.consumed.messages"] == {"": 6}


@pytest.mark.parametrize("code", [f"{KEY} {DATA.decode()}", "InternalFailureException"])
async def test_no_metric_has_a_secret_or_data_of_a_record(
    stream: Stream, collected: Collected, code: str
) -> None:
    stream.server.put_records("orders", [(KEY, DATA)] * 3)
    stream.inject(RaiseInStream(event=2, code=code, message=f"{KEY} {DATA.decode()}"))
    oracle = Oracle()
    async with oracle.reading(stream, session=secret_session()) as opened:
        with collected.metrics.watch(opened):
            await oracle.has(opened, 3)
            metrics = collected.all()
    assert oracle.causes.total() == 1
    texts = [json.dumps(json.loads(metric.to_json())) for metric in metrics.values()]
    assert len(texts) > 10
    assert leaked("\n".join(texts)) == []
    named = "_OTHER" if " " in code else code
    assert collected.now()["fanout.resubscriptions"] == {named: 1}
