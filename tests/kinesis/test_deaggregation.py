from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from botocore.exceptions import ClientError

from fanout.core.checkpoint import Checkpoint
from fanout.core.events import Batch, Split
from fanout.core.positions import Cursor, Horizon, Range, reaches
from fanout.errors import MalformedEventError, SplitFailedError
from fanout.kinesis import KinesisSource
from fanout.kinesis.aws.api import HashRange
from fanout.kinesis.reading.deaggregation import MAGIC, Deaggregator
from fanout.kinesis.reading.decode import FEW_ROWS, SCHEMA
from fanout.kinesis.shards import ShardCatalog
from fanout.kinesis.writing.kpl_format import encode_aggregate, seal_aggregate
from tests.support.kinesis.reading import FIRST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from fanout.core.source import Connection
    from tests.support.kinesis.reading import Stream

PAIRS = [("a", b"1"), ("b", b""), ("a", b"\x00\xff")]
# One key, and a sub-record that points to the second one.
BROKEN = seal_aggregate(b"\x0a\x01k\x1a\x0a\x08\x01\x1a\x06canary")
CHILD = Split("shardId-000000000002", (FIRST,))
RANGE = HashRange(100, 200)


def batch(*data: bytes) -> pa.RecordBatch:
    count = len(data)
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    arrivals = [noon + timedelta(seconds=second) for second in range(count)]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([f"parent-{row}" for row in range(count)], pa.string()),
            pa.array(data, pa.binary()),
            pa.repeat("orders", count),
            pa.repeat(FIRST, count),
            pa.array([str(row + 11) for row in range(count)], pa.string()),
            pa.array(arrivals, SCHEMA.field("approximateArrivalTimestamp").type),
            pa.repeat(0, count),
        ],
        schema=SCHEMA,
    )


def columns(records: pa.RecordBatch, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(records.column(name).to_pylist() for name in names), strict=True))


def disaggregate(records: pa.RecordBatch) -> pa.RecordBatch:
    return Deaggregator().deaggregate(records, Split(FIRST)).after(0)


def test_a_batch_without_aggregates_stays_as_it_is() -> None:
    records = batch(b"1", b"", b"x" + MAGIC)
    parts = Deaggregator().deaggregate(records, Split(FIRST))
    assert parts.records is records
    assert parts.belongs is None
    assert disaggregate(batch()).num_rows == 0


@pytest.mark.parametrize("before", [FEW_ROWS - 1, FEW_ROWS])
def test_an_aggregate_is_found_in_few_rows_and_in_many(before: int) -> None:
    records = disaggregate(batch(*[b""] * before, encode_aggregate(PAIRS)))
    assert records.num_rows == before + len(PAIRS)


def test_sub_records_take_the_place_of_their_parent() -> None:
    records = disaggregate(batch(b"before", encode_aggregate(PAIRS), b"after", MAGIC))
    records.validate(full=True)
    assert records.schema == SCHEMA
    assert columns(records, "sequenceNumber", "subSequenceNumber", "partitionKey", "data") == [
        ("11", 0, "parent-0", b"before"),
        ("12", 0, "a", b"1"),
        ("12", 1, "b", b""),
        ("12", 2, "a", b"\x00\xff"),
        ("13", 0, "parent-2", b"after"),
        ("14", 0, "parent-3", MAGIC),
    ]


def test_sub_records_have_everything_else_from_their_parent() -> None:
    before = batch(b"before", encode_aggregate(PAIRS))
    names = ("stream", "shardId", "approximateArrivalTimestamp")
    first, parent = columns(before, *names)
    assert columns(disaggregate(before), *names) == [first, parent, parent, parent]


def test_an_aggregate_of_nothing_is_nothing() -> None:
    assert disaggregate(batch(b"1", seal_aggregate(b"\x0a\x01k"), b"2")).column(
        "data"
    ).to_pylist() == [
        b"1",
        b"2",
    ]


