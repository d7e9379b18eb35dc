from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fanout.kafka.partitions import Partition
from fanout.kafka.share.offset_ranges import RecordSet

A, B = Partition("a", 0), Partition("a", 1)

ranges = st.tuples(st.integers(0, 30), st.integers(1, 10)).map(lambda one: (one[0], sum(one)))
steps = st.lists(st.tuples(st.booleans(), st.sampled_from([A, B]), ranges), max_size=30)


@given(steps, ranges)
def test_ranges_are_a_set_of_records(
    steps: list[tuple[bool, Partition, tuple[int, int]]], asked: tuple[int, int]
) -> None:
    records, model = RecordSet(), set[tuple[Partition, int]]()
    for adds, partition, (begin, end) in steps:
        some = {(partition, offset) for offset in range(begin, end)}
        if adds:
            records.add((partition, begin, end))
            model |= some
        else:
            records.remove((partition, begin, end))
            model -= some
    found = list(records)
    assert {(one, n) for one, begin, end in found for n in range(begin, end)} == model
    assert (len(records), bool(records)) == (len(model), bool(model))
    inside = {n for _, begin, end in records.overlaps((A, *asked)) for n in range(begin, end)}
    assert inside == {n for one, n in model if one == A} & set(range(*asked))


@given(steps)
def test_neighbours_are_one_range(steps: list[tuple[bool, Partition, tuple[int, int]]]) -> None:
    records = RecordSet()
    for _, partition, (begin, end) in steps:
        records.add((partition, begin, end))
    for partition in (A, B):
        edges = [edge for one, *both in records if one == partition for edge in both]
        assert edges == sorted(set(edges))
