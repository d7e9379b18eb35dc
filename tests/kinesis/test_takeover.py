"""Two readers of one consumer and shard: each may take the other's subscription over."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from fanout.testing.faults import RefuseSubscribe
from fanout.testing.kinesis.rules import KinesisRules
from tests.support.kinesis.reading import FIRST, Stream

SECOND = "shardId-000000000001"
# The service's figure is 5 seconds.
YOUNG = 0.3

guarded = pytest.mark.parametrize(
    "rules", [replace(KinesisRules.fast(), takeover_after=YOUNG)], ids=["takeover after 0.3 s"]
)


@pytest.mark.fault("Two readers take a shard over from each other")
@guarded
async def test_a_second_reader_takes_over_when_the_subscription_is_old_enough(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.put(3)
    async with stream.reading() as one:
        await one.has(3)
        async with stream.reading() as other:
            await other.until(lambda: other.causes)
            await one.until(lambda: one.causes)
            stream.put(3)
            await other.has(6)
        stream.put(3)
        await one.has(9)
    assert one.log == stream.log
    assert {shard: numbers[:6] for shard, numbers in stream.log.items()} == other.log
    assert set(one.kinds + other.kinds) == {"ResourceInUseException"}
    # Two readers that take a shard from each other are not logged as an error.
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


@pytest.mark.fault("Another client holds a shard when the stream opens")
@pytest.mark.parametrize("shards", [2])
async def test_a_shard_that_somebody_else_holds_from_the_beginning_holds_nobody_up(
    stream: Stream,
) -> None:
    held = RefuseSubscribe(shard=FIRST, status=400, code="ResourceInUseException", times=9999)
    stream.inject(held)
    stream.put(20)
    async with stream.reading() as reader:
        await reader.has(len(stream.log[SECOND]))
        await reader.until(lambda: len(reader.causes) > 9)
        assert reader.failure is None
    assert reader.log == {SECOND: stream.log[SECOND]}
    assert set(reader.kinds) == {"ResourceInUseException"}
