from __future__ import annotations

import pickle  # noqa: TID251 - shows that values can be sent to a worker

import pytest

from fanout.core.events import Batch, End, Split
from fanout.core.positions import Cursor, Horizon, Range
from tests.support.scripted_source import Log, record_batch

A = Split("a")
BATCH = Batch(A, record_batch(Log(split=A), [1, 2]), Range(Horizon(), Cursor(2)), lag=0.0)


def test_a_batch_counts_its_records_and_bytes() -> None:
    assert (BATCH.num_records, BATCH.nbytes) == (2, BATCH.records.nbytes)


def test_the_repr_of_a_batch_shows_no_record_data() -> None:
    assert repr(BATCH) == f"<Batch a 2 records until={Cursor(2)}>"


def test_events_are_frozen() -> None:
    with pytest.raises(AttributeError):
        BATCH.lag = 1.0  # type: ignore[misc]  # the point
    with pytest.raises(AttributeError):
        End(A).children = (A,)  # type: ignore[misc]  # the point


def test_events_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(BATCH))  # noqa: S301 - pickled in the same line
    assert (again.split, again.range) == (BATCH.split, BATCH.range)
    assert again.records.equals(BATCH.records)
