from __future__ import annotations

import asyncio
import logging
import re
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import fanout
from fanout.core.events import Split
from fanout.core.policy import Pace, Retry, Skip
from fanout.core.positions import Cursor, Horizon, Position, Timestamp
from fanout.core.source import Terms
from fanout.errors import SplitFailedError
from fanout.kafka.reading import offsets as kafka
from fanout.kinesis import starting_position as kinesis
from tests.support.scripted_source import (
    Break,
    FatalError,
    FlakyError,
    Log,
    Refuse,
    ScriptedConnection,
    ScriptedSource,
    Stop,
    VerdictError,
)
from tests.support.virtual_time import in_virtual_time

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


@pytest.mark.long
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


def fields(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, object]]:
    """Return the fields of each line of an event."""
    every = [vars(record) for record in caplog.records]
    return [
        {name: value for name, value in each.items() if "." in name}
        for each in every
        if each.get("event.name") == event
    ]


def broken(count: int, error: Exception) -> ScriptedSource:
    """Return a source whose splits all fail once, after 10 s."""
    splits = [Split(f"s{number}") for number in range(count)]
    return ScriptedSource(logs=[Log(split=split, faults=(Break(2, error),)) for split in splits])


@pytest.mark.long
@in_virtual_time
async def test_a_healthy_stream_of_1000_splits_logs_its_start_and_its_stop_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "fanout.lifecycle")
    renewals = (Stop(1),) * 9
    splits = [Split(f"s{number}") for number in range(1000)]
    logs = [Log(split=split, faults=renewals, heartbeat=20.0) for split in splits]
    async with fanout.open(ScriptedSource(logs=logs)) as stream:
        await take_all(stream, 50.0)
    told = [each.getMessage() for each in caplog.records if each.levelno >= logging.INFO]
    assert len(told) == 2, told
    renewed = fields(caplog, "fanout.subscription.renewed")
    assert len(renewed) == 2 * 1000
    assert len(fields(caplog, "fanout.subscription.opened")) == 3 * 1000
    assert {each["messaging.destination.partition.id"] for each in renewed} == {
        split.id for split in splits
    }


@pytest.mark.long
@in_virtual_time
async def test_many_failures_have_ten_lines_a_minute_and_one_for_all_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fanout.open(broken(500, FlakyError("canary"))) as stream:
        await take_all(stream, 69.0)
        before = lines(caplog)
        await take_all(stream, 2.0)
        after = lines(caplog)
    assert len(before) == 1 + 10
    assert re.fullmatch(r"resubscribing to s0 Horizon\(\) in [01]\.\d s: FlakyError", before[1])
    assert after == ["490 more subscriptions that are opened again within 60 s: 490 of FlakyError"]
    assert "canary" not in caplog.text


@in_virtual_time
async def test_a_minute_of_failures_without_progress_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = (Refuse(FlakyError("no")),) * 40
    async with fanout.open(ScriptedSource(logs=[Log(split=A, faults=faults)])) as stream:
        await take_all(stream, 300.0)
    told = [one for one in caplog.records if one.getMessage().startswith("resubscribing")]
    assert told[0].levelno == logging.INFO
    assert told[-1].levelno == logging.WARNING
    text = told[-1].getMessage()
    assert re.search(r"FlakyError; there has been no progress for \d+ s$", text)


@in_virtual_time
async def test_many_splits_that_fail_for_long_have_warnings_among_their_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = (Refuse(FlakyError("no")),) * 40
    logs = [Log(split=Split(f"s{number}"), faults=faults) for number in range(100)]
    async with fanout.open(ScriptedSource(logs=logs)) as stream:
        await take_all(stream, 200.0)
    told = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert sum("no progress for" in one.getMessage() for one in told) >= 10
    assert any("more subscriptions that make no progress" in one.getMessage() for one in told)


@in_virtual_time
async def test_a_failure_a_minute_later_has_a_line_again(caplog: pytest.LogCaptureFixture) -> None:
    faults = (Break(2, FlakyError("no")),) * 20  # one in 11 s or more
    async with fanout.open(ScriptedSource(logs=[Log(split=A, faults=faults)])) as stream:
        await take_all(stream, 600.0)
        failures = sum(split.resubscriptions for split in stream.statistics().splits.values())
    told = [line for line in lines(caplog) if line.startswith("resubscribing")]
    assert len(told) == failures == 20


@in_virtual_time
async def test_lines_that_are_left_out_are_counted_at_the_stop_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fanout.open(broken(12, FlakyError("no"))) as stream:
        await take_all(stream, 20.0)
    *_, summary, stopped = lines(caplog)
    assert summary.startswith("2 more subscriptions that are opened again within 60 s")
    assert stopped.startswith("scripted:one stopped")


