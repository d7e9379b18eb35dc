from __future__ import annotations

import msgspec
import pytest

from fanout.demo.kafka import event_time
from fanout.demo.options import STREAM, ServiceName
from fanout.demo.sources import OUT_OF_ORDERNESS
from fanout.demo.verification import Evidence, Proof, SentRecord, verify
from fanout.demo.workspace import ReadRecord
from fanout.testing.trials.records import value_of

BEGUN = 1_767_225_600_000
HERE, THERE = "orders-by-key-0", "orders-by-key-1"
KEYS = ["ann", "ann", "bob", "bob"]
SENT = [
    SentRecord(split, str(number), event_time(number, BEGUN))
    for number, split in enumerate(["orders-0", "orders-0", "orders-0", "orders-1"])
]


def read(number: int, offset: int, batch: int = 0, partition: str = HERE) -> ReadRecord:
    key = KEYS[number]
    value = value_of(STREAM, key, number)
    return ReadRecord(batch, key.encode(), value, partition, str(offset), SENT[number].time)


OUTPUT = [read(0, 1), read(1, 2, 1), read(2, 1, 1, THERE), read(3, 2, 2, THERE)]
# Record 1 is the earliest.
FIRST = event_time(1, BEGUN)
REPORTED: list[tuple[int, int | None]] = [(0, None), (1, FIRST - 1), (2, FIRST)]


def prove(
    output: list[ReadRecord],
    reported: list[tuple[int, int | None]] | None = None,
    born: frozenset[str] | None = None,
) -> Proof:
    watermarks = REPORTED if reported is None else reported
    return verify(Evidence(ServiceName.KAFKA, SENT, {}, born, reported=watermarks), output)


def test_an_event_is_told_late_by_less_than_the_reader_expects() -> None:
    newest = event_time(0, BEGUN)
    delays = set()
    for number in range(1, 5_000):
        newest = max(newest, event_time(number, BEGUN))
        delays.add(newest - event_time(number, BEGUN))
    assert min(delays) == 0
    assert 900 < max(delays) <= OUT_OF_ORDERNESS * 1_000


def test_what_came_through_once_and_in_order_by_key_holds() -> None:
    proof = prove(OUTPUT)
    assert proof == Proof(
        records_sent=4,
        records_read=4,
        batches=3,
        lost=0,
        duplicated=0,
        altered=0,
        out_of_order=0,
        second_generation=None,
        watermark_violations=0,
        watermark_passed=1,
    )
    assert proof.holds


def test_what_is_lost_or_comes_twice_is_found() -> None:
    proof = prove([*OUTPUT[1:], OUTPUT[3]])
    assert (proof.lost, proof.duplicated, proof.altered, proof.holds) == (1, 1, 0, False)


@pytest.mark.parametrize(
    "change", [{"key": b"x"}, {"value": b"x"}, {"time": 1}, {"time": None}], ids=str
)
def test_an_altered_record_is_found(change: dict[str, object]) -> None:
    proof = prove([*OUTPUT[:3], msgspec.structs.replace(OUTPUT[3], **change)])
    assert (proof.altered, proof.holds) == (1, False)
    assert proof.lost == (0 if "time" in change else 1)


def test_a_record_that_nobody_sent_is_altered() -> None:
    value = value_of(STREAM, "bob", 9)
    proof = prove([*OUTPUT[:3], msgspec.structs.replace(OUTPUT[3], value=value)])
    assert (proof.altered, proof.lost, proof.holds) == (1, 1, False)


def test_a_record_before_one_that_was_sent_earlier_is_out_of_order() -> None:
    proof = prove([read(0, 2), read(1, 1), *OUTPUT[2:]])
    assert (proof.out_of_order, proof.holds) == (1, False)


def test_a_key_that_moved_to_another_split_has_no_order_between_the_two() -> None:
    assert prove([*OUTPUT[:2], read(2, 2, 2, THERE), read(3, 1, 2, THERE)]).holds


def test_a_key_in_two_partitions_is_out_of_order() -> None:
    proof = prove([*OUTPUT[:3], read(3, 3, 2)])
    assert (proof.out_of_order, proof.holds) == (1, False)


def test_a_later_batch_with_an_earlier_record_is_out_of_order() -> None:
    proof = prove([read(0, 1, 1), read(1, 2, 0), *OUTPUT[2:]])
    assert (proof.out_of_order, proof.holds) == (1, False)


def test_a_record_that_a_watermark_had_excluded_is_a_violation() -> None:
    proof = prove(OUTPUT, [(0, FIRST), (1, FIRST), (2, FIRST)])
    assert (proof.watermark_violations, proof.holds) == (1, False)


def test_the_watermark_behind_a_batch_excludes_nothing_of_the_batch() -> None:
    assert prove(OUTPUT, [(0, FIRST - 1), (1, FIRST), (2, FIRST)]).holds


def test_a_record_behind_a_batch_that_is_not_the_last_one_is_a_violation_too() -> None:
    proof = prove([*OUTPUT[2:], OUTPUT[0], read(1, 2, 3)], [*REPORTED, (3, FIRST)])
    assert (proof.watermark_violations, proof.holds) == (1, False)


@pytest.mark.parametrize("lower", [FIRST - 1, None])
def test_a_watermark_that_goes_back_is_a_violation(lower: int | None) -> None:
    proof = prove(OUTPUT, [*REPORTED, (2, lower), (2, FIRST)])
    assert (proof.watermark_violations, proof.holds) == (1, False)


def test_a_batch_that_comes_again_reports_its_watermark_again() -> None:
    assert prove(OUTPUT, [*REPORTED[:2], *REPORTED[1:]]).holds


@pytest.mark.parametrize("reported", [[], [(0, None), (1, None), (2, FIRST - 1)]])
def test_a_watermark_that_passes_nothing_proves_nothing(
    reported: list[tuple[int, int | None]],
) -> None:
    proof = prove(OUTPUT, reported)
    assert (proof.watermark_violations, proof.watermark_passed, proof.holds) == (0, 0, False)


@pytest.mark.parametrize(("born", "count"), [("orders-1", 1), ("orders-2", 0)])
def test_records_of_splits_made_before_the_restart_are_counted(born: str, count: int) -> None:
    proof = prove(OUTPUT, born=frozenset({born}))
    assert (proof.second_generation, proof.holds) == (count, bool(count))