def test_a_malformed_aggregate_is_named_and_not_quoted() -> None:
    with pytest.raises(MalformedEventError) as caught:
        disaggregate(batch(b"1", BROKEN))
    assert f"the aggregated record 12 of {FIRST} has a sub-record that points" in str(caught.value)
    assert "canary" not in repr(caught.value) + repr(caught.value.__cause__)


def child_of(hash_range: HashRange | None = RANGE, *, on_bad: Any = "fail") -> Deaggregator:
    made = Deaggregator(on_bad)
    if hash_range is not None:
        made.set_hash_range(CHILD.id, hash_range)
    return made


def kept(records: pa.RecordBatch, deaggregator: Deaggregator, split: Split = CHILD) -> list[bytes]:
    taken: list[bytes] = deaggregator.deaggregate(records, split).after(0)["data"].to_pylist()
    return taken


def kpl(data: bytes, key: str = "a") -> pa.RecordBatch:
    """A record as the library puts an aggregate, between two plain ones."""
    records = batch(b"before", data, b"after")
    keys = pa.array(["a", key, "a"], pa.string())
    return records.set_column(0, records.schema.field(0), keys)


SPREAD = encode_aggregate(
    [("k", b"99"), ("k", b"100"), ("k", b"200"), ("k", b"201")], [99, 100, 200, 201]
)
# The library's own key is that of the first sub-record too.
FROM_A = encode_aggregate(
    [("a", b"99"), ("k", b"100"), ("k", b"200"), ("k", b"201")], [99, 100, 200, 201]
)
EVERY = [b"before", b"99", b"100", b"200", b"201", b"after"]


def test_a_child_drops_the_sub_records_outside_of_its_range_ends_included() -> None:
    parts = child_of().deaggregate(kpl(SPREAD), CHILD).after(0)
    parts.validate(full=True)
    assert columns(parts, "data", "subSequenceNumber") == [
        (b"before", 0),
        (b"100", 1),
        (b"200", 2),
        (b"after", 0),
    ]


def test_a_sub_record_without_an_explicit_hash_key_is_judged_by_the_md5_of_its_key() -> None:
    first, second = (int(hashlib.md5(key).hexdigest(), 16) for key in (b"x", b"y"))  # noqa: S324
    data = encode_aggregate([("x", b"x"), ("y", b"y"), ("x", b"to y")], [None, None, second])
    assert kept(kpl(data), child_of(HashRange(second, second))) == [
        b"before",
        b"y",
        b"to y",
        b"after",
    ]
    assert kept(kpl(data), child_of(HashRange(first, first))) == [b"before", b"x", b"after"]


@pytest.mark.parametrize(
    ("records", "hash_range", "split"),
    [
        pytest.param(kpl(SPREAD, "other"), RANGE, CHILD, id="another library's"),
        pytest.param(kpl(FROM_A), RANGE, CHILD, id="another library's, of the same key"),
        pytest.param(kpl(SPREAD), RANGE, Split(CHILD.id), id="a shard without parents"),
        pytest.param(kpl(SPREAD), RANGE, Split("another", (FIRST,)), id="another shard"),
        pytest.param(kpl(SPREAD), HashRange(), CHILD, id="the whole range"),
        pytest.param(kpl(SPREAD), None, CHILD, id="a range that is not known"),
    ],
)
def test_nothing_is_dropped_that_may_not_come_again(
    records: pa.RecordBatch, hash_range: HashRange | None, split: Split
) -> None:
    assert kept(records, child_of(hash_range), split) == EVERY


