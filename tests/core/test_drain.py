from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.core.checkpoint import Checkpoint
from fanout.core.drain import Basket, Drained
from fanout.core.events import Batch, End, Split
from fanout.core.positions import Cursor, Range
from fanout.errors import OptionError
from tests.support.scripted_source import Log, ScriptedSource, record_batch, sequences

A = Split("a")
CURSOR = ScriptedSource(logs=[]).cursor


def batch(*numbers: int, after: int = 0, until: int | None = None, size: int = 8) -> Batch:
    records = record_batch(Log(split=A, size=size), numbers)
    end = until if until is not None else numbers[-1]
    return Batch(A, records, Range(Cursor(after), Cursor(end)), lag=0.0, behind=0)


def basket(max_records: int = 100, max_bytes: int = 1 << 20) -> Basket:
    return Basket(max_records=max_records, max_bytes=max_bytes, cursor=CURSOR)


def test_whole_batches_are_taken_up_to_the_limit() -> None:
    filled = basket(max_records=4)
    assert filled.add(batch(1, 2)) is None
    assert not filled.full
    assert filled.add(batch(3, 4, after=2)) is None
    assert filled.full


def test_a_batch_is_cut_where_the_limit_of_records_falls() -> None:
    filled = basket(max_records=2)
    rest = filled.add(batch(10, 20, 30, after=5, until=35))
    assert rest is not None
    (head,) = filled.batches
    assert (sequences(head), head.range) == ([10, 20], Range(Cursor(5), Cursor(20)))
    assert (sequences(rest), rest.range) == ([30], Range(Cursor(20), Cursor(35)))
    assert filled.full


def test_what_a_source_keeps_at_a_position_changes_behind_the_last_row_only() -> None:
    span = Range(Cursor(5, state="before"), Cursor(35, state="behind"))
    rest = basket(max_records=1).add(replace(batch(10, 20, 30), range=span))
    assert rest is not None
    filled = basket(max_records=1)
    last = filled.add(rest)
    assert last is not None
    middle = filled.batches[0].range.until
    for cursor in (rest.range.after, middle, last.range.after):
        assert isinstance(cursor, Cursor)
        assert cursor.state == "before"
    assert last.range.until is span.until


def test_only_the_last_part_of_a_cut_batch_knows_the_lag() -> None:
    filled = basket(max_records=1)
    rest = filled.add(batch(1, 2))
    assert rest is not None
    assert (filled.batches[0].lag, rest.lag) == (None, 0.0)
    assert (filled.batches[0].behind, rest.behind) == (None, 0)


def test_a_batch_is_cut_where_the_limit_of_bytes_falls() -> None:
    whole = batch(1, 2, 3, 4, size=1000)
    filled = basket(max_bytes=whole.nbytes - 1)
    rest = filled.add(whole)
    assert rest is not None
    assert (sequences(filled.batches[0]), sequences(rest)) == ([1, 2, 3], [4])
    assert filled.full


def test_all_batches_together_keep_within_the_limit_of_bytes() -> None:
    one, two = batch(1, 2, size=1000), batch(3, 4, after=2, size=1000)
    filled = basket(max_bytes=one.nbytes + two.nbytes - 1)
    assert filled.add(one) is None
    rest = filled.add(two)
    assert rest is not None
    assert sequences(rest) == [4]


def test_one_record_that_is_larger_than_max_bytes_is_taken_alone() -> None:
    filled = basket(max_bytes=10)
    rest = filled.add(batch(1, 2, size=1000))
    assert rest is not None
    assert (sequences(filled.batches[0]), sequences(rest)) == ([1], [2])
    assert filled.full


def test_a_large_record_is_left_where_something_was_collected_before() -> None:
    filled, large = basket(max_bytes=500), batch(2, size=1000)
    filled.add(batch(1))
    assert filled.add(large) is large
    assert filled.full
    assert len(filled.batches) == 1


def test_idle_progress_and_ends_are_kept_without_being_batches() -> None:
    filled, idle = basket(max_records=1), batch(until=9)
    filled.add(idle)
    filled.add(End(A))
    assert filled.events == [idle, End(A)]
    assert filled.batches == ()
    assert not filled.full


@pytest.mark.parametrize("limits", [{"max_records": 0}, {"max_bytes": 0}])
def test_limits_below_one_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="at least 1"):
        basket(**limits)


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=30),
    st.integers(1, 40),
    st.integers(1, 2000),
)
def test_cutting_again_and_again_gives_the_same_records(
    sizes: list[int], max_records: int, max_bytes: int
) -> None:
    log = Log(split=A)
    records = record_batch(log, range(1, len(sizes) + 1))
    records = records.set_column(2, "data", pa.array([b"x" * size for size in sizes]))
    rest: Batch | None = Batch(A, records, Range(Cursor(0), Cursor(len(sizes))))
    collected: list[int] = []
    reached = Cursor(0)
    while rest is not None:
        filled = basket(max_records, max_bytes)
        rest = filled.add(rest)
        (head,) = filled.batches
        assert head.range.after == reached
        assert head.num_records <= max_records
        assert head.nbytes <= max_bytes or head.num_records == 1
        collected += sequences(head)
        reached = Cursor(collected[-1])
        assert head.range.until == reached
    assert collected == list(range(1, len(sizes) + 1))


def test_drained_counts_its_records_and_bytes() -> None:
    one, two = batch(1, 2), batch(3)
    drained = Drained((one, two), Checkpoint("s"))
    assert (drained.num_records, drained.nbytes) == (3, one.nbytes + two.nbytes)
