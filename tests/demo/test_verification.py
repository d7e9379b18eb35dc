from __future__ import annotations

import msgspec
import pytest

from fanout.demo.records import ReadRecord, Restart, SentRecord
from fanout.demo.verification import Proof, verify

PARENT, CHILD, GRANDCHILD, OTHER = "parent", "child", "grandchild", "other"
PARENTS = {PARENT: [], CHILD: [PARENT], GRANDCHILD: [CHILD], OTHER: []}


def sent(number: int, split: str = PARENT) -> SentRecord:
    return SentRecord(number, f"key-{number}", split, 1000 + number, f"digest-{number}")


def read(record: SentRecord, batch: int = 0) -> ReadRecord:
    return ReadRecord(
        batch, record.number, record.key, record.split, record.sequence, record.digest
    )


def prove(
    records: list[SentRecord], output: list[ReadRecord], restart: Restart | None = None
) -> Proof:
    return verify(records, output, PARENTS, restart)


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
    proof = verify(records, [read(sent(1), 0), read(sent(0), 1)], None, None)
    assert (proof.out_of_order, proof.holds) == (None, True)


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


@pytest.mark.parametrize(
    "change", [{"key": "x"}, {"split": OTHER}, {"sequence": 7}, {"digest": "x"}], ids=str
)
def test_an_altered_record_is_found(change: dict[str, object]) -> None:
    proof = prove([sent(0)], [msgspec.structs.replace(read(sent(0)), **change)])
    assert (proof.altered, proof.lost, proof.holds) == (1, 0, False)


@pytest.mark.parametrize("number", [None, 7])
def test_a_record_that_nobody_sent_is_altered(number: int | None) -> None:
    output = [read(sent(0)), msgspec.structs.replace(read(sent(0)), number=number)]
    proof = prove([sent(0)], output)
    assert (proof.altered, proof.duplicated, proof.holds) == (1, 0, False)


def test_a_later_batch_with_an_earlier_record_is_out_of_order() -> None:
    proof = prove([sent(0), sent(1)], [read(sent(1), 0), read(sent(0), 1)])
    assert (proof.out_of_order, proof.holds) == (1, False)


def test_rows_within_a_batch_have_no_order() -> None:
    assert prove([sent(0), sent(1)], [read(sent(1)), read(sent(0))]).holds


def test_shards_have_no_order_between_them() -> None:
    assert prove([sent(0, OTHER), sent(1)], [read(sent(1), 0), read(sent(0, OTHER), 1)]).holds


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
    proof = prove(records, output, Restart(killed_in=0, born=(CHILD, GRANDCHILD)))
    assert (proof.second_generation, proof.holds) == (2, True)


def test_a_restart_that_delivers_nothing_of_the_shards_made_before_it_proves_nothing() -> None:
    proof = prove([sent(0)], [read(sent(0), 1)], Restart(killed_in=0, born=(CHILD,)))
    assert (proof.second_generation, proof.holds) == (0, False)


def test_the_batch_that_was_killed_cannot_hold_records_of_shards_made_after_it() -> None:
    output = [read(sent(0, CHILD), 1)]
    proof = prove([sent(0, CHILD)], output, Restart(killed_in=1, born=(CHILD,)))
    assert (proof.second_generation, proof.holds) == (0, False)
