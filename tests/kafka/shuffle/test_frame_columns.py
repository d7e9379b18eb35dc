from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fanout.errors import BadFrameError, OptionError
from fanout.kafka.shuffle.frames import (
    CONTROL,
    LONGEST_CONTROL,
    MAX_MILLIS,
    MIN_MILLIS,
    SCHEMA,
    IdleFrame,
    WatermarkFrame,
    encode,
    encode_control,
)
from tests.support.kafka.shuffle_decoding import read_values

MS = pa.timestamp("ms", "UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

rows = st.tuples(st.binary(max_size=30), st.none() | st.integers(MIN_MILLIS, MAX_MILLIS))
others = st.one_of(
    st.none(),
    st.builds(encode_control, st.builds(IdleFrame, st.just(1), st.just(2))),
    st.builds(encode_control, st.builds(WatermarkFrame, st.just(1), st.just(2), st.just(3))),
    st.binary(max_size=40).map(lambda data: b"\x07" + data),
    st.binary(max_size=7).map(lambda data: b"\x01\x00" + data),
    st.sampled_from([b"", b"\x01", b"\x01\x00\x7f" + bytes(7), b"\x01\x00\x80" + bytes(9)]),
)


def framed(row: tuple[bytes, int | None]) -> bytes:
    """Frame a row byte by byte."""
    value, millis = row
    return (
        b"\x01\x01" + value
        if millis is None
        else b"\x01\x00" + millis.to_bytes(8, signed=True) + value
    )


def moment(millis: int | None) -> datetime | None:
    return None if millis is None else EPOCH + timedelta(milliseconds=millis)


@given(st.lists(rows))
def test_rows_are_framed_as_the_layout_says(given_rows: list[tuple[bytes, int | None]]) -> None:
    values = pa.array([value for value, _ in given_rows], pa.binary())
    times = pa.array([millis for _, millis in given_rows], pa.int64()).view(MS)
    keys = pa.array([b"k"] * len(given_rows), pa.binary())
    assert encode(keys, values, times).to_pylist() == [framed(row) for row in given_rows]


@given(st.lists(rows | others, min_size=1, max_size=12), st.sampled_from(["none", "lz4"]))
@example([b"\x07" + bytes(2 * LONGEST_CONTROL), None, b"\x01\x00", (b"v", 5)], "none")
def test_frames_are_taken_apart_one_by_one(
    mixed: list[tuple[bytes, int | None] | bytes | None], codec: str
) -> None:
    raw = [framed(row) if isinstance(row, tuple) else row for row in mixed]
    records = read_values(raw, codec)
    for at, row in enumerate(mixed):
        control = records[CONTROL][at].as_py()
        if isinstance(row, tuple):
            assert control is None
            assert records["value"][at].as_py() == row[0]
            assert records["eventTime"][at].as_py() == moment(row[1])
        else:
            assert control == (row or b"")[: LONGEST_CONTROL + 1]
            assert records["eventTime"][at].as_py() is None


def test_values_are_copied_without_their_heads() -> None:
    values = [b"with a time", b"", b"without one"]
    records = read_values([framed((values[0], 1)), framed((b"", None)), framed((values[2], None))])
    assert records["value"].to_pylist() == values
    assert records["value"].buffers()[2].size == sum(map(len, values))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_any_unit_and_zone_are_cut_to_milliseconds_before_1970_too(unit: str) -> None:
    early = datetime(1969, 12, 31, 23, 59, 58, tzinfo=UTC)
    late = datetime(2023, 11, 14, 23, 13, 20, tzinfo=timezone(timedelta(hours=1)))
    times = pa.array([early, late, None], pa.timestamp(unit, "Europe/Berlin"))
    written = encode(pa.array(["k"] * 3), pa.array(["v"] * 3), times)
    times = read_values(written.to_pylist())["eventTime"]
    assert times.to_pylist() == [early, late.astimezone(UTC), None]


def test_what_is_finer_than_a_millisecond_is_cut_off_downwards() -> None:
    times = pa.array([1_999, -1], pa.timestamp("us", "UTC"))
    written = encode(pa.array(["k"] * 2), pa.array(["v"] * 2), times)
    times = read_values(written.to_pylist())["eventTime"]
    assert times.cast(pa.int64()).to_pylist() == [1_000, -1_000]


def test_without_times_and_with_strings_of_any_kind() -> None:
    for type_ in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string()):
        values = pa.array(["no", "one", "more"], type_).slice(1)
        written = encode(values, values, None)
        assert written.type == pa.binary()
        assert read_values(written.to_pylist())["value"].to_pylist() == [b"one", b"more"]


def test_the_first_and_the_last_moment_that_there_may_be_are_written() -> None:
    times = pa.array([MIN_MILLIS * 1000, LAST_US], pa.timestamp("us", "UTC"))
    read = read_values(encode(V, V, times).to_pylist())
    ends = [MIN_MILLIS * 1000, MAX_MILLIS * 1000]
    assert read["eventTime"].cast(pa.int64()).to_pylist() == ends


V = pa.array(["v", "w"])
LAST_US = MAX_MILLIS * 1000 + 999


@pytest.mark.parametrize(
    ("keys", "values", "times", "sentence"),
    [
        (pa.array(["k", None]), V, None, "keys: 1 of 2 are null; leave them out"),
        (V, pa.array(["v", None]), None, "values: 1 of 2 are null; leave them out"),
        (V, V, pa.array([MAX_MILLIS + 1, 0], MS), "outside of the years 1 to 9999"),
        (V, V, pa.array([0, MIN_MILLIS - 1], MS), "outside of the years 1 to 9999"),
        (V, V, pa.array([2**62, 0], pa.timestamp("s", "UTC")), "outside of the years 1 to 9999"),
        (V, V, pa.array([0, -(2**62)], pa.timestamp("s", "UTC")), "outside of the years 1 to 9999"),
        (V, V, pa.array([LAST_US + 1, 0], pa.timestamp("us", "UTC")), "outside of the years"),
    ],
)
def test_a_row_that_cannot_become_a_frame_is_refused(
    keys: pa.Array, values: pa.Array, times: pa.Array | None, sentence: str
) -> None:
    with pytest.raises(BadFrameError, match=sentence):
        encode(keys, values, times)


@pytest.mark.parametrize(
    ("keys", "values", "times", "sentence"),
    [
        (pa.array([1, 2]), V, None, "keys: int64 is neither binary nor string"),
        (V, pa.array([1.0, 2.0]), None, "values: double is neither binary nor string"),
        (V, V, pa.array([1, 2]), "timestamps: int64 is no timestamp with a time zone"),
        (V, V, pa.array([1, 2], pa.timestamp("us")), r"timestamps: timestamp\[us\] is no"),
        (V[:1], V, None, "must have the same length"),
        (V, V, pa.array([1], MS), "must have the same length"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    keys: pa.Array, values: pa.Array, times: pa.Array | None, sentence: str
) -> None:
    with pytest.raises(OptionError, match=sentence):
        encode(keys, values, times)


def test_no_rows_have_the_columns_too() -> None:
    assert encode(pa.array([], pa.binary()), pa.array([], pa.binary()), None).to_pylist() == []
    made = read_values([])
    assert made.select(SCHEMA.names).schema == SCHEMA
    assert SCHEMA.names[:3] == ["key", "value", "eventTime"]