@pytest.mark.parametrize(
    "written", [b"", b"-1", b"canary", b"340282366920938463463374607431768211456"]
)
def test_an_explicit_hash_key_that_is_no_number_is_malformed_where_it_is_needed(
    written: bytes,
) -> None:
    record = b"\x08\x00\x10\x00\x1a\x01d"
    table = b"\x0a\x01k" + b"\x12" + bytes([len(written)]) + written
    data = seal_aggregate(table + b"\x1a" + bytes([len(record)]) + record)
    assert kept(kpl(data, "other"), child_of()) == [b"before", b"d", b"after"]
    assert kept(kpl(data), child_of(HashRange())) == [b"before", b"d", b"after"]
    with pytest.raises(
        MalformedEventError, match=r"record 12 .* has an explicit hash key"
    ) as reported:
        kept(kpl(data), child_of())
    assert "canary" not in str(reported.value)


def test_a_bad_aggregate_that_is_left_out_is_named_and_not_quoted() -> None:
    parts = child_of(on_bad="gap").deaggregate(batch(b"1", BROKEN, b"2", BROKEN), CHILD)
    assert parts.after(0).column("data").to_pylist() == [b"1", b"2"]
    assert [row for row, _ in parts.lost] == [1, 3]
    assert parts.lost[0][1].startswith(f"the aggregated record 12 of {CHILD} has a sub-record")
    assert "canary" not in str(parts.lost)


def test_an_aggregate_that_would_grow_an_event_too_far_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = encode_aggregate(PAIRS)
    monkeypatch.setattr("fanout.kinesis.reading.deaggregation._MAX_EXPANDED_BYTES", 1000)
    large = encode_aggregate([("k", b"x" * 900)])
    parts = child_of(on_bad="gap").deaggregate(batch(one, large, b"2"), CHILD)
    assert [row for row, _ in parts.lost] == [1]
    assert parts.after(0).num_rows == len(PAIRS) + 1


def test_damaged_aggregates_are_delivered_and_told_of_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "fanout")
    damaged = encode_aggregate([("k", b"canary")])[:-1] + b"!"
    deaggregator = Deaggregator()
    for _ in range(6):
        records = deaggregator.deaggregate(batch(damaged, damaged), CHILD).records
        assert records.column("data").to_pylist() == [damaged, damaged]
    deaggregator.deaggregate(batch(damaged), Split("another"))
    first, tenth, other = caplog.messages
    record = f"the record 11 of {CHILD} in the stream orders"
    assert f"{record} begins like an aggregated record but has another MD5" in first
    assert "in the shard so far: 1" in first
    assert f"12 of {CHILD}" in tenth
    assert "in the shard so far: 10" in tenth
    assert "in the shard so far: 1" in other
    assert "canary" not in caplog.text


def test_what_an_event_may_grow_to_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    # 10,000 sub-records of 6 bytes that name one key of 1 KiB.
    bomb = encode_aggregate([("\U0001f600" * 256, b"")] * 10_000)
    assert len(bomb) < 100_000
    monkeypatch.setattr("fanout.kinesis.reading.deaggregation._MAX_EXPANDED_BYTES", 20_000_000)
    assert disaggregate(batch(bomb)).num_rows == 10_000
    with pytest.raises(MalformedEventError, match=r"record 12 .* more than 20000000 bytes"):
        disaggregate(batch(bomb, bomb))


def test_a_row_within_an_aggregate_has_a_position_within_it() -> None:
    source = KinesisSource(stream="orders", consumer="etl")
    records = disaggregate(batch(b"before", encode_aggregate(PAIRS), b"after"))
    whole = Batch(Split("shard"), records, Range(Cursor(10), Cursor(13)))
    positions = [source.cursor(whole, row) for row in range(records.num_rows)]
    assert positions == [Cursor(11), Cursor(12, 0), Cursor(12, 1), Cursor(12), Cursor(13)]


def put_mixed(stream: Stream) -> list[bytes]:
    """Put plain records and aggregates of several sizes; return all data in order."""
    sent: list[bytes] = []
    for size in (0, 3, 1, 0, 5, 2, 0):
        data = [f"{len(sent) + number}".encode() for number in range(size or 1)]
        record = encode_aggregate([("key", each) for each in data]) if size else data[0]
        stream.server.put_records("orders", [("parent", record)])
        sent += data
    return sent


