from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from fanout.kinesis import KinesisSource
from fanout.kinesis.aws.api import MAX_SHARDS, ConsumerDescription, StreamDescription
from fanout.kinesis.doctor.checks import (
    available_memory,
    clock,
    consumer_quota,
    consumer_state,
    distribution,
    encryption,
    memory,
    open_files,
    price,
    record_size,
    shard_count,
    stream_state,
)

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 11, 20, 8, 0, 1, tzinfo=UTC)
STREAM = StreamDescription(
    name="orders",
    arn="arn:aws:kinesis:eu-west-1:111122223333:stream/orders",
    status="ACTIVE",
    created=NOW,
    server_time=NOW,
    retention_hours=24,
    open_shards=4,
    consumers=3,
    key_id=None,
)
CONSUMER_ARN = f"{STREAM.arn}/consumer/etl:1"
MIB = 1 << 20


@pytest.mark.parametrize(
    ("seconds", "status"),
    [(0, "ok"), (59, "ok"), (-59, "ok"), (60, "warning"), (-60, "warning"), (299, "warning")],
)
def test_a_clock_is_notable_from_a_minute(seconds: int, status: str) -> None:
    assert clock(NOW + timedelta(seconds=seconds), NOW).status == status


@pytest.mark.parametrize(("seconds", "side"), [(300, "ahead of"), (-300, "behind")])
def test_a_clock_is_a_problem_from_5_minutes(seconds: int, side: str) -> None:
    found = clock(NOW + timedelta(seconds=seconds), NOW)
    assert (found.status, found.detail) == ("problem", f"300 s {side} the service's clock")
    assert "signatures that are 5 minutes off" in found.advice


@pytest.mark.parametrize(
    ("state", "status"),
    [("ACTIVE", "ok"), ("UPDATING", "ok"), ("CREATING", "problem"), ("DELETING", "problem")],
)
def test_a_stream_is_read_when_it_is_active_or_updating(state: str, status: str) -> None:
    assert stream_state(replace(STREAM, status=state)).status == status


@pytest.mark.parametrize(
    ("key", "was_read", "status"),
    [
        (None, False, "ok"),
        ("alias/aws/kinesis", False, "ok"),
        ("alias/orders", False, "unknown"),
        ("alias/orders", True, "ok"),
    ],
)
def test_a_key_of_ones_own_is_unknown_until_it_was_used(
    *, key: str | None, was_read: bool, status: str
) -> None:
    found = encryption(replace(STREAM, key_id=key), was_read=was_read)
    assert found.status == status
    assert ("kms:Decrypt" in found.advice) == (status == "unknown")


@pytest.mark.parametrize(
    ("name", "state", "status"),
    [
        ("etl", "ACTIVE", "ok"),
        ("etl", "CREATING", "warning"),
        ("etl", "DELETING", "warning"),
        ("etl", None, "warning"),
        (CONSUMER_ARN, "ACTIVE", "ok"),
        (CONSUMER_ARN, "CREATING", "warning"),
        (CONSUMER_ARN, "DELETING", "problem"),
        (CONSUMER_ARN, None, "problem"),
    ],
)
def test_a_consumer_that_is_gone_is_a_problem_where_its_arn_was_given(
    name: str, state: str | None, status: str
) -> None:
    described = state and ConsumerDescription("etl", CONSUMER_ARN, state, NOW)
    assert consumer_state(name, described or None).status == status


@pytest.mark.parametrize(
    ("registered", "exists", "status"),
    [
        (None, True, "unknown"),
        (19, False, "ok"),
        (20, True, "ok"),
        (20, False, "warning"),
        (49, False, "warning"),
        (50, False, "problem"),
    ],
)
def test_the_quota_matters_to_a_consumer_that_is_not_there_yet(
    *, registered: int | None, exists: bool, status: str
) -> None:
    found = consumer_quota(replace(STREAM, consumers=registered), exists=exists)
    assert found.status == status
    assert ("polling" in found.advice) == (status in {"warning", "problem"})


@pytest.mark.parametrize(("limit", "status"), [(None, "ok"), (164, "ok"), (163, "problem")])
def test_every_open_shard_needs_an_open_file(limit: int | None, status: str) -> None:
    found = open_files(100, limit)
    assert found.status == status
    assert ("ulimit -n 164" in found.advice) == (status == "problem")


@pytest.mark.parametrize(
    ("shards", "available", "status"),
    [
        (1, 144 * MIB, "ok"),  # 3 events of 24 MiB
        (1, 143 * MIB, "warning"),
        (1, 71 * MIB, "problem"),
        (100, 512 * MIB, "ok"),  # max_bytes_in_flight
        (100, 511 * MIB, "warning"),
        (100, 255 * MIB, "problem"),
    ],
)
def test_events_need_3_per_shard_or_what_bounds_them_all(
    shards: int, available: int, status: str
) -> None:
    assert (
        memory(KinesisSource(stream="orders", consumer="etl"), shards, available).status == status
    )


@pytest.mark.parametrize(
    ("listed", "status"), [(4, "ok"), (MAX_SHARDS * 4 // 5, "ok"), (MAX_SHARDS, "warning")]
)
def test_a_stream_is_warned_before_its_shards_are_too_many(listed: int, status: str) -> None:
    found = shard_count(listed, 3)
    assert (found.status, found.detail) == (
        status,
        f"3 open, {listed - 3} closed; 50,000 are read at most",
    )


def test_the_price_is_that_of_the_streams_mode() -> None:
    assert "$43.80 a month on 4 open shards, and $0.013" in price(STREAM).detail
    on_demand = price(replace(STREAM, on_demand=True)).detail
    assert "nothing until it reads, and $0.05 for each GB" in on_demand
    assert "open shards" not in on_demand


def test_a_containers_memory_is_what_there_is(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    machine = available_memory(limit)
    limit.write_text("max\n")
    assert available_memory(limit) == machine
    limit.write_text("1048576\n")
    assert available_memory(limit) == MIB < machine


@pytest.mark.parametrize(("automatic", "says"), [(True, "AUTO"), (False, "keeps its order")])
def test_who_distributes_the_records_is_told(*, automatic: bool, says: str) -> None:
    found = distribution(replace(STREAM, automatic=automatic))
    assert found.status == "ok"
    assert says in found.detail


@pytest.mark.parametrize(("most", "status"), [(1, "ok"), (10, "problem")])
def test_an_event_has_to_hold_the_largest_record(most: int, status: str) -> None:
    source = KinesisSource(stream="orders", consumer="etl", max_event_bytes=4 * MIB)
    found = record_size(source, replace(STREAM, max_record_bytes=most * MIB))
    assert found.status == status
    assert f"up to {most} MiB" in found.detail
    assert ("max_event_bytes" in found.advice) is (status == "problem")


def test_the_usual_limit_of_an_event_suffices_for_the_largest_record() -> None:
    source = KinesisSource(stream="orders", consumer="etl")
    assert record_size(source, replace(STREAM, max_record_bytes=10 * MIB)).status == "ok"
