from __future__ import annotations

from random import Random

from fanout.kinesis.aws.api import hash_key_of
from fanout.kinesis.reading.deaggregation import MAGIC, parse_aggregate
from tests.provers.simulation.kinesis.faults import KinesisFault, KinesisFaultKind
from tests.provers.simulation.kinesis.service.log_draws import make_log

LOGS = [
    make_log(Random(seed), shards=2, records=40, reshards=4, seconds=600.0) for seed in range(20)
]
SHARDS = [shard for log in LOGS for shard in log.shards.values()]
RECORDS = [(shard, record) for shard in SHARDS for record in shard.records]


def test_records_come_in_the_order_of_their_numbers_and_within_their_shard() -> None:
    for shard in SHARDS:
        assert shard.numbers == sorted(set(shard.numbers))
        assert all(shard.first < number for number in shard.numbers)
        assert shard.last is None or all(number < shard.last for number in shard.numbers)


def test_keys_have_up_to_256_characters_of_any_script() -> None:
    keys = {record.key for _, record in RECORDS if record.key is not None}

    assert max(map(len, keys)) == 256
    assert any(not key.isascii() for key in keys)
    assert "" not in keys


def test_some_producers_give_no_key() -> None:
    without = {record.form for _, record in RECORDS if record.key is None}

    assert {"plain", "aggregated"} <= without


def test_a_foreign_part_is_outside_of_a_shard_that_came_of_a_reshard() -> None:
    foreign = 0
    for shard, record in RECORDS:
        for part in record.parts:
            outside = part.hash_key is None or part.hash_key not in shard.hash_range
            if part.hash_key is None:
                outside = hash_key_of(part.key) not in shard.hash_range
            if part.foreign:
                foreign += 1
                assert outside
                assert shard.parents
                assert record.key == "a"
    assert foreign > 10


def test_an_aggregate_with_a_wrong_checksum_is_one_row_as_it_is() -> None:
    wrong = [record for _, record in RECORDS if record.form == "wrong checksum"]

    assert wrong
    for record in wrong:
        assert parse_aggregate(record.data) is None
        assert record.data.startswith(MAGIC)
        assert [row.data for row in record.rows] == [record.data]


def test_a_damaged_aggregate_comes_after_its_fault_and_has_no_rows() -> None:
    fault = KinesisFault(kind=KinesisFaultKind.AGGREGATE_DAMAGED, at=50.0)
    log = make_log(Random(5), shards=1, records=40, reshards=0, seconds=600.0, faults=[fault])

    (broken,) = [r for shard in log.shards.values() for r in shard.records if r.form == "broken"]
    assert broken.rows == []


def test_a_storm_reshards_many_times_within_its_seconds() -> None:
    storm = KinesisFault(kind=KinesisFaultKind.RESHARD_STORM, at=50.0, seconds=2.0)
    log = make_log(Random(3), shards=1, records=40, reshards=0, seconds=600.0, faults=[storm])

    closed = [shard.closed for shard in log.shards.values() if shard.closed is not None]
    assert len(closed) >= 3
    assert max(closed) - min(closed) <= 2000
