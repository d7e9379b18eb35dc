from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fanout.errors import DamagedFrameError, MalformedEventError
from fanout.kafka.columns import SCHEMA
from fanout.kafka.partitions import Partition
from fanout.kafka.records import decode
from fanout.kafka.transport import Aborted, Fetched
from tests.kafka.batches import ABORT, CODECS, COMMIT, Row, batch, marker, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.kafka.records import Decoded

PARTITION = Partition("orders", 3)


def read(
    data: bytes,
    *,
    aborted: Sequence[Aborted] = (),
    offset: int = 0,
    stop: int | None = None,
    read_committed: bool = True,
    max_bytes: int = 1 << 20,
) -> list[Decoded]:
    fetched = Fetched(1000, 1000, 0, aborted, data)
    return list(
        decode(
            fetched,
            PARTITION,
            offset=offset,
            stop=stop,
            read_committed=read_committed,
            max_bytes=max_bytes,
        )
    )


def offsets(data: bytes, **how: Any) -> tuple[list[int], int]:
    """Return the offsets that are delivered, and the next one."""
    (decoded,) = read(data, **how)
    return decoded.records["offset"].to_pylist(), decoded.next_offset


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_of_each_codec_becomes_the_columns_of_sparks_kafka_source(codec: str) -> None:
    first = Row(0, 1_700_000_000_123, b"k", b"v", (("a", b"1"), ("b", None), ("a", b"2")))
    (decoded,) = read(batch([first, Row(1, -1, None, None)], 7, codec=codec), offset=7)
    assert decoded.records.schema == SCHEMA
    assert decoded.next_offset == 9
    records = decoded.records.to_pydict()
    records["timestamp"] = decoded.records["timestamp"].cast("int64").to_pylist()
    assert records == {
        "key": [b"k", None],
        "value": [b"v", None],
        "topic": ["orders"] * 2,
        "partition": [3, 3],
        "offset": [7, 8],
        "timestamp": [1_700_000_000_123_000, None],
        "timestampType": [0, 0],
        "headers": [
            [
                {"key": "a", "value": b"1"},
                {"key": "b", "value": None},
                {"key": "a", "value": b"2"},
            ],
            [],
        ],
    }


def test_an_empty_answer_moves_nothing() -> None:
    assert offsets(b"", offset=5) == ([], 5)


def test_a_batch_that_begins_before_the_wanted_offset_is_trimmed() -> None:
    assert offsets(batch(rows(4), 10), offset=12) == ([12, 13], 14)


def test_a_bounded_read_ends_at_its_stop() -> None:
    data = batch(rows(4), 10) + batch(rows(4), 14)
    assert offsets(data, offset=10, stop=13) == ([10, 11, 12], 13)
    assert offsets(data, offset=10, stop=14) == ([10, 11, 12, 13], 14)
    assert offsets(batch(rows(4), 10), offset=5, stop=8) == ([], 8)


def test_compacted_holes_and_empty_batches_move_the_position() -> None:
    holes = [Row(2, 0, b"k", b"v"), Row(5, 0, b"k", b"v")]
    assert offsets(batch(holes, 10, last=9), offset=10) == ([12, 15], 20)
    assert offsets(batch([], 10, last=9), offset=10) == ([], 20)


def test_an_aborted_transaction_is_left_out_up_to_its_marker_and_not_beyond() -> None:
    data = (
        batch(rows(2), 0, producer=7, transactional=True)
        + batch(rows(2), 2, producer=7, transactional=True)
        + batch(rows(2), 4, producer=8, transactional=True)
        + batch(rows(2), 6)
        + marker(ABORT, 8, 7)
        + batch(rows(2), 9, producer=7, transactional=True)
        + marker(COMMIT, 11, 7)
        + marker(COMMIT, 12, 8)
    )
    aborted = [Aborted(7, 2)]
    assert offsets(data, aborted=aborted) == ([0, 1, 4, 5, 6, 7, 9, 10], 13)
    everything = [0, 1, 2, 3, 4, 5, 6, 7, 9, 10]
    assert offsets(data, aborted=aborted, read_committed=False) == (everything, 13)


def test_a_batch_that_is_cut_short_is_left_to_the_next_answer() -> None:
    data = batch(rows(2), 0) + batch(rows(2), 2)
    for cut in range(len(batch(rows(2))), len(data)):
        assert offsets(data[:cut]) == ([0, 1], 2)


def test_an_answer_without_one_whole_batch_is_an_error() -> None:
    data = batch(rows(2), 5)
    for cut in range(1, len(data)):
        with pytest.raises(MalformedEventError, match=r"orders-3.*no whole batch at offset 5"):
            read(data[:cut], offset=5)


def test_a_damaged_batch_is_named_by_its_offsets_after_what_came_before_it() -> None:
    data = bytearray(batch(rows(2), 0) + batch(rows(2), 2))
    data[-1] ^= 1
    fetched = Fetched(4, 4, 0, (), bytes(data))
    parts = decode(fetched, PARTITION, offset=0, read_committed=True, max_bytes=1 << 20)
    assert next(parts).next_offset == 2
    with pytest.raises(DamagedFrameError, match=r"orders-3 at offsets 2 to 3.*checksum"):
        next(parts)


def test_a_batch_in_an_old_format_is_refused() -> None:
    data = bytearray(batch(rows(2)))
    data[16] = 1
    with pytest.raises(MalformedEventError, match=r"before Kafka 0\.11"):
        read(bytes(data))
