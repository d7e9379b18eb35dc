from __future__ import annotations

import json
import threading

import pytest

from fanout.testing.kinesis.shard import PositionRefusedError, Shard


@pytest.fixture
def shard() -> Shard:
    shard = Shard(0, (0, 9), threading.RLock(), (), now=0)
    for arrival in (1_000, 2_000, 2_000, 3_000):
        shard.append("key", b"YQ==", 4, arrival)
    return shard


def arrivals_after(shard: Shard, cursor: int) -> list[float]:
    page = shard.read(cursor, max_records=10, max_bytes=100, now=9_000)
    return [json.loads(record)["ApproximateArrivalTimestamp"] for record in page.records]


@pytest.mark.parametrize(
    ("seconds", "arrivals"),
    [
        (0, [1.0, 2.0, 2.0, 3.0]),
        (1.999, [2.0, 2.0, 3.0]),
        (2, [2.0, 2.0, 3.0]),
        (2.001, [3.0]),
        (3.001, []),
    ],
)
def test_a_time_finds_the_first_record_that_arrived_then(
    shard: Shard, seconds: float, arrivals: list[float]
) -> None:
    cursor = shard.cursor_at({"Type": "AT_TIMESTAMP", "Timestamp": seconds}, now=9_000)
    assert arrivals_after(shard, cursor) == arrivals


def test_a_backlog_is_measured_from_the_last_record_read(shard: Shard) -> None:
    page = shard.read(shard.first_number, max_records=2, max_bytes=100, now=9_000)
    assert page.millis_behind == 7_000


def test_a_backlog_of_the_same_millisecond_is_still_behind(shard: Shard) -> None:
    page = shard.read(shard.first_number, max_records=2, max_bytes=100, now=2_000)
    assert page.millis_behind == 1


def test_arrivals_do_not_follow_a_clock_that_goes_back(shard: Shard) -> None:
    shard.append("key", b"YQ==", 4, 500)
    assert arrivals_after(shard, shard.first_number)[-2:] == [3.0, 3.0]


def test_a_partition_key_may_hold_any_character() -> None:
    shard = Shard(0, (0, 9), threading.RLock(), (), now=0)
    shard.append('"\\\n\u20ac', b"YQ==", 4, 0)
    (record,) = shard.read(shard.first_number, 1, 100, 0).records
    assert json.loads(record)["PartitionKey"] == '"\\\n\u20ac'


def test_a_number_before_what_has_expired_is_refused() -> None:
    shard = Shard(0, (0, 9), threading.RLock(), (), now=0)
    older, newest = (shard.append("key", b"YQ==", 4, 0) for _ in range(2))
    shard.expire()
    shard.append("key", b"YQ==", 4, 1_000)

    def cursor_at(kind: str, number: int) -> int:
        return shard.cursor_at(
            {"Type": f"{kind}_SEQUENCE_NUMBER", "SequenceNumber": str(number)}, 0
        )

    for kind, number in (("AFTER", older), ("AT", newest), ("AFTER", shard.first_number)):
        with pytest.raises(PositionRefusedError):
            cursor_at(kind, number)
    assert arrivals_after(shard, cursor_at("AFTER", newest)) == [1.0]
    assert arrivals_after(shard, shard.cursor_at({"Type": "TRIM_HORIZON"}, 0)) == [1.0]
