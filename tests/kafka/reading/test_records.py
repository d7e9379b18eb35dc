from __future__ import annotations

import importlib.util
import struct
import sys
from contextlib import suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st

from fanout.errors import DamagedFrameError, MalformedEventError, SetupError
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.columns import SCHEMA
from fanout.kafka.reading.records import decode_fetched
from fanout.kafka.reading.transport import AbortedTransaction, Fetched
from tests.support.kafka.record_batches import (
    ABORT,
    CODECS,
    COMMIT,
    HEADER_SIZE,
    BatchRow,
    batch,
    compress,
    marker,
    rows,
    sealed,
)
from tests.support.memory import peak_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.kafka.reading.records import DecodedPart

pytestmark = pytest.mark.usefixtures("_decoded_both_ways")

PARTITION = Partition("orders", 3)
MANY = 300


def read(
    data: bytes,
    *,
    aborted: Sequence[AbortedTransaction] = (),
    offset: int = 0,
    stop: int | None = None,
    read_committed: bool = True,
    max_bytes: int = 1 << 20,
) -> list[DecodedPart]:
    fetched = Fetched(1000, 1000, 0, aborted, data)
    return list(
        decode_fetched(
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


@pytest.mark.fault("Records come in every codec")
@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_of_each_codec_becomes_the_columns_of_sparks_kafka_source(codec: str) -> None:
    first = BatchRow(0, 1_700_000_000_123, b"k", b"v", (("a", b"1"), ("b", None), ("a", b"2")))
    (decoded,) = read(batch([first, BatchRow(1, -1, None, None)], 7, codec=codec), offset=7)
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


@pytest.mark.fault("A batch begins before the offset that is wanted, or is cut short")
def test_a_batch_that_begins_before_the_wanted_offset_is_trimmed() -> None:
    assert offsets(batch(rows(4), 10), offset=12) == ([12, 13], 14)


def test_a_bounded_read_ends_at_its_stop() -> None:
    data = batch(rows(4), 10) + batch(rows(4), 14)
    assert offsets(data, offset=10, stop=13) == ([10, 11, 12], 13)
    assert offsets(data, offset=10, stop=14) == ([10, 11, 12, 13], 14)
    assert offsets(batch(rows(4), 10), offset=5, stop=8) == ([], 8)


@pytest.mark.fault("Compaction leaves holes, and batches without records")
def test_compacted_holes_and_empty_batches_move_the_position() -> None:
    holes = [BatchRow(2, 0, b"k", b"v"), BatchRow(5, 0, b"k", b"v")]
    assert offsets(batch(holes, 10, last=9), offset=10) == ([12, 15], 20)
    assert offsets(batch([], 10, last=9), offset=10) == ([], 20)


@pytest.mark.fault("Open, aborted and committed transactions lie in one partition")
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
    aborted = [AbortedTransaction(7, 2)]
    assert offsets(data, aborted=aborted) == ([0, 1, 4, 5, 6, 7, 9, 10], 13)
    everything = [0, 1, 2, 3, 4, 5, 6, 7, 9, 10]
    assert offsets(data, aborted=aborted, read_committed=False) == (everything, 13)


@pytest.mark.fault("A batch begins before the offset that is wanted, or is cut short")
def test_a_batch_that_is_cut_short_is_left_to_the_next_answer() -> None:
    data = batch(rows(2), 0) + batch(rows(2), 2)
    for cut in range(len(batch(rows(2))), len(data)):
        assert offsets(data[:cut]) == ([0, 1], 2)


def test_an_answer_without_one_whole_batch_is_an_error() -> None:
    data = batch(rows(2), 5)
    for cut in range(1, len(data)):
        with pytest.raises(MalformedEventError, match=r"orders-3.*no whole batch at offset 5"):
            read(data[:cut], offset=5)


@pytest.mark.fault("A batch is damaged")
def test_a_damaged_batch_is_named_by_its_offsets_after_what_came_before_it() -> None:
    data = bytearray(batch(rows(2), 0) + batch(rows(2), 2))
    data[-1] ^= 1
    fetched = Fetched(4, 4, 0, (), bytes(data))
    parts = decode_fetched(fetched, PARTITION, offset=0, read_committed=True, max_bytes=1 << 20)
    assert next(parts).next_offset == 2
    with pytest.raises(DamagedFrameError, match=r"orders-3 at offsets 2 to 3.*checksum"):
        next(parts)


def test_a_batch_in_an_old_format_is_refused() -> None:
    data = bytearray(batch(rows(2)))
    data[16] = 1
    with pytest.raises(MalformedEventError, match=r"before Kafka 0\.11"):
        read(bytes(data))


def test_one_aborted_transaction_after_another_of_the_same_producer_is_left_out_as_well() -> None:
    data = b"".join(
        batch(rows(1), at, producer=7, transactional=True) + marker(kind, at + 1, 7)
        for at, kind in ((0, ABORT), (2, COMMIT), (4, ABORT))
    )
    assert offsets(data, aborted=[AbortedTransaction(7, 4), AbortedTransaction(7, 0)]) == ([2], 6)


def test_only_transactional_batches_of_an_aborting_producer_are_left_out() -> None:
    data = batch(rows(1), 0, producer=7) + batch(rows(1), 1, producer=7, transactional=True)
    assert offsets(data, aborted=[AbortedTransaction(7, 0)]) == ([0], 2)


@pytest.mark.fault("Compaction leaves holes, and batches without records")
def test_a_control_batch_that_compaction_has_emptied_ends_nothing() -> None:
    data = (
        batch(rows(1), 0, producer=7, transactional=True)
        + batch([], 1, producer=7, transactional=True, control=True)
        + batch(rows(1), 2, producer=7, transactional=True)
    )
    assert offsets(data, aborted=[AbortedTransaction(7, 0)]) == ([], 3)


def test_a_marker_without_a_type_is_an_error() -> None:
    for key in (None, b"", b"\0\0\0"):
        data = batch([BatchRow(0, 0, key, None)], producer=7, transactional=True, control=True)
        with pytest.raises(MalformedEventError, match="control record at offset 0"):
            read(data)
        assert offsets(data, read_committed=False) == ([], 1)


@pytest.mark.fault("Open, aborted and committed transactions lie in one partition")
def test_the_marker_is_seen_where_the_transaction_lies_before_the_wanted_offset() -> None:
    data = (
        batch(rows(2), 0, producer=7, transactional=True)
        + marker(ABORT, 2, 7)
        + batch(rows(2), 3, producer=7, transactional=True)
    )
    assert offsets(data, aborted=[AbortedTransaction(7, 0)], offset=4) == ([4], 5)


def test_a_batch_of_many_records_is_whole() -> None:
    count = 2 * MANY + 1
    (decoded,) = read(batch(rows(count)))
    assert decoded.records["value"].to_pylist() == [b"v%d" % i for i in range(count)]
    assert decoded.next_offset == count
    assert offsets(batch(rows(count)), offset=MANY + 1, stop=MANY + 3) == (
        [MANY + 1, MANY + 2],
        MANY + 3,
    )


def test_timestamps_that_the_broker_set_are_those_of_the_append() -> None:
    (decoded,) = read(batch(rows(2)) + batch(rows(2), 2, log_append_time=True) + batch(rows(1), 4))
    assert decoded.records["timestampType"].to_pylist() == [0, 0, 1, 1, 0]
    first = 1_700_000_000_000_000
    times = [first, first + 1000, first + 1000, first + 1000, first]
    assert decoded.records["timestamp"].cast("int64").to_pylist() == times


@pytest.mark.fault("The broker sets the timestamps, or there are none")
@pytest.mark.parametrize("timestamp", [-1, -5, 253_402_300_800_000, 2**62])
def test_a_timestamp_that_is_none_or_has_no_date_is_null(timestamp: int) -> None:
    last = 253_402_300_799_999
    (decoded,) = read(batch([BatchRow(0, last, b"k", b"v"), BatchRow(1, timestamp, b"k", b"v")]))
    times = [datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC), None]
    assert decoded.records["timestamp"].to_pylist() == times


def test_the_parts_of_an_answer_are_bounded() -> None:
    data = b"".join(
        batch([BatchRow(0, 0, None, b"v" * 1000)], at, codec="zstd") for at in range(10)
    )
    parts = read(data, max_bytes=3000)
    assert [part.next_offset for part in parts] == [2, 4, 6, 8, 10]
    assert [part.records["offset"].to_pylist() for part in parts] == [
        [first, first + 1] for first in range(0, 10, 2)
    ]


def test_a_batch_that_is_larger_than_a_part_comes_alone_if_it_is_not_compressed() -> None:
    data = batch(rows(1)) + batch([BatchRow(0, 0, None, b"v" * 5000)], 1) + batch(rows(1), 2)
    assert [part.next_offset for part in read(data, max_bytes=3000)] == [1, 2, 3]


@pytest.mark.fault("A little batch would decompress to more than is allowed")
@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_bomb_is_refused_before_its_memory_is_taken(codec: str) -> None:
    most = 1 << 20
    data = batch([BatchRow(0, 0, None, bytes(16 << 20))], codec=codec)
    with (
        peak_memory() as peak,
        pytest.raises(DamagedFrameError, match=r"offsets 0 to 0 .* more than max_event_bytes"),
    ):
        read(data, max_bytes=most)
    assert peak.nbytes < 2 * most


@pytest.mark.fault("A little batch would decompress to more than is allowed")
def test_a_bomb_of_many_little_records_is_refused() -> None:
    data = batch([BatchRow(i, 0, None, None) for i in range(1000)], codec="gzip")
    with pytest.raises(DamagedFrameError, match="more than max_event_bytes"):
        read(data, max_bytes=64_000)
    assert read(data, max_bytes=128_000)


def test_batches_that_are_not_in_the_order_of_their_offsets_are_an_error() -> None:
    for first, second in ((2, 0), (0, 1), (0, 0)):
        with pytest.raises(MalformedEventError, match="no record batch begins"):
            read(batch(rows(2), first) + batch(rows(2), second))


def test_records_that_are_not_in_the_order_of_their_offsets_are_an_error() -> None:
    for disorder in ((0, 2, 1, 3), (0, 1, 1, 3)):
        with pytest.raises(MalformedEventError, match="not in the order of their offsets"):
            read(batch([BatchRow(offset, 0, None, None) for offset in disorder]))


@pytest.mark.parametrize("offset", [-1, 5])
def test_a_record_with_an_offset_of_another_batch_is_an_error(offset: int) -> None:
    with pytest.raises(DamagedFrameError, match="offsets of other batches"):
        read(batch([BatchRow(offset, 0, None, None)], 10, last=4), offset=10)


def test_an_unknown_codec_is_an_error() -> None:
    data = batch(rows(1))
    with pytest.raises(DamagedFrameError, match="there is no codec 5 in Kafka"):
        read(sealed(data, base=0, flags=5, last=0))


@pytest.mark.fault("Records come in every codec")
def test_a_missing_codec_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    build = SimpleNamespace(Codec=SimpleNamespace(is_available=lambda name: name != "zstd"))
    monkeypatch.setattr("fanout.kafka.reading.record_batches.pa", build)
    with pytest.raises(SetupError, match=r"zstd.*install pyarrow"):
        read(batch(rows(1), codec="zstd"))


def test_checksums_are_checked_on_machines_without_google_crc32c(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    monkeypatch.delitem(sys.modules, "google_crc32c.cext", raising=False)
    spec = importlib.util.find_spec("fanout.kafka.reading.record_batches")
    assert spec is not None
    assert spec.loader is not None
    framing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(framing)
    data = batch(rows(2))
    assert [whole.next_offset for whole in framing.read_raw_batches(data, PARTITION)] == [2]
    with pytest.raises(DamagedFrameError, match="checksum"):
        list(framing.read_raw_batches(data[:-1] + b"x", PARTITION))


@pytest.mark.parametrize(
    ("at", "field"),
    [
        (0, struct.pack(">q", -1)),
        (0, struct.pack(">q", 2**63 - 1)),
        (8, struct.pack(">i", -12)),
        (8, struct.pack(">i", 48)),
        (8, struct.pack(">i", -(2**31))),
        (16, b"\3"),
        (23, struct.pack(">i", -1)),
        (57, struct.pack(">i", -1)),
    ],
    ids=["offset", "last offset", "no length", "short", "negative", "magic", "delta", "count"],
)
def test_a_header_with_a_field_that_cannot_be_is_an_error(at: int, field: bytes) -> None:
    header = bytearray(batch([])[:HEADER_SIZE])
    header[at : at + len(field)] = field
    struct.pack_into(">I", header, 17, calc_crc32c(bytes(header[21:])) if at > 17 else 0)
    with pytest.raises(MalformedEventError, match="no record batch begins"):
        read(bytes(header) + batch(rows(2), 10))


def test_a_read_that_is_at_its_stop_delivers_nothing_and_reads_nothing_beyond() -> None:
    assert offsets(batch(rows(2)), stop=0) == ([], 0)
    bomb = batch([BatchRow(0, 0, None, bytes(10_000))], 2, codec="gzip")
    assert offsets(batch(rows(2)) + bomb, stop=2, max_bytes=5_000) == ([0, 1], 2)


def test_nothing_comes_before_an_error_in_the_first_batch_nor_before_a_large_one() -> None:
    parts = decode_fetched(
        Fetched(4, 4, 0, (), batch(rows(2))[:-1] + b"x"),
        PARTITION,
        offset=0,
        read_committed=True,
        max_bytes=1 << 20,
    )
    with pytest.raises(DamagedFrameError):
        next(parts)
    assert offsets(batch(rows(2)), max_bytes=1) == ([0, 1], 2)


def test_a_length_without_end_is_an_error() -> None:
    good = batch([BatchRow(0, 0, None, None, (("key", b""),))])
    endless = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    with pytest.raises(DamagedFrameError, match="break the format"):
        read(sealed(good[:66] + endless + good[67:], base=0, flags=0, last=0))


@pytest.mark.fault("The key of a header is no text")
@pytest.mark.parametrize("codec", CODECS)
def test_a_headers_key_that_is_no_text_has_marks_for_its_bytes(codec: str) -> None:
    headers = (("before", None), ("Gr\u00f6\u00dfe__", b"\xff"), ("", b"after"))
    records = [
        *rows(MANY),
        BatchRow(MANY, 5, b"\xfe", b"\xfd" * 200, headers),
        BatchRow(MANY + 1, 6, None, None),
    ]
    plain = bytearray(batch(records))
    begin = plain.index("Gr\u00f6\u00dfe__".encode())
    plain[begin : begin + 9] = b"Gr\xf6\xdf\x65\xc3\xb6\xc3_"
    data = plain[:HEADER_SIZE] + compress(bytes(plain[HEADER_SIZE:]), codec)
    raw = sealed(bytes(data), base=0, flags=CODECS.index(codec), last=MANY + 1)
    (decoded,) = read(raw)
    whole = decoded.records.to_pylist()
    assert [row["offset"] for row in whole] == list(range(MANY + 2))
    assert whole[-2]["headers"] == [
        {"key": "before", "value": None},
        {"key": "Gr??e\u00f6?_", "value": b"\xff"},
        {"key": "", "value": b"after"},
    ]
    assert (whole[-2]["key"], whole[-2]["value"]) == (b"\xfe", b"\xfd" * 200)


@given(st.data())
def test_damage_behind_a_key_that_is_no_text_is_an_error_or_bytes(data: st.DataObject) -> None:
    good = bytearray(
        batch([BatchRow(n, 0, b"k", None, (("key", b"v"), ("other", None))) for n in (0, 1)])
    )
    good[good.index(b"key")] = 0xFF
    for _ in range(data.draw(st.integers(0, 3))):
        good[data.draw(st.integers(HEADER_SIZE, len(good) - 1))] = data.draw(st.integers(0, 255))
    with suppress(MalformedEventError):
        read(sealed(bytes(good), base=0, flags=0, last=1))


def test_the_records_before_damage_inside_a_large_batch_are_delivered_first() -> None:
    good = batch(rows(MANY + 1))
    data = sealed(good[:-1] + b"\x02", base=0, flags=0, last=MANY)
    parts = decode_fetched(
        Fetched(0, 0, 0, (), data), PARTITION, offset=0, read_committed=True, max_bytes=1 << 20
    )
    assert next(parts).next_offset == MANY
    with pytest.raises(DamagedFrameError):
        next(parts)


@pytest.mark.fault("Open, aborted and committed transactions lie in one partition")
def test_only_the_marker_of_an_abort_ends_what_is_left_out() -> None:
    data = (
        batch(rows(1), 0, producer=7, transactional=True)
        + marker(COMMIT, 1, 7)
        + batch(rows(1), 2, producer=7, transactional=True)
    )
    assert offsets(data, aborted=[AbortedTransaction(7, 0)]) == ([], 3)
