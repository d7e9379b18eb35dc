from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from fanout.kinesis import read_deduplication_ids
from fanout.kinesis.deduplication import MAGIC, prefixed
from fanout.kinesis.reading.decode import NO_RECORDS

if TYPE_CHECKING:
    from uuid import UUID

IDS = st.none() | st.uuids()


@given(st.lists(st.tuples(IDS, st.binary(max_size=30)), max_size=20))
def test_ids_are_taken_out_wherever_there_are_some(rows: list[tuple[UUID | None, bytes]]) -> None:
    data = [
        value if id_ is None else prefixed(pa.array([id_.bytes]), pa.array([value]))[0].as_py()
        for id_, value in rows
    ]
    records = pa.record_batch({"data": pa.array(data, pa.binary()), "n": range(len(rows))})
    found = read_deduplication_ids(records)
    assert found["data"].to_pylist() == [value for _, value in rows]
    assert found["deduplicationId"].to_pylist() == [
        None if id_ is None else id_.bytes for id_, _ in rows
    ]
    assert found["n"] == records["n"]


def test_what_only_begins_like_an_id_is_data() -> None:
    records = pa.record_batch({"data": pa.array([MAGIC, MAGIC + bytes(15)], pa.binary())})
    assert read_deduplication_ids(records)["data"] == records["data"]


def test_a_source_may_ask_for_the_columns_of_no_records() -> None:
    found = read_deduplication_ids(NO_RECORDS)
    assert found.schema.names == [*NO_RECORDS.schema.names, "deduplicationId"]