async def read(stream: Stream, count: int, resume: str | None = None) -> list[bytes]:
    """Read until so many records have come, with the rest of their batch."""
    data: list[bytes] = []
    async with stream.open(resume=resume) as opened:
        while len(data) < count:
            data += (await anext(opened)).records.column("data").to_pylist()
    return data


async def cuts(stream: Stream, count: int, size: int) -> tuple[list[bytes], list[tuple[str, int]]]:
    """Drain `size` records at a time; return all, and each position with the records before it."""
    data: list[bytes] = []
    positions: list[tuple[str, int]] = []
    async with stream.open() as opened:
        while len(data) < count:
            drained = await opened.drain(max_records=size, max_wait=0, first_wait=math.inf)
            for each in drained.batches:
                data += each.records.column("data").to_pylist()
            await opened.acknowledge(drained)
            positions.append((opened.positions, len(data)))
    return data, positions


def inside_records(positions: Sequence[tuple[str, int]]) -> int:
    found = [
        split.position
        for text, _ in positions
        for split in Checkpoint.from_json(text).splits.values()
    ]
    return sum(isinstance(each, Cursor) and each != Cursor(each.sequence) for each in found)


@pytest.mark.fault("A restart in the middle of an aggregated record neither repeats nor skips a")
@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.long), 2])
async def test_a_resume_at_any_cut_repeats_and_skips_no_sub_record(
    stream: Stream, size: int
) -> None:
    sent = put_mixed(stream)
    data, positions = await cuts(stream, len(sent), size)
    assert data == sent
    assert inside_records(positions) >= 3
    for resume, before in positions[:-1]:
        assert await read(stream, len(sent) - before, resume) == sent[before:]


async def test_a_malformed_aggregate_ends_the_stream_and_is_named(stream: Stream) -> None:
    ((_, number),) = stream.server.put_records("orders", [("key", BROKEN)])
    async with stream.open() as opened:
        with pytest.raises(
            SplitFailedError, match=f"{number} of {FIRST} has a sub-record"
        ) as error:
            await anext(opened)
    assert "canary" not in str(error.value)


def put_after_reshard(stream: Stream) -> list[bytes]:
    """Split, and put into a child what was aggregated before; return what it has to deliver.

    `i` is a sub-record of the child, `o` one of its sibling; `-` is a plain record.
    """
    left, right = stream.server.split_shard("orders", FIRST)
    inside, outside = 0, 2**127
    expected: list[bytes] = []
    for number, pattern in enumerate(("-", "ioi", "oii", "iio", "ooo", "-", "oioio", "o", "ii")):
        data = [f"{number}{sign}{place}".encode() for place, sign in enumerate(pattern)]
        keys = [inside if sign == "i" else outside for sign in pattern]
        record = encode_aggregate([("key", each) for each in data], keys)
        record = data[0] if pattern == "-" else record
        stream.server.put_records("orders", [("a", record)], shard=left)
        expected += [each for each in data if b"o" not in each]
    stream.server.put_records("orders", [("a", b"the sibling's")], shard=right)
    return [*expected, b"the sibling's"]


@pytest.mark.fault("A restart in the middle of an aggregated record neither repeats nor skips a")
@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 3])
async def test_a_restart_anywhere_after_a_reshard_repeats_and_skips_nothing(
    stream: Stream, size: int
) -> None:
    expected = put_after_reshard(stream)
    data, positions = await cuts(stream, len(expected), size)
    assert sorted(data) == sorted(expected)
    assert [each for each in data if each != expected[-1]] == expected[:-1]
    assert inside_records(positions) >= 2
    for resume, before in positions[:-1]:
        assert sorted(await read(stream, len(expected) - before, resume)) == sorted(data[before:])


