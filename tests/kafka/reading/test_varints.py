from __future__ import annotations

import numpy as np
import pytest
from aiokafka.record.util import decode_varint_py, encode_varint_py
from hypothesis import given
from hypothesis import strategies as st

from fanout.kafka.reading.record_fields import OUT_OF_RANGE, read_varint, read_varints

# As many of each number of bytes as of any other.
numbers = st.integers(0, 63).flatmap(lambda bits: st.integers(-(2**bits), 2**bits - 1))


def written(values: list[int]) -> tuple[bytes, list[int]]:
    """Write numbers one after the other; return where each begins as well."""
    data = bytearray()
    begins = []
    for value in values:
        begins.append(len(data))
        encode_varint_py(value, data.append)
    return bytes(data), begins


@given(st.lists(numbers, min_size=1) | numbers.map(lambda number: [number] * 3))
def test_numbers_come_back_one_by_one_and_at_once(values: list[int]) -> None:
    data, begins = written(values)
    ends = [*begins[1:], len(data)]
    assert [read_varint(data, at) for at in begins] == list(zip(values, ends, strict=True))
    found, after = read_varints(np.frombuffer(data, np.uint8), np.array(begins, np.int64))
    assert (found.tolist(), after.tolist()) == (values, ends)


@pytest.mark.parametrize(
    "data",
    [b"\x80" * 9 + b"\x02", b"\xff" * 9 + b"\x7f", b"\xff" * 10 + b"\0", b"\x80" * 11 + b"\1"],
)
def test_a_number_of_more_than_64_bits_is_none(data: bytes) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        read_varint(data, 0)
    _, after = read_varints(np.frombuffer(data + b"\0" * 10, np.uint8), np.array([0, 15]))
    assert after[0] >= OUT_OF_RANGE
    assert after[1] == 16


@given(st.binary(min_size=1, max_size=12))
def test_any_bytes_are_the_number_that_aiokafka_reads_or_none(data: bytes) -> None:
    whole = data + b"\0"  # so that it ends
    found, after = read_varints(np.frombuffer(whole, np.uint8), np.zeros(1, np.int64))
    try:
        expected = read_varint(whole, 0)
    except ValueError:
        assert after[0] >= OUT_OF_RANGE
        return
    assert (found[0], after[0]) == expected == decode_varint_py(bytearray(whole), 0)


def test_a_number_that_is_cut_short_is_not_read() -> None:
    for data in (b"", b"\x80", b"\xff" * 8):
        with pytest.raises(IndexError):
            read_varint(data, 0)


def test_a_position_after_the_end_stays_there() -> None:
    for data in (b"\1", b"\xff"):
        _, after = read_varints(np.frombuffer(data, np.uint8), np.array([1, OUT_OF_RANGE]))
        assert (after > [1, OUT_OF_RANGE]).all() or after.min() >= OUT_OF_RANGE


def test_no_positions_are_no_numbers() -> None:
    found, after = read_varints(np.zeros(0, np.uint8), np.zeros(0, np.int64))
    assert (len(found), len(after)) == (0, 0)
