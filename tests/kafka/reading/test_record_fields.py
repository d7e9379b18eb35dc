"""Records that are read many at once are those that aiokafka reads one by one."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.util import decode_varint_py
from hypothesis import given, reject
from hypothesis import strategies as st

from fanout.errors import DamagedFrameError, MalformedEventError
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.record_fields import find_records
from fanout.kafka.reading.records import decode_fetched
from fanout.kafka.reading.transport import Fetched
from tests.support.damage import damaged
from tests.support.kafka.record_batches import (
    CODECS,
    HEADER_SIZE,
    BatchRow,
    batch,
    compress,
    sealed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

PARTITION = Partition("orders", 3)
MANY = 40  # more than are read one by one

small = st.none() | st.binary(max_size=5)
sizes = st.integers(0, 300) | st.sampled_from([63, 64, 8191, 8192, 100_000])
nullable_bytes = small | st.builds(
    lambda size, byte: bytes([byte]) * size, sizes, st.integers(0, 255)
)
headers = st.lists(st.tuples(st.text(max_size=3), small), max_size=4).map(tuple)


class Read(NamedTuple):
    """The records read of a batch before it ended, and whether all could be read."""

    rows: list[tuple[Any, ...]]
    whole: bool


def read(data: bytes, offset: int = 0) -> Read:
    found: list[tuple[Any, ...]] = []
    fetched = Fetched(0, 0, 0, (), data)
    parts = decode_fetched(
        fetched, PARTITION, offset=offset, read_committed=True, max_bytes=1 << 26
    )
    try:
        for part in parts:
            part.records.validate(full=True)
            rows = part.records.drop_columns(["topic", "partition", "timestamp"]).to_pydict()
            pairs = [
                tuple((each["key"], each["value"]) for each in row) for row in rows.pop("headers")
            ]
            times = part.records["timestamp"].cast("int64").to_pylist()
            found += zip(*rows.values(), times, pairs, strict=True)
            assert all(offset <= row[2] < part.next_offset for row in found)
    except MalformedEventError:
        return Read(found, whole=False)
    return Read(found, whole=True)


class _Numbers:
    """Read the numbers of a record."""

    count = 0

    def __call__(self, data: bytearray, at: int) -> tuple[int, int]:
        self.count += 1
        if self.count == 2 and data[at] > 0x7F:
            reject()  # the attributes are a byte, which aiokafka takes for a number
        number, after = decode_varint_py(data, at)
        return number, after


def read_one_by_one(plain: bytes) -> Read:
    """Read with aiokafka's own class in Python: the one in C reads beyond the end of a batch."""
    data = _DefaultRecordBatchPy(plain)
    found: list[tuple[Any, ...]] = []
    behind = -1
    try:
        for _ in range(data._num_records):
            record = data._read_msg(_Numbers())
            if record.timestamp * 1000 >= 2**62:
                reject()  # what has no date is null, which has tests of its own
            if not behind < record.offset < data.next_offset:
                return Read(found, whole=False)
            behind = record.offset
            found.append(
                (
                    record.key,
                    record.value,
                    record.offset,
                    record.timestamp_type,
                    None if record.timestamp < 0 else record.timestamp * 1000,
                    tuple(record.headers),
                )
            )
    except UnicodeDecodeError:
        reject()  # such keys have a test of their own
    except (CorruptRecordException, ValueError, IndexError):
        return Read(found, whole=False)
    return Read(found, whole=data._pos == len(plain))


@st.composite
def records(draw: st.DrawFn) -> list[BatchRow]:
    few = draw(
        st.lists(
            st.builds(
                BatchRow, st.just(0), st.integers(0, 2**41), nullable_bytes, nullable_bytes, headers
            ),
            min_size=1,
            max_size=6,
        )
    )
    rows = few * draw(st.sampled_from([1, 1, MANY]))
    step = draw(st.sampled_from([1, 1, 70]))
    return [row._replace(offset=index * step) for index, row in enumerate(rows)]


