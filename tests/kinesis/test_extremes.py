"""The largest and the most that a subscription may bring at once."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fanout.core.statistics import SplitState
from fanout.testing.kinesis.rules import KinesisRules
from tests.support.kinesis.reading import FIRST, Stream, eventually

if TYPE_CHECKING:
    import fanout

# UpdateMaxRecordSize allows up to this (AWS API reference); in base64 it is 14 MB.
LARGEST = 10 << 20

one_by_one = pytest.mark.parametrize(
    "rules", [replace(KinesisRules.fast(), max_event_records=1)], ids=["1 record an event"]
)


@pytest.mark.fault("A record has 10 MiB, more than 13 MB in base64")
async def test_a_record_of_10_mib_comes_whole_in_an_event_of_14_mb(stream: Stream) -> None:
    data = os.urandom(LARGEST)
    stream.server.put_records("orders", [("key", b"before"), ("key", data), ("key", b"after")])
    async with stream.open() as opened:
        found: list[bytes] = []
        while len(found) < 3:
            found += (await anext(opened)).records.column("data").to_pylist()
        resubscriptions = opened.statistics().splits[FIRST].resubscriptions
    assert found == [b"before", data, b"after"]
    assert resubscriptions == 0


@pytest.mark.fault("An event has 10,000 records")
async def test_10_000_records_come_in_one_event(stream: Stream) -> None:
    stream.put(10_000)
    async with stream.open() as opened:
        batch = await anext(opened)
    assert batch.records.column("sequenceNumber").to_pylist() == stream.log[FIRST]


def read_ahead(stream: fanout.FanOut) -> int:
    return stream.statistics().bytes_in_flight


@pytest.mark.fault("The service sends five events where two were asked for")
@one_by_one
async def test_five_events_for_two_that_were_asked_for_wait_and_come_in_order(
    stream: Stream,
) -> None:
    stream.put(5)
    async with stream.open() as opened:
        batches = [await anext(opened) for _ in range(2)]
        await eventually(lambda: read_ahead(opened))
        batches += [await anext(opened) for _ in range(3)]
        assert opened.statistics().splits[FIRST].resubscriptions == 0
    numbers = [batch.records.column("sequenceNumber").to_pylist() for batch in batches]
    assert numbers == [[number] for number in stream.log[FIRST]]


@pytest.mark.fault("The service sends far more than was asked for")
@one_by_one
async def test_a_burst_that_nobody_asked_for_waits_in_its_socket(stream: Stream) -> None:
    stream.put(500)
    async with stream.open() as opened:
        taken = [await anext(opened)]
        one_event = 1000  # more than an event of one small record takes
        for _ in range(20):
            await eventually(lambda: read_ahead(opened))
            assert read_ahead(opened) <= 3 * one_event
            taken.append(await anext(opened))
        assert opened.statistics().splits[FIRST].state is SplitState.LIVE
        taken += [await anext(opened) for _ in range(500 - len(taken))]
    numbers = [batch.records.column("sequenceNumber")[0].as_py() for batch in taken]
    assert numbers == stream.log[FIRST]
