from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fanout.core.user_decode import UserDecode
from fanout.errors import DecodeFailedError
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.columns import NO_RECORDS, PLACES
from fanout.kafka.reading.records import decode_fetched
from fanout.kafka.reading.transport import Fetched
from tests.support.kafka.record_batches import batch, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PARTITION = Partition("orders", 3)
user_decode = partial(UserDecode, given=NO_RECORDS, places=PLACES)


def records(count: int = 4, first: int = 10) -> pa.RecordBatch:
    fetched = Fetched(1000, 1000, 0, (), batch(rows(count), first))
    (part,) = decode_fetched(
        fetched, PARTITION, offset=first, read_committed=True, max_bytes=1 << 20
    )
    return part.records


def replaced(batch: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index(name), name, values)


def taken(batch: pa.RecordBatch, rows: Iterable[int]) -> pa.RecordBatch:
    return batch.take(pa.array(rows, pa.int64()))


def test_columns_may_be_added_changed_and_dropped() -> None:
    def lengths(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(["offset", "topic", "partition"]).append_column(
            "length", pc.binary_length(batch.column("value"))
        )

    decode = user_decode(lengths)
    assert decode.schema.names == ["offset", "topic", "partition", "length"]
    assert decode.no_records.num_rows == 0
    assert decode(records(), PARTITION).column("length").to_pylist() == [2] * 4


@pytest.mark.parametrize("left", [[], [0], [3], [0, 2], [0, 1, 2, 3]])
def test_rows_may_be_left_out(left: list[int]) -> None:
    decode = user_decode(lambda batch: taken(batch, [row for row in left if row < batch.num_rows]))
    offsets = decode(records(), PARTITION).column("offset").to_pylist()
    assert offsets == [10 + row for row in left]


BAD: dict[str, tuple[Callable[[pa.RecordBatch], object], str]] = {
    "no batch": (lambda batch: batch.to_pylist(), "a list"),
    "a table": (lambda batch: pa.Table.from_batches([batch]), "a Table"),
    "no offset": (lambda batch: batch.drop_columns("offset"), "column 'offset'"),
    "no topic": (lambda batch: batch.drop_columns("topic"), "column 'topic'"),
    "no partition": (lambda batch: batch.drop_columns("partition"), "column 'partition'"),
    "another type": (
        lambda batch: replaced(batch, "offset", batch.column("offset").cast("int32")),
        "column 'offset'",
    ),
    "two of a name": (
        lambda batch: batch.append_column("offset", batch.column("offset")),
        "column 'offset'",
    ),
}
BAD_ROWS: dict[str, Callable[[pa.RecordBatch], object]] = {
    "offsets moved": lambda batch: replaced(batch, "offset", pc.add(batch.column("offset"), 1)),
    "an offset is null": lambda batch: replaced(
        batch, "offset", pa.nulls(batch.num_rows, pa.int64())
    ),
    "reversed": lambda batch: taken(batch, reversed(range(batch.num_rows))),
    "a part reversed": lambda batch: taken(batch, [2, 0] if batch.num_rows else []),
    "a part twice": lambda batch: taken(batch, [1, 1] if batch.num_rows else []),
    "twice as many": lambda batch: taken(batch, [*range(batch.num_rows)] * 2),
    "another topic": lambda batch: replaced(
        batch, "topic", pa.repeat(pa.scalar("other"), batch.num_rows)
    ),
    "another topic in a part": lambda batch: replaced(
        batch, "topic", pa.repeat(pa.scalar("other"), batch.num_rows)
    )[1:],
    "another partition": lambda batch: replaced(
        batch, "partition", pa.repeat(pa.scalar(9, pa.int32()), batch.num_rows)
    ),
    "a part without offsets": lambda batch: pa.RecordBatch.from_arrays(
        [pa.nulls(min(batch.num_rows, 1), field.type) for field in batch.schema],
        schema=batch.schema,
    ),
    "other offsets in a part": lambda batch: replaced(
        batch, "offset", pc.add(batch.column("offset"), 100)
    )[1:],
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_delivered_is_refused_before_anything_is_read(name: str) -> None:
    function, text = BAD[name]
    with pytest.raises(DecodeFailedError, match=text):
        user_decode(function)


@pytest.mark.parametrize("name", BAD_ROWS)
def test_rows_that_are_not_part_of_the_batch_in_its_order_are_refused(name: str) -> None:
    decode = user_decode(BAD_ROWS[name])
    with pytest.raises(DecodeFailedError, match="orders-3 from offset 10 to 13, and changed"):
        decode(records(), PARTITION)


def test_a_schema_that_differs_from_the_first_one_is_refused() -> None:
    decode = user_decode(
        lambda batch: batch if not batch.num_rows else batch.drop_columns("headers")
    )
    with pytest.raises(DecodeFailedError, match="returned the schema"):
        decode(records(), PARTITION)


def test_what_it_raises_is_the_cause_and_is_not_quoted() -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows:
            raise ValueError(str(batch.to_pylist()))
        return batch

    with pytest.raises(DecodeFailedError) as failed:
        user_decode(fail)(records(), PARTITION)
    assert str(failed.value) == "decode failed for orders-3 from offset 10 to 13"
    assert isinstance(failed.value.__cause__, ValueError)


def test_a_function_that_cannot_take_a_batch_without_rows_is_refused_at_once() -> None:
    with pytest.raises(DecodeFailedError, match="without rows"):
        user_decode(lambda batch: batch.column("value")[0].as_py())


def test_a_function_is_given_the_columns_of_kafka() -> None:
    seen = []

    def look(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch.schema)
        return batch

    user_decode(look)
    assert seen == [NO_RECORDS.schema]
