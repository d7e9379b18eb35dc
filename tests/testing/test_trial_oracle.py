from __future__ import annotations

import pytest

from fanout.testing.trials.oracle import OutputOracle, OutputVerdict
from fanout.testing.trials.records import value_of

STREAM, SUFFIX = "orders", b"!"
# The records by key and number.
WHOLE = [("a", 0), ("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 5), ("b", 6), ("a", 7)]
NEWEST = {"a": 7, "b": 6}


def judged(*records: tuple[str, int]) -> OutputOracle:
    """Let an oracle read records, by key and number."""
    oracle = OutputOracle(STREAM, SUFFIX)
    for key, number in records:
        oracle.read(key.encode(), written(key, number))
    return oracle


def written(key: str, number: int) -> bytes:
    return value_of(STREAM, key, number) + SUFFIX


COUNTS = {"produced": 8, "read": 8, "lost": 0, "duplicated": 0, "altered": 0, "out_of_order": 0}


def verdict(**counts: int) -> OutputVerdict:
    return OutputVerdict(**COUNTS | counts)


def test_an_output_that_is_its_input_holds() -> None:
    found = judged(*WHOLE).verdict(8)
    assert found == verdict()
    assert found.holds


def test_keys_may_come_in_any_order() -> None:
    of_a, of_b = ([record for record in WHOLE if record[0] == key] for key in "ab")
    assert judged(*of_b, *of_a).verdict(8) == verdict()


@pytest.mark.parametrize("place", range(8))
def test_a_lost_record_is_found_wherever_it_was(place: int) -> None:
    found = judged(*WHOLE[:place], *WHOLE[place + 1 :]).verdict(8)
    assert found == verdict(read=7, lost=1)
    assert not found.holds


def test_all_of_a_key_can_be_lost() -> None:
    of_a = [record for record in WHOLE if record[0] == "a"]
    assert judged(*of_a).verdict(8) == verdict(read=5, lost=3)


@pytest.mark.parametrize("place", range(8))
def test_a_duplicated_record_is_found_wherever_it_was(place: int) -> None:
    found = judged(*WHOLE[: place + 1], *WHOLE[place:]).verdict(8)
    assert found == verdict(read=9, duplicated=1)
    assert not found.holds


def test_a_batch_that_comes_again_whole_is_duplicated_and_not_out_of_order() -> None:
    assert judged(*WHOLE, *WHOLE).verdict(8) == verdict(read=16, duplicated=8)


def test_two_swapped_records_of_a_key_are_out_of_order_once() -> None:
    swapped = [WHOLE[1], WHOLE[0], *WHOLE[2:]]
    found = judged(*swapped).verdict(8)
    assert found == verdict(out_of_order=1)
    assert not found.holds


def test_a_record_that_comes_after_many_later_ones_is_out_of_order_once() -> None:
    assert judged(*WHOLE[1:], WHOLE[0]).verdict(8) == verdict(out_of_order=1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"a", written("a", 5)[:-1]),
        (b"a", written("a", 5) + b"!"),
        (b"b", written("a", 5)),
        (b"a", written("a", 5).replace(b"5:", b"3:")),
        (b"a", b"5:"),
        (b"a", "\u0664:".encode()),
        (b"a", b""),
        (b"a", b"\xff"),
        (b"\xff", written("a", 5)),
        (b"a", None),
        (None, written("a", 5)),
    ],
)
def test_an_altered_record_is_altered_and_its_original_lost(
    key: bytes | None, value: bytes | None
) -> None:
    oracle = judged(*(record for record in WHOLE if record != ("a", 5)))
    oracle.read(key, value)
    found = oracle.verdict(8)
    assert found == verdict(lost=1, altered=1)
    assert not found.holds


def test_a_record_that_nobody_has_produced_is_altered() -> None:
    assert judged(*WHOLE, ("a", 8), ("c", 9)).verdict(8) == verdict(read=10, altered=2)


def test_a_record_of_another_stream_is_altered() -> None:
    oracle = judged(*WHOLE)
    oracle.read(b"a", value_of("others", "a", 0) + SUFFIX)
    assert oracle.verdict(8) == verdict(read=9, altered=1)


def test_the_output_has_caught_up_when_the_last_of_each_key_was_read() -> None:
    assert judged(*WHOLE).has(NEWEST)
    assert judged(("a", 7), ("b", 6)).has(NEWEST)
    assert not judged(*WHOLE[:-1]).has(NEWEST)
    assert not judged(*(record for record in WHOLE if record[0] == "a")).has(NEWEST)
    assert judged().has({})


def test_a_lost_record_is_not_waited_for_when_a_later_one_of_its_key_was_read() -> None:
    assert judged(("a", 9), ("b", 6)).has(NEWEST)


def test_the_records_of_a_table_have_no_order() -> None:
    oracle = OutputOracle(STREAM, SUFFIX, ordered=False)
    for key, number in reversed(WHOLE):
        oracle.read(key.encode(), written(key, number))
    assert oracle.verdict(8) == verdict()


def test_records_are_counted_once_where_the_backlog_is_counted() -> None:
    oracle = judged(*WHOLE, *WHOLE)
    oracle.read(b"a", b"?")
    assert oracle.distinct == 8