@in_virtual_time
async def test_events_have_the_fields_of_the_conventions(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "fanout.lifecycle")
    faults = (
        Break(1, FlakyError("canary")),
        Refuse(VerdictError(Skip(Cursor(7), "they have expired"))),
        Refuse(VerdictError(Retry(Pace.SLOW, "enable the key"))),
    )
    log = Log(split=A, entries=(1, 9, 10), ends=True, children=(LEFT,), per_event=1, faults=faults)
    async with fanout.open(ScriptedSource(logs=[log, Log(split=LEFT)], listings=[[A]])) as stream:
        await take_all(stream, 100.0)
    of_a = {
        "messaging.system": "",
        "messaging.destination.name": "",
        "messaging.destination.partition.id": "a",
    }

    def only(event: str) -> dict[str, object]:
        (found,) = fields(caplog, event)
        assert found.pop("event.name") == event
        return found

    assert only("fanout.subscription.retried") == of_a | {
        "fanout.position": str(Cursor(1)),
        "fanout.delay": pytest.approx(5.5, abs=0.5),
        "error.type": "FlakyError",
    }
    assert only("fanout.records.lost") == of_a | {
        "fanout.position": str(Cursor(1)),
        "fanout.gaps": 1,
    }
    blocked = only("fanout.subscription.blocked")
    assert blocked["fanout.position"] == str(Cursor(7))
    assert blocked["error.type"] == "VerdictError"
    assert only("fanout.split.ended") == of_a | {"fanout.children": ["left"]}
    opened = [each["fanout.position"] for each in fields(caplog, "fanout.subscription.opened")]
    assert opened == ["Horizon()", str(Cursor(7)), "Horizon()"]
    totals = only("fanout.stream.stopped")
    assert (totals["fanout.records"], totals["fanout.duration"]) == (3, 100.0)
    assert "error.type" not in totals
    assert only("fanout.stream.started")["fanout.splits"] == 1


@pytest.mark.long
@in_virtual_time
async def test_gaps_that_are_measured_have_ten_lines_a_minute_and_one_for_all_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    splits = [Split(f"s{number}") for number in range(500)]
    skip = Refuse(VerdictError(Skip(Cursor(7), "they have expired")))
    logs = [Log(split=each, entries=(1, 9), per_event=1, faults=(Stop(1), skip)) for each in splits]
    async with fanout.open(ScriptedSource(logs=logs)) as stream:
        await take_all(stream, 30.0)
        totals = stream.statistics().totals
        assert (totals.gaps, totals.gap_seconds) == (500, 500 * 8.0)
    told = [each.getMessage() for each in caplog.records if "arrived within" in each.getMessage()]
    assert told[0] == "the lost records of s0 arrived within 8.000 s"
    assert len(told) == 10
    measured = fields(caplog, "fanout.gap.measured")
    assert measured[0]["messaging.destination.partition.id"] == "s0"
    assert measured[0]["fanout.gap.duration"] == 8.0
    assert measured[10]["fanout.more"] == 490
    assert {each.levelno for each in caplog.records if "gap" in each.getMessage()} <= {
        logging.ERROR
    }


@in_virtual_time
async def test_a_status_of_http_in_place_of_a_code_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = ScriptedConnection(ScriptedSource(logs=[])).capabilities
    capabilities = replace(offered, terms=Terms(cause=lambda _: "503"))
    monkeypatch.setattr(ScriptedConnection, "capabilities", capabilities)
    log = Log(split=A, faults=(Refuse(FlakyError("no")),))
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        await take_all(stream, 10.0)
    (retried,) = fields(caplog, "fanout.subscription.retried")
    assert retried["error.type"] == "503"


@in_virtual_time
async def test_a_code_that_is_no_name_is_not_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = Terms(cause=lambda _: "no such key: canary")
    offered = ScriptedConnection(ScriptedSource(logs=[])).capabilities
    monkeypatch.setattr(ScriptedConnection, "capabilities", replace(offered, terms=terms))
    faults = (
        Break(1, FlakyError("no")),
        Refuse(VerdictError(Retry(Pace.SLOW, "enable the key"))),
    )
    log = Log(split=A, entries=(1, 2), per_event=1, faults=faults)
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        await take_all(stream, 100.0)
        assert stream.statistics().totals.resubscriptions == {"_OTHER": 2}
    (retried,) = fields(caplog, "fanout.subscription.retried")
    (blocked,) = fields(caplog, "fanout.subscription.blocked")
    assert retried["error.type"] == blocked["error.type"] == "_OTHER"
    assert "canary" not in caplog.text