async def test_a_position_inside_an_aggregate_counts_the_sub_records_that_are_dropped(
    stream: Stream,
) -> None:
    left, _ = stream.server.split_shard("orders", FIRST)
    outside = [("key", b"dropped")] * 3
    data = encode_aggregate([*outside, ("key", b"1"), ("key", b"2")], [2**127] * 3 + [0, 0])
    ((_, number),) = stream.server.put_records("orders", [("a", data)], shard=left)
    async with stream.open() as opened:
        drained = await opened.drain(max_records=1, first_wait=math.inf)
        assert drained.positions.splits[left].position == Cursor(int(number), 3)


async def test_a_child_that_was_never_listed_here_drops_what_is_of_its_sibling(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A lander lists no shards: the coordinator does.
    listings: list[ShardCatalog] = []
    refresh = ShardCatalog.refresh

    def counted(catalog: ShardCatalog) -> Awaitable[Sequence[Split]]:
        listings.append(catalog)
        return refresh(catalog)

    monkeypatch.setattr(ShardCatalog, "refresh", counted)
    expected = put_after_reshard(stream)
    left, right = (Split(f"shardId-{number:012}", (FIRST,)) for number in (1, 2))

    async def read_child(connection: Connection, child: Split, count: int) -> list[bytes]:
        data: list[bytes] = []
        async with connection.subscribe(child, Horizon(), reserve=_at_once) as events:
            while len(data) < count:
                event = await anext(events)
                assert isinstance(event, Batch)
                data += event.records["data"].to_pylist()
        return data

    async with stream.source().connect() as connection, asyncio.TaskGroup() as tasks:
        lefts = tasks.create_task(read_child(connection, left, len(expected) - 1))
        rights = tasks.create_task(read_child(connection, right, 1))
    assert [*lefts.result(), *rights.result()] == expected
    assert len(listings) == 1


async def test_a_child_that_discovery_does_not_list_is_subscribed_to_at_once(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    expired = Split("shardId-000000000009", (FIRST,))
    async with stream.source().connect() as connection:
        assert expired not in await connection.splits()
        monkeypatch.setattr(ShardCatalog, "refresh", None)  # a call fails
        with pytest.raises(ClientError, match="ResourceNotFoundException"):
            async with connection.subscribe(expired, Horizon(), reserve=_at_once):
                pass


async def _at_once(nbytes: int) -> None:
    pass


@pytest.mark.fault("Records at a time come to nothing, such as dropped aggregates")
async def test_a_position_moves_past_an_aggregate_of_which_nothing_is_left(stream: Stream) -> None:
    left, right = stream.server.split_shard("orders", FIRST)
    data = encode_aggregate([("key", b"dropped")] * 2, [2**127] * 2)
    ((_, number),) = stream.server.put_records("orders", [("a", data)], shard=left)
    stream.server.put_records("orders", [("a", b"1")], shard=left)
    async with stream.open() as opened:
        (batch,) = (await opened.drain(max_records=1, first_wait=math.inf)).batches
        assert (batch.split.id, batch.records["data"].to_pylist()) == (left, [b"1"])
        assert reaches(batch.range.until, Cursor(int(number)))
        stream.server.put_records("orders", [("a", data)], shard=left)
        stream.server.put_records("orders", [("a", b"2")], shard=right)
        (batch,) = (await opened.drain(max_records=1, first_wait=math.inf)).batches
        assert batch.split.id == right


async def test_a_bad_aggregate_may_be_a_gap_between_what_is_delivered(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    sent = put_mixed(stream)
    stream.server.put_records("orders", [("key", BROKEN)])
    sent += put_mixed(stream)
    async with stream.open(on_bad_aggregate="gap") as opened:
        drained = await opened.drain(max_records=len(sent), first_wait=math.inf)
        data = [each for part in drained.batches for each in part.records["data"].to_pylist()]
        assert data == sent
        assert opened.statistics().gaps == 1
    assert f"records of {FIRST} are lost: the aggregated record" in caplog.text
    assert "canary" not in caplog.text