@given(rows=records(), codec=st.sampled_from(CODECS), base=st.integers(0, 2**62), data=st.data())
def test_whole_records_are_those_of_aiokafka(
    rows: list[BatchRow], codec: str, base: int, data: st.DataObject
) -> None:
    how: dict[str, Any] = {
        "log_append_time": data.draw(st.booleans()),
        "last": rows[-1].offset + data.draw(st.integers(0, 9)),
    }
    expected = read_one_by_one(batch(rows, base, **how))
    assert expected.whole
    assert read(batch(rows, base, codec=codec, **how), base) == expected


@pytest.mark.long
@given(rows=records(), codec=st.sampled_from(CODECS), data=st.data())
def test_damaged_records_are_those_of_aiokafka_up_to_the_first_that_it_refuses(
    rows: list[BatchRow], codec: str, data: st.DataObject
) -> None:
    rows = [row._replace(key=(row.key or b"")[:9], value=(row.value or b"")[:9]) for row in rows]
    last = rows[-1].offset
    good = batch(rows)
    body = data.draw(damaged(st.just(good[HEADER_SIZE:])))
    header = good[:HEADER_SIZE]
    expected = read_one_by_one(sealed(header + body, base=0, flags=0, last=last))
    packed = header + compress(body, codec)
    found = read(sealed(packed, base=0, flags=CODECS.index(codec), last=last))
    assert found.whole == expected.whole
    assert found.rows == expected.rows[: len(found.rows)]
    assert not expected.whole or found == expected


def varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    data = bytearray()
    while zigzag > 0x7F:
        data.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*data, zigzag])


def record(*fields: int | bytes, length: int | None = None) -> bytes:
    """Build a record of numbers and bytes, its attributes being 0."""
    body = b"\0" + b"".join(varint(field) if isinstance(field, int) else field for field in fields)
    return varint(len(body) if length is None else length) + body


GOOD = record(0, 0, 1, b"k", 1, b"v", 0)
ENDLESS = b"\xff" * 9 + b"\x02"


def answer(*packed: bytes, count: int | None = None) -> bytes:
    """Build a batch of records of any bytes."""
    header = bytearray(batch([])[:HEADER_SIZE])
    struct.pack_into(">i", header, HEADER_SIZE - 4, len(packed) if count is None else count)
    return sealed(bytes(header) + b"".join(packed), base=0, flags=0, last=max(len(packed), 1))


BROKEN = {
    "the record is longer than its fields": record(0, 1, -1, -1, 0, b"more"),
    "the record is shorter than its fields": record(0, 1, -1, -1, 0, length=5),
    "the record has no fields": record(length=0),
    "the record has a negative length": record(0, 1, -1, -1, 0, length=-6),
    "the record reaches beyond the batch": record(0, 1, -1, -1, 0, length=7),
    "the record reaches far beyond the batch": record(0, 1, -1, -1, 0, length=2**62),
    "the length has no end": ENDLESS + GOOD,
    "the timestamp has no end": record(ENDLESS, 1, -1, -1, 0),
    "the timestamp has 65 bits": record(b"\x80" * 9 + b"\x02", 1, -1, -1, 0),
    "the offset has no end": record(0, ENDLESS, -1, -1, 0),
    "the offset is before the batch": record(0, -1, -1, -1, 0),
    "the offset is far before the batch": record(0, -(2**63), -1, -1, 0),
    "the offset is behind the batch": record(0, 2**31, -1, -1, 0),
    "the key is longer than the record": record(0, 1, 9, b"k", -1, 0),
    "the key is longer than anything": record(0, 1, 2**63 - 1, -1, 0),
    "the value is longer than the record": record(0, 1, -1, 3, b"v", 0),
    "the value is longer than anything": record(0, 1, -1, 2**63 - 1, 0),
    "there are fewer headers than none": record(0, 1, -1, -1, -1),
    "there are fewer headers than announced": record(0, 1, -1, -1, 2, 1, b"k", -1),
    "there is one header of two": record(0, 1, -1, -1, 2, 1, b"k", 1, b"v"),
    "there are more headers than announced": record(0, 1, -1, -1, 1, 1, b"k", -1, 1, b"k", -1),
    "there are more headers than bytes": record(0, 1, -1, -1, 2**62, 1, b"k", -1),
    "the key of a header is null": record(0, 1, -1, -1, 1, -1, -1),
    "the key of a header is null, and nothing follows": record(0, 1, -1, -1, 2, 1, b"k", -1, -1),
    "the key of a header is longer than anything": record(0, 1, -1, -1, 1, 2**63 - 1, -1),
    "the key of a header has no end": record(0, 1, -1, -1, 3, ENDLESS, -1),
    "the value of a header is longer than the record": record(0, 1, -1, -1, 1, 1, b"k", 9, b"v"),
    "the value of a header is longer than anything": record(0, 1, -1, -1, 1, 0, 2**63 - 1),
}


