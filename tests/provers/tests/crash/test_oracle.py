from __future__ import annotations

import pytest

from tests.provers.crash.moments import Pipeline
from tests.provers.crash.oracle import OutputOracle, OutputVerdict
from tests.provers.crash.records import SUFFIX, value_of

PIPELINE = Pipeline.KAFKA
PRODUCED = {"a": 5, "b": 3}


def judged(*records: tuple[str, int]) -> OutputOracle:
    """Let an oracle read records, by key and number."""
    oracle = OutputOracle(PIPELINE)
    for key, number in records:
        oracle.read(key.encode(), written(key, number))
    return oracle


def written(key: str, number: int) -> bytes:
    return (value_of(PIPELINE, key, number) + SUFFIX).encode()


WHOLE = [(key, number) for key, count in PRODUCED.items() for number in range(count)]
COUNTS = {"produced": 8, "read": 8, "lost": 0, "duplicated": 0, "altered": 0, "out_of_order": 0}


def verdict(**counts: int) -> OutputVerdict:
    return OutputVerdict(**COUNTS | counts)


def test_an_output_that_is_its_input_holds() -> None:
    found = judged(*WHOLE).verdict(PRODUCED)
    assert found == verdict()
    assert found.holds


def test_keys_may_come_in_any_order() -> None:
    mixed = [("b", 0), ("a", 0), ("b", 1), ("a", 1), ("a", 2), ("a", 3), ("b", 2), ("a", 4)]
    assert judged(*mixed).verdict(PRODUCED) == verdict()


@pytest.mark.parametrize("place", range(8))
def test_a_lost_record_is_found_wherever_it_was(place: int) -> None:
    found = judged(*WHOLE[:place], *WHOLE[place + 1 :]).verdict(PRODUCED)
    assert found == verdict(read=7, lost=1)
    assert not found.holds


def test_all_of_a_key_can_be_lost() -> None:
    assert judged(*WHOLE[:5]).verdict(PRODUCED) == verdict(read=5, lost=3)


@pytest.mark.parametrize("place", range(8))
def test_a_duplicated_record_is_found_wherever_it_was(place: int) -> None:
    found = judged(*WHOLE[: place + 1], *WHOLE[place:]).verdict(PRODUCED)
    assert found == verdict(read=9, duplicated=1)
    assert not found.holds


def test_a_batch_that_comes_again_whole_is_duplicated_and_not_out_of_order() -> None:
    assert judged(*WHOLE, *WHOLE).verdict(PRODUCED) == verdict(read=16, duplicated=8)


def test_two_swapped_records_of_a_key_are_out_of_order_once() -> None:
    swapped = [WHOLE[1], WHOLE[0], *WHOLE[2:]]
    found = judged(*swapped).verdict(PRODUCED)
    assert found == verdict(out_of_order=1)
    assert not found.holds


def test_a_record_that_comes_after_many_later_ones_is_out_of_order_once() -> None:
    late = [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("a", 0), *WHOLE[5:]]
    assert judged(*late).verdict(PRODUCED) == verdict(out_of_order=1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"a", written("a", 4)[:-1]),
        (b"a", written("a", 4) + b"!"),
        (b"b", written("a", 4)),
        (b"a", written("a", 4).replace(b"4:", b"3:")),
        (b"a", b"4:"),
        (b"a", "\u0664:".encode()),
        (b"a", b""),
        (b"a", b"\xff"),
        (b"\xff", written("a", 4)),
        (b"a", None),
        (None, written("a", 4)),
    ],
)
def test_an_altered_record_is_altered_and_its_original_lost(
    key: bytes | None, value: bytes | None
) -> None:
    oracle = judged(*(record for record in WHOLE if record != ("a", 4)))
    oracle.read(key, value)
    found = oracle.verdict(PRODUCED)
    assert found == verdict(lost=1, altered=1)
    assert not found.holds


def test_a_record_that_nobody_has_produced_is_altered() -> None:
    assert judged(*WHOLE, ("a", 5), ("c", 0)).verdict(PRODUCED) == verdict(read=10, altered=2)


def test_a_record_of_another_pipeline_is_altered() -> None:
    oracle = judged(*WHOLE)
    oracle.read(b"a", (value_of(Pipeline.KINESIS, "a", 0) + SUFFIX).encode())
    assert oracle.verdict(PRODUCED) == verdict(read=9, altered=1)


def test_the_output_has_caught_up_when_the_last_of_each_key_was_read() -> None:
    assert judged(*WHOLE).has(PRODUCED)
    assert judged(("a", 4), ("b", 2)).has(PRODUCED)
    assert not judged(*WHOLE[:-1]).has(PRODUCED)
    assert not judged(*WHOLE[:5]).has(PRODUCED)
    assert judged().has({})


def test_a_lost_record_is_not_waited_for_when_a_later_one_of_its_key_was_read() -> None:
    assert judged(("a", 6), ("b", 2)).has(PRODUCED)


def test_the_records_of_a_table_have_no_order() -> None:
    oracle = OutputOracle(PIPELINE, ordered=False)
    for key, number in reversed(WHOLE):
        oracle.read(key.encode(), written(key, number))
    assert oracle.verdict(PRODUCED) == verdict()


def test_records_are_counted_once_where_the_backlog_is_counted() -> None:
    oracle = judged(*WHOLE, *WHOLE)
    oracle.read(b"a", b"?")
    assert oracle.distinct == 8


def test_the_worse_of_two_verdicts_has_the_larger_of_each_count() -> None:
    worse = verdict(lost=1, duplicated=5).worse(verdict(lost=4, read=9))
    assert worse == verdict(lost=4, duplicated=5, read=9)
