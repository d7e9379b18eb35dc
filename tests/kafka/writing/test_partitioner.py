"""Keys go where Kafka's own producers send them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2 as murmur2_of_one
from hypothesis import given
from hypothesis import strategies as st

from fanout.errors import UnwritableRecordError
from fanout.kafka.writing.partitioner import checked, murmur2, partitions_of


@pytest.mark.parametrize(
    ("key", "number"),
    [
        # testMurmur2 in UtilsTest.java of Kafka's clients.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_a_key_has_the_hash_that_it_has_in_java(key: bytes, number: int) -> None:
    assert int(murmur2(pa.array([key]))[0]) == number % 2**32


KEYS = st.lists(st.binary(max_size=1000) | st.binary(max_size=9) | st.none(), max_size=20)


@given(KEYS, st.integers(1, 2**31 - 1), st.integers(0, 3), st.integers(0, 2**40))
def test_every_key_goes_where_it_goes_alone(
    keys: list[bytes | None], count: int, skipped: int, first_row: int
) -> None:
    column = pa.array([b"before", None, b"", *keys], pa.binary())[skipped:]
    expected = [
        (first_row + row) % count if key is None else (murmur2_of_one(key) & 0x7FFFFFFF) % count
        for row, key in enumerate(column.to_pylist())
    ]
    chosen = partitions_of(column, count, first_row=first_row)
    assert chosen.to_pylist() == expected
    assert chosen.type == pa.int32()


def test_records_without_a_key_take_turns() -> None:
    column = pa.array([None, b"k", None, None, None], pa.binary())
    chosen = partitions_of(column, 3, first_row=2).to_pylist()
    assert [chosen[row] for row in (0, 2, 3, 4)] == [2, 1, 2, 0]
    assert chosen[1] == partitions_of(pa.array([b"k"]), 3).to_pylist()[0]


def test_no_keys_have_no_partitions() -> None:
    assert partitions_of(pa.array([], pa.binary()), 3).to_pylist() == []


@pytest.mark.parametrize("wrong", [[0], [0, None], [0, 2], [-1, 0], ["a", "b"], None], ids=repr)
def test_what_a_partitioner_returns_is_checked(wrong: Any) -> None:
    with pytest.raises(UnwritableRecordError, match="the partitioner must return"):
        checked(lambda _, __: wrong)(pa.array([b"a", None]), 2)