def numbered(number: int, *, headers: bool) -> bytes:
    more: tuple[int | bytes, ...] = (1, 1, b"h", 1, b"x") if headers else (0,)
    return record(0, number, 1, b"k", 1, b"v", *more)


@pytest.mark.parametrize("around", [1, MANY])
@pytest.mark.parametrize("with_headers", [False, True])
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_what_a_record_says_of_itself_is_checked(
    broken: bytes,
    with_headers: bool,  # noqa: FBT001 - pytest passes it by its name
    around: int,
) -> None:
    before = [numbered(number, headers=with_headers) for number in range(around)]
    after = numbered(around + 1, headers=with_headers)
    good = [b"v"] * around
    # In the midst of a batch, at its end, and before another batch.
    found = read(answer(*before, broken, after))
    assert (not found.whole, [row[1] for row in found.rows]) == (True, good)
    found = read(answer(*before, broken))
    assert not found.whole
    assert [row[1] for row in found.rows] == good[: len(found.rows)]
    assert len(found.rows) >= around - 1


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_many_broken_records_are_as_bad_as_one(broken: bytes) -> None:
    data = batch([BatchRow(0, 0, None, b"first")]) + sealed(
        answer(*[broken] * MANY), base=1, flags=0, last=MANY
    )
    fetched = Fetched(0, 0, 0, (), data)
    parts = decode_fetched(fetched, PARTITION, offset=0, read_committed=True, max_bytes=1 << 20)
    part = next(parts)
    assert (part.records["value"].to_pylist(), part.next_offset) == ([b"first"], 1)
    with pytest.raises(DamagedFrameError, match=rf"orders-3 at offsets 1 to {MANY + 1} cannot"):
        next(parts)


@pytest.mark.parametrize("count", [0, 1, 3, 2**31 - 1])
def test_a_batch_that_holds_another_number_of_records_is_an_error(count: int) -> None:
    found = read(answer(record(0, 0, -1, -1, 0), record(0, 1, -1, -1, 0), count=count))
    assert not found.whole
    assert len(found.rows) <= 1


def test_a_length_that_leads_back_is_not_followed() -> None:
    begins: list[int] = []
    back_by_three = b"\x85\x80\0"
    assert not find_records(back_by_three, 0, 1000, begins)
    assert len(begins) <= 1


def test_records_of_a_batch_that_reach_into_the_next_one_are_an_error() -> None:
    second = batch([BatchRow(0, 0, None, b"second")], 2)
    first = answer(record(0, 0, -1, -1, 0), record(0, 1, -1, len(second), 0))
    found = read(first + second)
    assert (found.whole, [row[2] for row in found.rows]) == (False, [0])


