from __future__ import annotations

import math
from collections import deque
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import pytest

from fanout.errors import UnwritableRecordError
from fanout.kafka.partitions import Partition
from fanout.kafka.writing.encoding import encode_record_batch, record_sizes
from fanout.kafka.writing.produce_requests import (
    PartitionQueue,
    ProduceBatch,
    RetainedBytes,
    WriteBuffers,
)
from fanout.kafka.writing.producer_id import NO_PRODUCER_ID
from fanout.kafka.writing.row_batches import column_of, cut_together, prepare_rows
from tests.support.kafka.writing import records

RECORD = 39
"""About what a record takes whose value has three bytes."""


def batch(*values: int, attempts: int = 0) -> ProduceBatch:
    rows = prepare_rows(records("t", [b"%d" % value for value in values]), datetime.now(UTC))
    nbytes = int(record_sizes(rows).sum())
    assert nbytes == RECORD * len(values)
    return ProduceBatch(rows, nbytes, deadline=float(values[0]), attempts=attempts)


def queue(*batches: ProduceBatch, max_bytes: float = math.inf) -> PartitionQueue:
    return PartitionQueue(Partition("t", 0), deque(batches), max_bytes=max_bytes)


def shape(given: PartitionQueue, batch_size: int) -> list[list[int]]:
    """Shape the first batch, and return what is in each."""
    given.shape_first(batch_size)
    for each in given.batches:
        assert each.nbytes == RECORD * len(each.rows)
    return [[int(value) for value in each.rows["value"].to_pylist()] for each in given.batches]


@pytest.mark.parametrize(
    ("records", "together"),
    [
        (0, [[101], [102, 103], [104], [105]]),
        (2, [[101], [102, 103], [104], [105]]),
        (3, [[101, 102, 103], [104], [105]]),
        (4, [[101, 102, 103, 104], [105]]),
        (9, [[101, 102, 103, 104, 105]]),
    ],
)
@pytest.mark.parametrize("limit", ["batch_size", "max_bytes"])
def test_those_behind_the_first_go_with_it_as_far_as_they_fit(
    records: int, together: list[list[int]], limit: str
) -> None:
    sizes = {"batch_size": 1 << 20, "max_bytes": 1 << 20} | {limit: records * RECORD}
    given = queue(batch(101), batch(102, 103), batch(104), batch(105), max_bytes=sizes["max_bytes"])
    assert shape(given, sizes["batch_size"]) == together
    assert given.batches[0].deadline == 101.0


def test_what_was_sent_stays_as_it_is() -> None:
    assert shape(queue(batch(101, attempts=1), batch(102)), 1 << 20) == [[101], [102]]


def test_what_the_topic_does_not_take_is_cut_although_it_was_sent() -> None:
    given = queue(batch(101, 102, 103, attempts=1), batch(104), max_bytes=2 * RECORD)
    assert shape(given, 1 << 20) == [[101, 102], [103], [104]]
    assert [each.attempts for each in given.batches] == [0, 0, 0]


@pytest.mark.parametrize(
    ("behind", "batch_size", "max_bytes", "is_encoded"),
    [
        ([2], 3, math.inf, True),  # as full as a batch is
        ([2, 2], 3, math.inf, True),
        ([2], 4, math.inf, False),  # it goes with the next one
        ([2, 1], 3, math.inf, False),
        ([2], 3, 1, False),  # it is cut
        ([2], 4, 3, True),
        ([], 3, math.inf, False),
    ],
)
@pytest.mark.parametrize("is_sent", [True, False], ids=["sent", "in a thread"])
def test_a_batch_is_encoded_ahead_if_it_stays_as_it_is(
    behind: list[int], batch_size: int, max_bytes: float, *, is_encoded: bool, is_sent: bool
) -> None:
    calls: list[int] = []
    given = queue(batch(101), *(batch(*range(102, 102 + n)) for n in behind))
    given.max_bytes = max_bytes * RECORD
    for number, each in enumerate(given.batches):
        each.records = partial(_noted, calls, number)
    if is_sent:
        first = given.batches[0]
        first.data = encode_record_batch(first.rows, "none", NO_PRODUCER_ID, -1)
    given.encode_second(batch_size * RECORD)
    assert calls == ([1] if is_encoded and is_sent else [])


def _noted(calls: list[int], number: int) -> pa.Buffer:
    calls.append(number)
    return pa.py_buffer(b"")


def test_the_buffers_of_a_write_are_let_go_with_its_last_slice() -> None:
    total = RetainedBytes()
    of_one = WriteBuffers(total, size=1000, encoded=3 * RECORD, slices=2)
    of_other = WriteBuffers(total, size=600, encoded=2 * RECORD, slices=1)
    given = queue(batch(101, 102), batch(103), batch(104), max_bytes=RECORD)
    for each, buffers in zip(given.batches, (of_one, of_one, of_other), strict=True):
        each.buffers = buffers
    assert shape(given, 1 << 20) == [[101], [102], [103], [104]]
    assert (of_one.slices, total.nbytes) == (3, 0), "what is cut has the same buffers"
    given.batches.popleft().release()
    assert (of_one.slices, of_one.retained, total.nbytes) == (2, 333, 333)
    given.batches[0].copy_rows()
    assert (of_one.slices, total.nbytes) == (1, 666)
    assert given.batches[0].rows["value"].to_pylist() == [b"102"]
    given.max_bytes = math.inf
    assert shape(given, 1 << 20) == [[102, 103, 104]]
    assert (of_one.slices, of_other.slices, total.nbytes) == (0, 0, 0), "what is joined is copied"


def test_what_is_copied_keeps_no_memory_of_what_was_encoded_with_it() -> None:
    rows = batch(101, 102).rows
    (one, nbytes, encode), (other, _, after) = cut_together(rows, RECORD)
    data = encode_record_batch(one, "none", NO_PRODUCER_ID, -1, encode)
    sent = ProduceBatch(one, nbytes, 1.0, data, buffers=WriteBuffers(RetainedBytes(), 1, 1))
    waiting = ProduceBatch(other, nbytes, 1.0, buffers=sent.buffers, records=after)
    sent.copy_rows()
    waiting.copy_rows()
    assert waiting.records is None
    assert sent.data is not None
    assert sent.data[1].address != data[1].address
    assert b"".join(sent.data) == b"".join(data)


@pytest.mark.parametrize("names", ["key val", "name value", "key value more", "key"])
def test_headers_of_other_names_are_an_error(names: str) -> None:
    kind = pa.list_(pa.struct([(name, pa.string()) for name in names.split()]))
    headers = pa.array([[dict.fromkeys(names.split(), "a")]], kind)
    records = pa.RecordBatch.from_arrays([headers], names=["headers"])
    with pytest.raises(UnwritableRecordError, match=r"^the column .headers. has the type list<"):
        column_of(records, "headers")
