from __future__ import annotations

import struct
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED, PartitionRecords
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from fanout.errors import MalformedEventError
from fanout.kafka.partitions import Partition
from fanout.kafka.reading import records
from fanout.kafka.reading.columns import SCHEMA
from fanout.kafka.reading.few_records import FEW, decode_few
from fanout.kafka.reading.record_batches import RECORDS_AT, RawBatch
from fanout.kafka.reading.records import decode_fetched
from fanout.kafka.reading.transport import AbortedTransaction, Fetched
from tests.support.damage import damaged
from tests.support.kafka.record_batches import (
    ABORT,
    CODECS,
    COMMIT,
    HEADER_SIZE,
    BatchRow,
    batch,
    marker,
    sealed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.kafka.reading.records import DecodedPart

pytestmark = pytest.mark.usefixtures("_decoded_both_ways")

PARTITION = Partition("orders", 3)
MAX_BYTES = 1 << 20

nullable_bytes = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=3), nullable_bytes), max_size=3).map(tuple)
times = st.integers(0, 253_402_300_799_999) | st.integers(1_700_000_000_000, 1_700_000_100_000)


class Log(NamedTuple):
    """The end of a partition.

    Args:
        sent: Its batches.
        plain: The same, not compressed.
        aborted: The aborted transactions.
        ends: The offset after each batch.
    """

    sent: list[bytes]
    plain: list[bytes]
    aborted: list[AbortedTransaction]
    ends: list[int]


