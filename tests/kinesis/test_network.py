"""Faults of the network during a subscription: all records arrive, once and in order."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fanout.core.backoff import Backoff
from fanout.testing.kinesis.rules import KinesisRules
from tests.kinesis.network import Network, cut, delay, lose, trickle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.kinesis.network import Carrier
    from tests.support.kinesis.reading import Reader, Stream

# More than the head of an answer takes, and less than the event of `large`.
HEAD = 1000


@asynccontextmanager
async def reading_over(
    stream: Stream, *carriers: Carrier, **options: Any
) -> AsyncIterator[tuple[Reader, Network]]:
    async with (
        Network(stream.server.endpoint_url, *carriers).running() as network,
        stream.reading(endpoint_url=network.url, **options) as reader,
    ):
        yield reader, network


def put_large(stream: Stream) -> None:
    """Put a record of which a part comes with the head of an answer, and the rest after it."""
    for shard, number in stream.server.put_records("orders", [("key", bytes(100_000))]):
        stream.log[shard].append(number)


@pytest.mark.fault("A connection is closed or reset anywhere")
@pytest.mark.long
@pytest.mark.parametrize(
    "rules", [replace(KinesisRules.fast(), max_event_records=2)], ids=["2 records an event"]
)
@pytest.mark.parametrize(("step", "reset"), [(11, False), (47, True)], ids=["closed", "reset"])
async def test_an_answer_that_is_cut_anywhere_loses_and_repeats_nothing(
    stream: Stream, step: int, *, reset: bool
) -> None:
    stream.put(6)
    # The head, the sizes of the chunks and their ends, each frame's prelude, headers and payload.
    cuts = [cut(after, reset=reset) for after in range(0, 2000, step)]
    fast = Backoff(base=0.001, cap=0.001)
    async with reading_over(stream, *cuts, backoff=fast) as (reader, _):
        await reader.has(6)
    assert reader.log == stream.log
    # An answer with its first event is longer than this.
    assert len(reader.causes) > 700 / step


@pytest.mark.fault("Bytes trickle so slowly that no event is ever whole")
async def test_an_answer_whose_bytes_trickle_is_a_silence(stream: Stream) -> None:
    put_large(stream)
    async with reading_over(stream, trickle(HEAD, 0.01), silence_timeout=0.5) as (reader, _):
        await reader.has(1)
    assert reader.log == stream.log
    assert reader.kinds[0] == "SubscriptionSilentError"


@pytest.mark.fault("Bytes trickle so slowly that no event is ever whole")
async def test_a_head_whose_bytes_trickle_is_no_answer(stream: Stream) -> None:
    put_large(stream)
    async with reading_over(stream, trickle(0, 0.02), subscribe_timeout=0.5) as (reader, _):
        await reader.has(1)
    assert reader.log == stream.log
    assert reader.kinds[0] == "SubscribeTimeoutError"


@pytest.mark.fault("A connection is open at one end alone")
@pytest.mark.parametrize("after", [HEAD, 50_000])
async def test_a_connection_that_is_open_at_one_end_alone_is_a_silence(
    stream: Stream, after: int
) -> None:
    put_large(stream)
    async with reading_over(stream, lose(after), silence_timeout=0.5) as (reader, _):
        await reader.has(1)
        stream.put(3)
        await reader.has(4)
    assert reader.log == stream.log
    assert reader.kinds[0] == "SubscriptionSilentError"


@pytest.mark.fault("An answer comes after its call was given up")
async def test_an_answer_that_comes_after_its_time_delivers_nothing(stream: Stream) -> None:
    stream.put(3)
    late = asyncio.Event()
    async with reading_over(stream, delay(late), subscribe_timeout=0.5) as (reader, _):
        await reader.has(3)
        late.set()
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
    assert reader.kinds[0] == "SubscribeTimeoutError"
