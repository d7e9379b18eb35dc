from __future__ import annotations

import msgspec
import pytest

from fanout.demo.options import STREAM, ServiceName
from fanout.demo.verification import Evidence, Proof, SentRecord, verify
from fanout.demo.workspace import ReadRecord
from fanout.testing.trials.records import value_of

PARENT, CHILD, GRANDCHILD, OTHER = "parent", "child", "grandchild", "other"
PARENTS: dict[str, tuple[str, ...]] = {CHILD: (PARENT,), GRANDCHILD: (CHILD,)}


def sent(number: int, split: str = PARENT, key: str | None = None) -> ReadRecord:
    """Return a record as it is to be read, in the first batch."""
    key = f"key-{number}" if key is None else key
    value = value_of(STREAM, key, number)
    return ReadRecord(0, key.encode(), value, split, str(1000 + number))


def read(record: ReadRecord, batch: int = 0) -> ReadRecord:
    return msgspec.structs.replace(record, batch=batch)


def prove(
    records: list[ReadRecord],
    output: list[ReadRecord],
    *,
    source: ServiceName = ServiceName.KINESIS,
    killed_in: int = -1,
    born: frozenset[str] | None = None,
) -> Proof:
    places = [SentRecord(record.split, record.sequence) for record in records]
    return verify(Evidence(source, places, PARENTS, born, killed_in), output)


def test_what_came_through_once_and_in_order_holds() -> None:
    records = [sent(0), sent(1), sent(2, OTHER), sent(3, CHILD)]
    proof = prove(records, [read(record, batch) for batch, record in enumerate(records)])
    assert proof == Proof(
        records_sent=4,
        records_read=4,
        batches=4,
        lost=0,
        duplicated=0,
        altered=0,
        out_of_order=0,
        second_generation=None,
    )
    assert proof.holds


def test_where_there_is_no_order_none_is_proven() -> None:
    records = [sent(0), sent(1)]
    proof = prove(records, [read(sent(1), 0), read(sent(0), 1)], source=ServiceName.KAFKA_SHARE)
    assert (proof.out_of_order, proof.holds) == (None, True)


def test_what_a_queue_delivered_before_is_told_apart_from_what_the_output_has_twice() -> None:
    records = [sent(0, ""), sent(1, ""), sent(2, "")]
    again = msgspec.structs.replace(read(records[1], 1), deliveries=2)
    proof = prove(records, [records[0], again, records[2]], source=ServiceName.KINESIS_QUEUE)
    assert (proof.redelivered, proof.duplicated, proof.holds) == (1, 0, True)
    twice = prove(records, [*records, again], source=ServiceName.KINESIS_QUEUE)
    assert (twice.redelivered, twice.duplicated, twice.holds) == (1, 1, False)
    assert prove(records, records).redelivered is None


def test_a_lost_record_is_found() -> None:
    proof = prove([sent(0), sent(1)], [read(sent(1))])
    assert (proof.lost, proof.holds) == (1, False)


def test_a_record_in_two_batches_is_duplicated() -> None:
    proof = prove([sent(0)], [read(sent(0), 0), read(sent(0), 1)])
    assert (proof.duplicated, proof.out_of_order, proof.holds) == (1, 0, False)


def test_a_record_twice_in_a_batch_is_duplicated() -> None:
    proof = prove([sent(0)], [read(sent(0))] * 3)
    assert (proof.duplicated, proof.holds) == (2, False)


def test_a_duplicate_does_not_hide_a_lost_record() -> None:
    proof = prove([sent(0), sent(1)], [read(sent(0)), read(sent(0))])
    assert (proof.lost, proof.duplicated) == (1, 1)


@pytest.mark.parametrize("change", [{"split": OTHER}, {"sequence": "7"}], ids=str)
def test_a_record_of_another_place_is_altered(change: dict[str, object]) -> None:
    proof = prove([sent(0)], [msgspec.structs.replace(read(sent(0)), **change)])
    assert (proof.altered, proof.lost, proof.holds) == (1, 0, False)


@pytest.mark.parametrize("change", [{"key": b"x"}, {"value": b"x"}, {"value": b"0:"}], ids=str)
def test_an_altered_record_is_found_and_its_original_is_lost(change: dict[str, object]) -> None:
    proof = prove([sent(0)], [msgspec.structs.replace(read(sent(0)), **change)])
    assert (proof.altered, proof.lost, proof.holds) == (1, 1, False)


@pytest.mark.parametrize("value", [b"", value_of(STREAM, "key-0", 7)])
def test_a_record_that_nobody_sent_is_altered(value: bytes) -> None:
    output = [read(sent(0)), msgspec.structs.replace(read(sent(0)), value=value)]
    proof = prove([sent(0)], output)
    assert (proof.altered, proof.duplicated, proof.holds) == (1, 0, False)


def test_a_later_batch_with_an_earlier_record_is_out_of_order() -> None:
    proof = prove([sent(0), sent(1)], [read(sent(1), 0), read(sent(0), 1)])
    assert (proof.out_of_order, proof.holds) == (1, False)


def test_rows_within_a_batch_have_no_order() -> None:
    assert prove([sent(0), sent(1)], [read(sent(1)), read(sent(0))]).holds


def test_shards_have_no_order_between_them() -> None:
    assert prove([sent(0, OTHER), sent(1)], [read(sent(1), 0), read(sent(0, OTHER), 1)]).holds


def test_partitions_of_kafka_have_no_order_between_them_also_for_a_key_that_moved() -> None:
    records = [sent(0, OTHER, "ann"), sent(1, PARENT, "ann")]
    assert prove(records, [read(records[1], 0), read(records[0], 1)]).holds


def test_a_child_before_its_parent_is_out_of_order() -> None:
    proof = prove([sent(0), sent(1, CHILD)], [read(sent(1, CHILD), 0), read(sent(0), 1)])
    assert (proof.out_of_order, proof.holds) == (1, False)


def test_a_child_in_the_last_batch_of_its_parent_is_in_order() -> None:
    assert prove([sent(0), sent(1, CHILD)], [read(sent(0)), read(sent(1, CHILD))]).holds


def test_a_grandchild_waits_even_if_the_child_has_no_records() -> None:
    output = [read(sent(1, GRANDCHILD), 0), read(sent(0), 1)]
    assert prove([sent(0), sent(1, GRANDCHILD)], output).out_of_order == 1


def test_what_comes_after_a_restart_from_shards_made_before_it_is_counted() -> None:
    records = [sent(0), sent(1, CHILD), sent(2, GRANDCHILD), sent(3, OTHER)]
    output = [read(record, batch) for batch, record in enumerate(records)]
    proof = prove(records, output, killed_in=0, born=frozenset({CHILD, GRANDCHILD}))
    assert (proof.second_generation, proof.holds) == (2, True)


def test_a_restart_that_delivers_nothing_of_the_shards_made_before_it_proves_nothing() -> None:
    proof = prove([sent(0)], [read(sent(0), 1)], killed_in=0, born=frozenset({CHILD}))
    assert (proof.second_generation, proof.holds) == (0, False)


def test_the_batch_that_was_killed_cannot_hold_records_of_shards_made_after_it() -> None:
    output = [read(sent(0, CHILD), 1)]
    proof = prove([sent(0, CHILD)], output, killed_in=1, born=frozenset({CHILD}))
    assert (proof.second_generation, proof.holds) == (0, False)
