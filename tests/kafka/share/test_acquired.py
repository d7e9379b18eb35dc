from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fanout.core.lending.acquired import AcquiredRecords
from fanout.kafka.partitions import Partition
from fanout.kafka.share.poll_columns import NO_RECORDS, PolledRecords

if TYPE_CHECKING:
    from fanout.kafka.share.offset_ranges import OffsetRange

# Topic, partition and offset of each record: with a gap, and consecutive offsets of two topics.
WHERE = [("a", 0, 4), ("a", 0, 5), ("a", 0, 7), ("a", 1, 8), ("b", 1, 9), ("b", 1, 10)]
A0, A1, B1 = Partition("a", 0), Partition("a", 1), Partition("b", 1)


def acquired_records() -> AcquiredRecords[OffsetRange]:
    topics = ("a", "b")
    places = [(topics.index(topic) << 32) + number for topic, number, _ in WHERE]
    polled = PolledRecords(
        NO_RECORDS,
        topics,
        np.array(places, np.int64),
        np.array([offset for *_, offset in WHERE], np.int64),
        np.ones(len(WHERE), np.int32),
        np.empty(0, np.int64),
        0.0,
    )
    return AcquiredRecords(polled, 1.0, None)


def rows(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, np.int64)


def test_pieces_end_where_an_offset_a_partition_or_a_topic_does() -> None:
    acquired = acquired_records()
    assert acquired.pieces(acquired.all_rows) == [
        (A0, 4, 6),
        (A0, 7, 8),
        (A1, 8, 9),
        (B1, 9, 11),
    ]
    assert acquired.pieces(rows(1, 3, 4)) == [(A0, 5, 6), (A1, 8, 9), (B1, 9, 10)]
    assert acquired.pieces(rows()) == []


def test_the_rows_of_a_piece_are_those_of_its_partition() -> None:
    acquired = acquired_records()
    assert acquired.rows_of((B1, 0, 10)).tolist() == [4]
    partitions = [(partition, of_it.tolist()) for partition, of_it in acquired.groups(rows(0, 4))]
    assert partitions == [(A0, [0]), (B1, [4])]


def test_numbers_are_those_of_the_rows_that_are_delivered() -> None:
    acquired = acquired_records()
    assert acquired.undelivered.tolist() == [0, 1, 2, 3, 4, 5]
    acquired.mark_delivered(rows(0, 2, 3, 5), 100)
    assert acquired.undelivered.tolist() == [1, 4]
    assert acquired.delivered_between(0, 102).tolist() == [0, 2]
    assert acquired.delivered_between(102, 1000).tolist() == [3, 5]
    assert acquired.delivered_between(0, 99).tolist() == []
    assert acquired.delivered_as([99, 100, 101, 104, 105]).tolist() == [0, 5]


def test_a_row_is_answered_for_once_and_may_have_expired() -> None:
    acquired = acquired_records()
    acquired.mark_delivered(acquired.all_rows, 0)
    acquired.mark_expired(rows(0, 1))
    acquired.mark_done(rows(1, 2))
    acquired.mark_done(rows(2, 3))
    assert (acquired.pending, acquired.pending_rows.tolist()) == (2, [4, 5])
    assert acquired.expired(1).tolist() == [0]
    assert acquired.delivered_as([2, 3, 5]).tolist() == [4]
    assert acquired.delivered_as([2, 3, 5], expired=True).tolist() == [1]
    assert acquired.take_expired(acquired.expired(6)) == [(A0, 4, 6)]
    assert acquired.expired(6).tolist() == []
