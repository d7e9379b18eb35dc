from __future__ import annotations

import pytest

from fanout.kinesis.aws.api import MAX_HASH_KEY, HashRange, ShardDescription
from fanout.kinesis.reading.deaggregation import parse_aggregate
from fanout.kinesis.writing.entries import QueuedRecord
from fanout.kinesis.writing.shard_queues import (
    MAX_CALL_BYTES,
    MAX_RECORDS,
    OpenShards,
    ShardQueues,
)

HALF = MAX_HASH_KEY // 2
LOW, HIGH = ("k", 0), ("k", MAX_HASH_KEY)


def shard(name: str, start: int, end: int, *, closed: bool = False) -> ShardDescription:
    return ShardDescription(name, (), 1, 2 if closed else None, HashRange(start, end))


WHOLE = OpenShards([shard("whole", 0, MAX_HASH_KEY)])
SPLIT = OpenShards(
    [
        shard("high", HALF + 1, MAX_HASH_KEY),
        shard("whole", 0, MAX_HASH_KEY, closed=True),
        shard("low", 0, HALF),
    ]
)


def record(data: bytes, key: tuple[str, int | None] = LOW) -> QueuedRecord:
    return QueuedRecord(key, data, len(data) + len(key[0]))


def queued(*records: QueuedRecord, aggregate: bool = False) -> ShardQueues:
    queues = ShardQueues(WHOLE, aggregate=aggregate)
    for one in records:
        queues.add(one)
    return queues


def test_a_key_is_in_the_open_shard_of_its_hash_key() -> None:
    assert SPLIT.shard_of(LOW) == "low"
    assert SPLIT.shard_of(("k", HALF)) == "low"
    assert SPLIT.shard_of(("k", HALF + 1)) == "high"
    assert SPLIT.shard_of(HIGH) == "high"
    assert SPLIT.shard_of(("key", None)) in {"low", "high"}


@pytest.mark.fault("Shards are split and merged while records are put")
def test_one_record_of_a_key_is_under_way_wherever_its_key_goes() -> None:
    queues = queued(record(b"1"), record(b"2"))
    (put,) = queues.take("whole")
    queues.add(record(b"3"))
    assert queues.ready == []
    queues.reroute(SPLIT)
    assert queues.ready == [], "it would overtake the first one through another shard"
    queues.settle(put, confirmed=False)
    assert queues.ready == ["low"]
    for expected in (b"1", b"2", b"3"):
        (put,) = queues.take("low")
        assert put.data == expected
        queues.settle(put, confirmed=True)
    assert queues.take("low") == []


@pytest.mark.fault("Many writers fill one shard for longer than the timeout")
def test_what_was_refused_is_put_again_before_what_never_was() -> None:
    large = [record(bytes(MAX_CALL_BYTES // 2 - 1), ("k", n)) for n in range(6)]
    queues = queued(*large)
    first, second = queues.take("whole")
    queues.settle(first, confirmed=False)
    queues.settle(second, confirmed=False)
    assert {put.key for put in queues.take("whole")} == {first.key, second.key}
    assert [put.key for put in queues.take("whole")] == [large[2].key, large[3].key]


def test_a_call_has_one_record_of_each_key_up_to_the_limits() -> None:
    many = [record(b"%d" % n, ("k", n)) for n in range(MAX_RECORDS + 1)]
    assert len(queued(*many, *many).take("whole")) == MAX_RECORDS
    large = [record(bytes(MAX_CALL_BYTES // 2 - 1), ("k", n)) for n in range(3)]
    assert len(queued(*large).take("whole")) == 2
    assert len(queued(record(bytes(2 * MAX_CALL_BYTES)), *large).take("whole")) == 1


def test_an_aggregate_has_what_waits_for_its_key_and_one_record_stays_as_it_is() -> None:
    queues = queued(*(record(b"%d" % n) for n in range(5)), record(b"x", HIGH), aggregate=True)
    many, one = queues.take("whole")
    aggregate = parse_aggregate(many.data)
    assert aggregate is not None
    assert [*aggregate.data] == [b"0", b"1", b"2", b"3", b"4"]
    assert {*aggregate.partition_keys} == {"k"}
    assert {*aggregate.hash_keys} == {b"0"}
    assert many.to_request()["ExplicitHashKey"] == "0"
    assert one.data == b"x"


def test_where_the_service_distributes_records_a_key_waits_for_nothing() -> None:
    queues = ShardQueues(SPLIT, aggregate=True, automatic=True)
    for n in range(5):
        queues.add(record(b"%d" % n))
    assert queues.ready == ["low", "high"], "as many calls as there are shards"
    puts = queues.take("low")
    assert [put.data for put in puts] == [b"0", b"2", b"4"]
    queues.settle(puts[0], confirmed=False)
    assert [put.data for put in queues.take("low")] == [b"0"], "its sender has waited"
    assert [put.data for put in queues.take("high")] == [b"1", b"3"]


def test_what_waited_for_its_key_still_does_when_the_service_begins_to_distribute() -> None:
    queues = queued(*(record(b"%d" % n) for n in range(3)), aggregate=True)
    queues.let_service_distribute()
    (put,) = queues.take("whole")
    assert put.data == b"0"
    queues.add(record(b"3"))
    assert [put.data for put in queues.take("whole")] == [b"3"]
    queues.reroute(SPLIT)
    queues.add(record(b"4"))
    assert queues.take("low") == []
    queues.settle(put, confirmed=True)
    (put,) = queues.take("low")
    assert len(put.entries) == 3, "the key has its order again"


@pytest.mark.parametrize(("size", "together"), [(20_000, 2), (60_000, 1)])
def test_an_aggregate_is_bounded(size: int, together: int) -> None:
    queues = queued(*(record(bytes(size)) for _ in range(4)), aggregate=True)
    for left in range(4, 0, -together):
        (put,) = queues.take("whole")
        assert len(put.entries) == min(together, left)
        queues.settle(put, confirmed=True)