def test_lengths_below_minus_one_are_null_as_for_java() -> None:
    found = read(answer(record(0, 0, -2, -(2**63), 1, 0, -7)))
    assert [row[:2] + row[-1:] for row in found.rows] == [(None, None, (("", None),))]


@pytest.mark.usefixtures("_decoded_both_ways")
@pytest.mark.parametrize(
    ("first", "delta", "expected"),
    [
        (-(2**63), -(2**63) + 5_000, 5_000),
        (2**63 - 1, 2**63 - 1, None),
        (-(2**63), -1, None),
        (5_000, -1_000, 4_000),
    ],
)
def test_the_sum_of_a_timestamp_wraps_as_for_java(
    first: int, delta: int, expected: int | None
) -> None:
    # https://github.com/apache/kafka: DefaultRecord.readFrom adds two longs.
    whole = bytearray(answer(record(delta, 0, -1, -1, 0)))
    struct.pack_into(">q", whole, 27, first)
    fetched = Fetched(0, 0, 0, (), sealed(bytes(whole), base=0, flags=0, last=1))
    (part,) = decode_fetched(fetched, PARTITION, offset=0, read_committed=True, max_bytes=1 << 20)
    (time,) = part.records["timestamp"].cast(pa.int64()).to_pylist()
    assert time == (None if expected is None else expected * 1_000)


def test_one_record_may_have_more_headers_than_the_others() -> None:
    many = tuple((f"k{number}", b"%d" % number) for number in range(MANY * 50))
    rows = [BatchRow(number, 0, None, None, many[: number % 3]) for number in range(MANY)]
    rows[7] = rows[7]._replace(headers=many)
    found = read(batch(rows))
    assert [row[-1] for row in found.rows] == [row.headers for row in rows]


def test_batches_that_are_compressed_and_not_are_read_together() -> None:
    data = b"".join(
        batch([BatchRow(0, 5, b"k%d" % at, b"v" * at, (("h", b"%d" % at),))], at, codec=codec)
        for at, codec in enumerate(CODECS * 3)
    )
    count = len(CODECS) * 3
    found = read(data)
    assert [row[:3] for row in found.rows] == [(b"k%d" % n, b"v" * n, n) for n in range(count)]
    assert [row[-1] for row in found.rows] == [(("h", b"%d" % n),) for n in range(count)]


def views(data: bytes) -> Sequence[bytes | memoryview]:
    return data, memoryview(data), memoryview(bytearray(b"x" + data + b"x"))[1:-1]


@pytest.mark.parametrize("codec", CODECS)
def test_an_answer_may_be_a_view_of_what_came(codec: str) -> None:
    rows = [BatchRow(number, 0, b"k", b"v") for number in range(3)]
    data = batch(rows, codec=codec) + batch(rows, 3)
    whole = read(data)
    for view in views(data):
        fetched = Fetched(0, 0, 0, (), view)
        parts = decode_fetched(fetched, PARTITION, offset=0, read_committed=True, max_bytes=1 << 20)
        (part,) = parts
        assert part.records["offset"].to_pylist() == [row[2] for row in whole.rows]
        assert part.records["value"].to_pylist() == [b"v"] * 6


@pytest.mark.parametrize(("max_bytes", "found"), [(1, [(3, 4), (6, 5)]), (1 << 20, [(6, 5)])])
def test_a_part_has_the_epoch_of_its_own_last_record(
    max_bytes: int, found: list[tuple[int, int]]
) -> None:
    def of_epoch(epoch: int, base: int) -> bytes:
        data = batch([BatchRow(number, 0, None, b"v") for number in range(3)], base=base)
        return data[:12] + epoch.to_bytes(4) + data[16:]  # outside of the checksum

    fetched = Fetched(6, 6, 0, [], of_epoch(4, 0) + of_epoch(5, 3))
    parts = decode_fetched(fetched, PARTITION, offset=0, read_committed=True, max_bytes=max_bytes)
    assert [(part.next_offset, part.leader_epoch) for part in parts] == found
