from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import fanout
from fanout.core.events import Split
from fanout.core.positions import Cursor, Horizon, Position, Timestamp
from fanout.errors import SplitFailedError
from fanout.kafka.reading import offsets as kafka
from fanout.kinesis import starting_position as kinesis
from tests.core.scripted import Break, FatalError, Log, ScriptedSource
from tests.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

A, B = Split("a"), Split("b")
LEFT, RIGHT = Split("left", ("a",)), Split("right", ("a",))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged about the life of streams since the last call."""
    found = [each.getMessage() for each in caplog.records if "lifecycle" in each.name]
    assert {each.levelno for each in caplog.records if "lifecycle" in each.name} <= {logging.INFO}
    caplog.clear()
    return found


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fanout")


async def take_all(stream: fanout.FanOut, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            async for batch in stream:
                await stream.acknowledge(batch)


@in_virtual_time
async def test_start_reshard_and_stop_take_a_line_each_and_resume_names_the_positions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logs = (
        Log(split=A, entries=(1, 2, 3), ends=True, children=(LEFT, RIGHT)),
        Log(split=B, entries=(1, 2)),
        Log(split=LEFT, entries=(4,)),
        Log(split=RIGHT),
    )
    everything = [log.split for log in logs]
    async with fanout.open(ScriptedSource(logs=logs, listings=[[A, B], everything])) as stream:
        assert lines(caplog) == [
            "scripted:one starts with 2 splits: a Horizon(), b Horizon()",
        ]
        await take_all(stream, 20.0)
        assert lines(caplog) == ["a was read to its end; its children: left, right"]
        nbytes = sum(split.bytes for split in stream.statistics().splits.values())
    assert lines(caplog) == [
        f"scripted:one stopped after 20.0 s: 6 records, {nbytes} bytes, 4 batches"
    ]
    async with fanout.open(ScriptedSource(logs=logs), resume=stream.positions):
        pass
    resumed, stopped = lines(caplog)
    assert resumed == (
        f"scripted:one resumes from stored positions with 3 splits: b {Cursor(2)}, "
        f"left {Cursor(4)}, right Horizon(); 1 more had been read to the end"
    )
    assert stopped == "scripted:one stopped after 0.0 s: 0 records, 0 bytes, 0 batches"


@in_virtual_time
async def test_new_splits_are_named_with_their_parents(caplog: pytest.LogCaptureFixture) -> None:
    logs = (Log(split=A), Log(split=B), Log(split=LEFT), Log(split=RIGHT))
    source = ScriptedSource(logs=logs, listings=[[A], [A, B], [A, B, LEFT, RIGHT]])
    async with fanout.open(source) as stream:
        await take_all(stream, 130.0)
    assert lines(caplog)[1:-1] == [
        "found 1 new split: b",
        "found 2 new splits: left (after a), right (after a)",
    ]


@in_virtual_time
async def test_many_splits_are_counted_and_the_first_are_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    splits = [Split(f"s{number}") for number in range(1000)]
    logs = [Log(split=split) for split in splits]
    async with fanout.open(ScriptedSource(logs=logs, listings=[splits[:500], splits])) as stream:
        await take_all(stream, 61.0)
    start, found, _ = lines(caplog)
    assert start == (
        "scripted:one starts with 500 splits: s0 Horizon(), s1 Horizon(), s2 Horizon(), "
        "s3 Horizon(), s4 Horizon() and 495 more"
    )
    assert found == "found 500 new splits: s500, s501, s502, s503, s504 and 495 more"


@in_virtual_time
async def test_a_failure_has_totals_too(caplog: pytest.LogCaptureFixture) -> None:
    log = Log(split=A, entries=(1, 2), faults=(Break(1, FatalError("gone")),))
    with pytest.raises(SplitFailedError):
        async with fanout.open(ScriptedSource(logs=[log])) as stream:
            await take_all(stream, 20.0)
    *_, last = lines(caplog)
    assert last.startswith("scripted:one failed with SplitFailedError after 0.0 s: 2 records, ")


@in_virtual_time
async def test_a_stream_that_cannot_be_opened_logs_no_life(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(FatalError):
        async with fanout.open(ScriptedSource(logs=[], listings=[FatalError("no such stream")])):
            pass
    assert lines(caplog) == []


@pytest.mark.parametrize(
    ("describe", "position", "expected"),
    [
        (kinesis.describe_position, Horizon(), "at TRIM_HORIZON"),
        (
            kinesis.describe_position,
            Timestamp(1_700_000_000_123),
            "at 2023-11-14T22:13:20.123+00:00",
        ),
        (kinesis.describe_position, Cursor(495), "after sequence number 495"),
        (
            kinesis.describe_position,
            Cursor(495, 3),
            "after sub-sequence number 3 of sequence number 495",
        ),
        (kafka.describe_position, Cursor(-1), "at offset 0"),
        (kafka.describe_position, Cursor(41), "at offset 42"),
        (kafka.describe_position, Horizon(), "at the earliest offset"),
    ],
)
def test_positions_are_in_the_terms_of_the_service(
    describe: Callable[[Position], str], position: Position, expected: str
) -> None:
    assert describe(position) == expected