@st.composite
def rows(draw: st.DrawFn) -> list[BatchRow]:
    """Make records with holes between their offsets, as compaction leaves them."""
    offsets = sorted(draw(st.sets(st.integers(0, 12), max_size=6)))
    bare = draw(st.booleans())
    return [
        BatchRow(
            offset,
            draw(times),
            draw(nullable_bytes),
            draw(nullable_bytes),
            () if bare else draw(headers),
        )
        for offset in offsets
    ]


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Make a log of a few batches."""
    ends: list[int] = []
    sent: list[bytes] = []
    plain: list[bytes] = []
    aborted: list[AbortedTransaction] = []
    at = 0
    aborting: set[int] = set()
    for _ in range(draw(st.integers(1, 6))):
        at += draw(st.integers(0, 3))
        producer = draw(st.sampled_from([-1, 7, 8]))
        if producer > 0 and draw(st.integers(0, 2)) == 0:
            kind = ABORT if producer in aborting else COMMIT
            aborting.discard(producer)
            sent.append(marker(kind, at, producer))
            plain.append(sent[-1])
            at += 1
            ends.append(at)
            continue
        transactional = producer > 0 and draw(st.booleans())
        if transactional and producer not in aborting and draw(st.booleans()):
            aborted.append(AbortedTransaction(producer, at))
            aborting.add(producer)
        records = draw(rows())
        last = (records[-1].offset if records else 0) + draw(st.integers(0, 3))
        broker_time = draw(st.booleans())
        whole, compressed = (
            batch(
                records,
                at,
                codec=codec,
                producer=producer,
                transactional=transactional,
                log_append_time=broker_time,
                last=last,
            )
            for codec in ("none", draw(st.sampled_from(CODECS)))
        )
        plain.append(whole)
        sent.append(compressed)
        at += last + 1
        ends.append(at)
    return Log(sent, plain, draw(st.permutations(aborted)), ends)


def read(
    data: bytes,
    aborted: Sequence[AbortedTransaction] = (),
    *,
    offset: int = 0,
    stop: int | None = None,
    read_committed: bool = True,
    max_bytes: int = MAX_BYTES,
) -> list[DecodedPart]:
    parts = list(
        decode_fetched(
            Fetched(0, 0, 0, aborted, data),
            PARTITION,
            offset=offset,
            stop=stop,
            read_committed=read_committed,
            max_bytes=max_bytes,
        )
    )
    for part, first in zip(parts, [offset, *(part.next_offset for part in parts)], strict=False):
        offsets = part.records["offset"].to_pylist()
        assert part.records.schema == SCHEMA
        assert part.nbytes == part.records.nbytes
        part.records.validate(full=True)
        assert offsets == sorted(set(offsets))
        assert all(first <= each < part.next_offset for each in offsets)
    return parts


def read_with_aiokafka(
    data: bytes, aborted: Sequence[AbortedTransaction], *, offset: int, read_committed: bool
) -> tuple[list[dict[str, Any]], int]:
    records = PartitionRecords(
        TopicPartition(PARTITION.topic, PARTITION.number),
        MemoryRecords(data),
        [(each.producer_id, each.first_offset) for each in aborted],
        offset,
        None,
        None,
        check_crcs=True,
        isolation_level=READ_COMMITTED if read_committed else READ_UNCOMMITTED,
    )
    rows = [
        {
            "key": record.key,
            "value": record.value,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp * 1000,
            "timestampType": record.timestamp_type,
            "headers": [{"key": key, "value": value} for key, value in record.headers],
        }
        for record in records
    ]
    return rows, records.next_fetch_offset


def as_rows(parts: Sequence[DecodedPart]) -> list[dict[str, Any]]:
    found = []
    for part in parts:
        plain = part.records.set_column(
            SCHEMA.get_field_index("timestamp"),
            "timestamp",
            part.records["timestamp"].cast("int64"),
        )
        found += plain.to_pylist()
    return found


@pytest.mark.long
@given(
    log=logs(),
    wanted=st.integers(0, 80),
    length=st.none() | st.integers(0, 80),
    read_committed=st.booleans(),
    max_bytes=st.integers(2_000, 10_000),
)
def test_what_is_read_is_what_aiokafka_reads(
    log: Log,
    wanted: int,
    length: int | None,
    read_committed: bool,  # noqa: FBT001 - hypothesis passes it by its name
    max_bytes: int,
) -> None:
    end = log.ends[-1]
    offset = min(wanted, end - 1)
    # A broker begins with the batch that holds the offset.
    first = bisect_right(log.ends, offset)
    expected, next_offset = read_with_aiokafka(
        b"".join(log.plain[first:]), log.aborted, offset=offset, read_committed=read_committed
    )
    if length is not None:
        stop = offset + length
        expected = [row for row in expected if row["offset"] < stop]
        next_offset = min(stop, end)
    parts = read(
        b"".join(log.sent[first:]),
        log.aborted,
        offset=offset,
        stop=None if length is None else stop,
        read_committed=read_committed,
        max_bytes=max_bytes,
    )
    assert (as_rows(parts), parts[-1].next_offset) == (expected, next_offset)


@pytest.mark.fault("A batch is damaged")
@pytest.mark.long
@given(data=damaged(logs().map(lambda log: b"".join(log.sent))), offset=st.integers(0, 20))
def test_damaged_bytes_are_records_or_a_typed_error(data: bytes, offset: int) -> None:
    with suppress(MalformedEventError):
        read(data, [AbortedTransaction(7, 0)], offset=offset)


@pytest.mark.long
@given(log=logs(), data=st.data())
def test_recombined_batches_are_records_or_a_typed_error(log: Log, data: st.DataObject) -> None:
    batches = data.draw(st.lists(st.sampled_from([*log.sent, *log.plain]), max_size=8))
    with suppress(MalformedEventError):
        read(b"".join(batches), log.aborted)


@given(data=st.binary(max_size=300))
def test_any_bytes_are_records_or_a_typed_error(data: bytes) -> None:
    with suppress(MalformedEventError):
        read(data)


@pytest.mark.long
@given(
    log=logs(),
    body=damaged(logs().map(lambda log: log.plain[0][HEADER_SIZE:])) | st.binary(max_size=200),
    flags=st.integers(0, 63),
    count=st.integers(-1, 8) | st.just(2**31 - 1),
    last=st.integers(0, 20),
)
def test_a_batch_of_any_body_under_a_right_checksum_is_records_or_a_typed_error(
    log: Log, body: bytes, flags: int, count: int, last: int
) -> None:
    header = bytearray(log.plain[0][:HEADER_SIZE])
    struct.pack_into(">i", header, HEADER_SIZE - 4, count)
    with suppress(MalformedEventError):
        read(sealed(bytes(header) + body, base=0, flags=flags, last=last), log.aborted)


def _all_of(data: bytes, offset: int, stop: int | None) -> list[Any]:
    """Return the parts of an answer, and the error that ends it."""
    found: list[Any] = []
    try:
        for part in decode_fetched(
            Fetched(0, 0, 0, (), data),
            PARTITION,
            offset=offset,
            stop=stop,
            read_committed=False,
            max_bytes=MAX_BYTES,
        ):
            part.records.validate(full=True)
            found.append((part.records.to_pydict(), part.next_offset, part.leader_epoch))
    except MalformedEventError as error:
        found.append((type(error), str(error)))
    return found


@given(
    log=logs(),
    wrong=st.lists(st.tuples(st.integers(0, 999), st.sampled_from([0, 1, 2, 3, 127, 128, 255]))),
    times=st.none() | st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 2),
    offset=st.integers(0, 20),
    length=st.none() | st.integers(0, 20),
)
def test_few_records_are_decoded_as_many_are(
    log: Log,
    wrong: list[tuple[int, int]],
    times: tuple[int, int] | None,
    offset: int,
    length: int | None,
) -> None:
    sent = []
    for number, plain in enumerate(log.plain):
        whole = bytearray(plain)
        for place, byte in wrong[number::2]:
            if HEADER_SIZE + place < len(whole):
                whole[HEADER_SIZE + place] = byte
        if times is not None:
            struct.pack_into(">qq", whole, 27, *times)
        (base,), (flags, last) = (
            struct.unpack_from(form, whole, at) for form, at in ((">q", 0), (">hi", 21))
        )
        sent.append(sealed(bytes(whole), base=base, flags=flags, last=last))
    stop = None if length is None else offset + length
    found = []
    for few in (0, FEW):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(records, "FEW", few)
            found.append(_all_of(b"".join(sent), offset, stop))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("record", "is_good"),
    [
        (b"\x0c\0\0\0\1\1\0", True),
        (b"\x0e\0\0\0\1\1\0\0", False),  # a byte behind its last field
        (b"\x0c\0\0\0\1\1\1", False),  # -1 headers
        (b"\x0c\0\0\2\1\1\0", False),  # the offset of another batch
        (b"\x0c\0\0\1\1\1\0", False),
        (b"\x0a\0\0\0\1\1\0", False),
    ],
)
def test_a_record_that_is_not_as_it_should_be_is_left_to_columns(
    record: bytes, *, is_good: bool
) -> None:
    data = bytes(RECORDS_AT) + record
    batch = RawBatch(5, 6, 0, 0, 0, -1, 1, 0, -1, data)
    found = decode_few([(batch, data)], PARTITION, 0)
    assert (found is not None and found[0]["offset"].to_pylist() == [5]) == is_good
