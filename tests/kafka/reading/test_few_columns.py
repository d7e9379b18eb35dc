from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.kafka.partitions import Partition
from fanout.kafka.reading import few_records
from fanout.kafka.reading.columns import LATEST, SCHEMA, TIMESTAMP
from fanout.kafka.reading.few_columns import MOST, few_columns
from fanout.kafka.reading.few_records import FEW
from fanout.kafka.reading.records import decode_fetched
from fanout.kafka.reading.transport import Fetched
from tests.support.kafka.record_batches import CODECS, COMMIT, BatchRow, batch, marker

if TYPE_CHECKING:
    from collections.abc import Sequence

bytes_or_null = st.none() | st.binary(max_size=20)
times = st.none() | st.integers(0, LATEST * 1000)
rows = st.lists(
    st.tuples(bytes_or_null, bytes_or_null, st.integers(0, 2**63 - 1), times, st.integers(0, 1)),
    min_size=1,
    max_size=MOST,
)


def by_arrays(partition: Partition, columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    keys, values, offsets, timestamps, types = columns
    count = len(keys)
    arrays = [
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array([partition.topic] * count, pa.string()),
        pa.array([partition.number] * count, pa.int32()),
        pa.array(offsets, pa.int64()),
        pa.array(timestamps, TIMESTAMP),
        pa.array(types, pa.int32()),
        pa.array([[]] * count, SCHEMA.field("headers").type),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def sent(records: pa.RecordBatch) -> pa.RecordBatch:
    """Send records to another process, as Arrow does."""
    return pa.ipc.read_record_batch(records.serialize(), SCHEMA)


@given(rows, st.text("abc_.-", min_size=1, max_size=249), st.integers(0, 2**31 - 1))
def test_columns_are_those_of_arrows_own_arrays(
    rows: list[tuple[Any, ...]], topic: str, number: int
) -> None:
    partition, columns = Partition(topic, number), list(zip(*rows, strict=True))
    records, nbytes = few_columns(
        partition, *columns[:3], timestamps=columns[3], timestamp_types=columns[4]
    )
    records.validate(full=True)
    expected = by_arrays(partition, columns)
    assert records.schema.equals(SCHEMA, check_metadata=True)
    assert records.equals(expected)
    assert nbytes == records.nbytes == expected.nbytes
    assert [one.null_count for one in records] == [one.null_count for one in expected]


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 63, MOST])
def test_columns_of_a_message_are_used_as_any_others(count: int) -> None:
    keys = [None if row % 3 == 1 else b"k%d" % row for row in range(count)]
    values, offsets = [b"v" * row for row in range(count)], list(range(count))
    sevens, zeros = [7] * count, [0] * count
    records, _ = few_columns(
        Partition("t", 1), keys, values, offsets, timestamps=sevens, timestamp_types=zeros
    )
    expected = by_arrays(Partition("t", 1), [keys, values, offsets, sevens, zeros])
    assert sent(records).equals(expected)
    assert sent(records.slice(count // 2)).equals(expected.slice(count // 2))
    joined = pa.Table.from_batches([records, expected]).combine_chunks()
    assert joined.equals(pa.Table.from_batches([expected, expected]))
    assert records.take(pa.array([count - 1])).equals(expected.slice(count - 1))


def answer(
    count: int, *, codec: str = "none", key: bytes | None = b"k", headers: bool = False
) -> bytes:
    named = (("h", b"1"), ("h", None)) if headers else ()
    return batch(
        [BatchRow(n, 1_700_000_000_000 + n, key, b"v%d" % n, named) for n in range(count)],
        codec=codec,
        producer=7,
        transactional=True,
    ) + marker(COMMIT, count, 7)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("how", [{}, {"key": None}, {"headers": True}], ids=str)
@pytest.mark.parametrize("count", [1, 2, FEW - 1, FEW, FEW + 1])
def test_few_records_are_read_one_after_the_other_and_more_at_once(
    count: int, how: dict[str, Any], codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded_few: list[int] = []

    def noted(partition: Partition, keys: Sequence[Any], *rest: Any, **others: Any) -> Any:
        decoded_few.append(len(keys))
        return few_columns(partition, keys, *rest, **others)

    monkeypatch.setattr(few_records, "few_columns", noted)
    data = answer(count, codec=codec, **how)
    (part,) = decode_fetched(
        Fetched(1000, 1000, 0, (), data),
        Partition("t", 0),
        offset=0,
        read_committed=True,
        max_bytes=1 << 20,
    )
    assert decoded_few == ([count] if count <= FEW else [])
    assert part.next_offset == count + 1
    assert part.nbytes == part.records.nbytes
    part.records.validate(full=True)
    assert part.records["offset"].to_pylist() == list(range(count))
    assert set(part.records["key"].to_pylist()) == {how.get("key", b"k")}
    assert part.records["value"].to_pylist() == [b"v%d" % n for n in range(count)]
    headers = [("h", b"1"), ("h", None)] if "headers" in how else []
    named = [{"key": name, "value": value} for name, value in headers]
    assert part.records["headers"].to_pylist() == [named] * count


def test_records_that_are_all_before_the_wanted_offset_leave_none() -> None:
    # A batch may be compacted: its last record is gone, and its offset is the one that is wanted.
    data = batch([BatchRow(0, 5, b"k", b"v")], last=3)
    (part,) = decode_fetched(
        Fetched(9, 9, 0, (), data), Partition("t", 0), offset=2, read_committed=True, max_bytes=99
    )
    assert (part.records.num_rows, part.nbytes, part.next_offset) == (0, 0, 4)
    assert part.records.schema == SCHEMA
