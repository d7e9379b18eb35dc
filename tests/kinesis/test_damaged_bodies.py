from __future__ import annotations

import base64
import json
import struct
import zlib
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.events import Batch, End, Split
from fanout.core.positions import Cursor, Horizon, Position
from fanout.errors import DamagedFrameError, MalformedEventError, RemoteError
from fanout.kinesis.aws.api import HashRange
from fanout.kinesis.reading.deaggregation import Deaggregator, parse_aggregate
from fanout.kinesis.reading.decode import decode_event
from fanout.kinesis.reading.event_stream import FrameDecoder
from fanout.kinesis.reading.subscription import read_events
from fanout.kinesis.writing.kpl_format import encode_aggregate, seal_aggregate
from fanout.testing.kinesis.frames import encode_event, encode_exception, encode_frame
from tests.kinesis.framing import header, sealed
from tests.support.damage import cuts, damaged, documents
from tests.support.memory import peak_memory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable

    import pyarrow as pa

T = TypeVar("T")

SHARD = Split("shardId-000000000001", ("shardId-000000000000",))
AGGREGATE = encode_aggregate([("k", b"1"), ("l", b""), ("k", b"3")], [None, 7, 2**127])
# Magic and MD5 are right, and one sub-record points outside of the table.
BROKEN = seal_aggregate(b"\x0a\x01k\x1a\x07\x08\x01\x1a\x03sub")
DATA = [b"", b"1", b"\xff" * 40, AGGREGATE, BROKEN, AGGREGATE[:-1] + b"!"]
CHILD = {
    "ShardId": "shardId-000000000002",
    "ParentShards": [SHARD.id],
    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9"},
}
LARGEST = 64 * 1024
HEADER_VALUES = [b"", b"\x00\x05event", b"\xff\xffevent", b"\x7f" * 8, b"\x00\x01\xff", bytes(16)]


def text(*records: tuple[int, bytes], **more: Any) -> dict[str, Any]:
    made = [
        {
            "SequenceNumber": str(number),
            "PartitionKey": "a",
            "Data": base64.b64encode(data).decode(),
            "ApproximateArrivalTimestamp": 1795218308.174,
        }
        for number, data in records
    ]
    return {"Records": made, "MillisBehindLatest": 7} | more


@st.composite
def payloads(draw: st.DrawFn, number: int) -> tuple[bytes, int]:
    """Write one event that begins behind a number, most often a valid one; and where it ends."""
    count = draw(st.integers(0, 3))
    numbers = [number + 1 + place for place in range(count)]
    records = [(each, draw(st.sampled_from(DATA))) for each in numbers]
    until = number + count
    event = text(*records, ContinuationSequenceNumber=str(until))
    if draw(st.integers(0, 5)) == 0:
        event = text(*records, ChildShards=[CHILD])
    if draw(st.integers(0, 2)) == 0:
        return draw(documents([event]) | damaged(st.just(json.dumps(event).encode()))), until
    return json.dumps(event).encode(), until


def behind_the_checksum(draw: st.DrawFn, payload: bytes) -> bytes:
    """Frame an event with wrong headers or lengths, whose checksums are right all the same."""
    match draw(st.integers(0, 3)):
        case 0:
            return sealed(draw(st.binary(max_size=20)), payload)
        case 1:
            kind, value = draw(st.integers(0, 10)), draw(st.sampled_from(HEADER_VALUES))
            return sealed(header(b":message-type", kind, value), payload)
        case 2:
            says = draw(st.sampled_from(["event", "exception", "error", "other"]))
            return encode_frame({":message-type": says}, payload)
        case _:
            total = draw(st.sampled_from([0, 15, 16, 40, LARGEST, LARGEST + 1, 2**32 - 1]))
            prelude = struct.pack(">II", total, draw(st.sampled_from([0, 4, 2**17, 2**32 - 1])))
            return prelude + struct.pack(">I", zlib.crc32(prelude)) + payload


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Write the body of a subscription: events in a chain, some of them wrong in some way."""
    frames, number = [encode_event("initial-response", b"{}")] * draw(st.integers(0, 1)), 10
    for _ in range(draw(st.integers(1, 4))):
        payload, number = draw(payloads(number))
        match draw(st.integers(0, 11)):
            case 0:
                frames.append(behind_the_checksum(draw, payload))
            case 1:
                says = {":message-type": "exception", ":exception-type": "KMSDisabledException"}
                frames.append(encode_frame(says, draw(documents([{"message": "sorry"}]))))
            case 2:
                frame = bytearray(encode_event("SubscribeToShardEvent", payload))
                frame[draw(st.integers(12, len(frame) - 1))] ^= 1
                frames.append(bytes(frame))
            case _:
                frames.append(encode_event("SubscribeToShardEvent", payload))
    body = b"".join(frames)
    return draw(damaged(st.just(body))) if draw(st.integers(0, 3)) == 0 else body


async def arriving(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def reserve(nbytes: int) -> None:
    """Let everything pass: memory is measured, not reserved."""
    del nbytes


def finished(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waits for something")


class Reading:
    """The position and the options with which a body is read."""

    def __init__(self, after: Position, on_bad: Literal["fail", "gap"], droppable: int) -> None:
        self.after = after
        self.on_bad = on_bad
        self.droppable = droppable

    def __repr__(self) -> str:
        return f"Reading({self.after!r}, {self.on_bad!r}, {self.droppable})"

    async def read(self, chunks: Iterable[bytes]) -> tuple[list[Batch | End], str]:
        """Return the events, and the error at their end."""
        deaggregator = Deaggregator(self.on_bad)
        deaggregator.set_hash_range(SHARD.id, HashRange(0, 2**127 - 1))
        events: list[Batch | End] = []
        async with aclosing(
            read_events(
                arriving(chunks),
                SHARD,
                self.after,
                stream="orders",
                max_event_bytes=LARGEST,
                deaggregator=deaggregator,
                reserve=reserve,
                droppable=self.droppable,
            )
        ) as reader:
            try:
                async for event in reader:
                    events.append(event)  # noqa: PERF401 - what came before the error counts
            except (MalformedEventError, RemoteError) as error:
                return events, repr(error)
        return events, ""

    def outcome(self, chunks: Iterable[bytes]) -> tuple[list[Any], str]:
        """Return all that the events say, as values that can be compared."""
        events, error = finished(self.read(chunks))
        return [_values(event) for event in events], error


def _values(event: Batch | End) -> Any:
    match event:
        case Batch():
            event.records.validate(full=True)
            return event.records.to_pylist(), event.range, event.lag, event.gaps
        case End():
            return event


readings = st.builds(
    Reading,
    st.sampled_from([Horizon(), Cursor(10), Cursor(11, 0), Cursor(12, 1)]),
    st.sampled_from(["fail", "gap"]),
    st.integers(0, 2),
)


@pytest.mark.long
@given(reading=readings, body=bodies(), data=st.data())
def test_however_a_body_is_cut_it_says_the_same(
    reading: Reading, body: bytes, data: st.DataObject
) -> None:
    assert reading.outcome(data.draw(cuts(body))) == reading.outcome([body])


SHORT = (
    encode_event("initial-response", b"{}")
    + encode_event("SubscribeToShardEvent", json.dumps(text((11, AGGREGATE))).encode())[:-1]
    + b"!"
    + encode_event(
        "SubscribeToShardEvent",
        json.dumps(text((12, b"1"), ContinuationSequenceNumber="12")).encode(),
    )
    + encode_exception("InternalFailureException", "sorry")
)


def test_a_body_says_the_same_at_every_single_cut() -> None:
    reading = Reading(Cursor(10), "fail", 1)
    whole = reading.outcome([SHORT])
    assert len(whole[0]) == 1
    assert "sorry" in whole[1]
    for at in range(len(SHORT) + 1):
        assert reading.outcome([SHORT[:at], SHORT[at:]]) == whole


@given(reading=readings, body=bodies())
def test_what_a_body_says_can_be_stored_and_read_again(reading: Reading, body: bytes) -> None:
    position, splits = reading.after, tuple[Split, ...]()
    for event in finished(reading.read([body]))[0]:
        match event:
            case Batch():
                assert event.range.after == position
                position, splits = event.range.until, (SHARD,)
            case End():
                splits = (SHARD, *event.children)
        states = {split.id: SplitPosition(split, position) for split in splits}
        stored = Checkpoint("kinesis:orders", states)
        assert Checkpoint.from_json(stored.to_json()) == stored


@pytest.mark.long
@given(body=bodies(), data=st.data())
def test_reading_a_body_takes_a_small_multiple_of_its_bytes(
    body: bytes, data: st.DataObject
) -> None:
    chunks = data.draw(cuts(body))
    with peak_memory() as peak:
        finished(Reading(Cursor(10), "gap", 2).read(chunks))
    # A frame's announced memory is allocated with its second chunk; the rest is for the decoders of
    # JSON and of aggregated records.
    assert peak.nbytes <= 20 * len(body) + LARGEST + 128 * 1024


def take_frames(chunks: Iterable[bytes]) -> tuple[list[Any], str]:
    """Take frames, keep none, and return what they hold, and the error at which nothing goes on."""
    decoder = FrameDecoder(LARGEST)
    taken: list[Any] = []
    try:
        for chunk in chunks:
            decoder.feed(chunk)
            while True:
                try:
                    frame = decoder.next_frame()
                except DamagedFrameError as error:
                    taken.append(str(error))
                    continue
                if frame is None:
                    break
                taken.append((frame.headers, bytes(frame.payload)))
        decoder.close()
    except MalformedEventError as error:
        return taken, str(error)
    return taken, ""


@given(body=bodies(), data=st.data())
def test_however_frames_are_cut_the_same_ones_are_taken(body: bytes, data: st.DataObject) -> None:
    assert take_frames(data.draw(cuts(body))) == take_frames([body])


@pytest.mark.parametrize("size", [17, 4096, 1 << 20])
def test_frames_that_nobody_keeps_take_little_memory(size: int) -> None:
    body = encode_frame({}, b"") * 3000 + encode_frame({}, bytes(60_000)) * 8
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    decoder = FrameDecoder(LARGEST)
    with peak_memory() as peak:
        for chunk in chunks:
            decoder.feed(chunk)
            while decoder.next_frame() is not None:
                pass
    assert peak.nbytes <= 2 * LARGEST + 16 * 1024


def rows(*data: bytes) -> pa.RecordBatch:
    records = json.dumps(text(*enumerate(data, 11), ContinuationSequenceNumber="99")).encode()
    return decode_event(records, stream="orders", shard_id=SHARD.id).records


@given(
    parts=st.lists(st.sampled_from(DATA) | damaged(st.just(AGGREGATE[4:-16])).map(seal_aggregate)),
    known=st.booleans(),
)
def test_aggregates_are_taken_apart_or_left_out_whole(parts: list[bytes], known: bool) -> None:  # noqa: FBT001 - drawn
    gap, fail = Deaggregator("gap"), Deaggregator("fail")
    if known:
        for deaggregator in (gap, fail):
            deaggregator.set_hash_range(SHARD.id, HashRange(0, 2**127 - 1))
    records = rows(*parts)
    taken = gap.deaggregate(records, SHARD)
    lost = {row for row, _ in taken.lost}
    counts: dict[str, int] = {}
    for row in taken.records.to_pylist():
        assert row["subSequenceNumber"] == counts.get(row["sequenceNumber"], 0)
        counts[row["sequenceNumber"]] = row["subSequenceNumber"] + 1
    assert not lost & {int(number) - 11 for number in counts}
    for row, data in enumerate(parts):
        with suppress(MalformedEventError):
            aggregate = parse_aggregate(data)
            expected = 1 if aggregate is None else len(aggregate.data)
            assert row in lost or counts.get(str(row + 11), 0) == expected
    if lost:
        with pytest.raises(MalformedEventError):
            fail.deaggregate(records, SHARD)
    else:
        assert fail.deaggregate(records, SHARD).after(0) == taken.after(0)


@pytest.mark.long
@pytest.mark.parametrize(
    "message",
    [
        b"\x0a\x00" + b"\x1a\x04\x08\x00\x1a\x00" * 20_000,
        b"\x0a\x00" * 20_000,
        b"\x12\x00" * 20_000,
        b"\x1a\x00" * 20_000,
        b"\x0a\x00\x1a\xa0\x9c\x01" + b"\x08\x00" * 10_000,
        b"\x22\xc0\x84\x3d" + bytes(1_000_000),
    ],
    ids=["sub-records", "keys", "hash keys", "empty", "fields", "unknown"],
)
def test_an_aggregate_takes_a_small_multiple_of_its_bytes(message: bytes) -> None:
    """The smallest sub-record is 6 bytes, and becomes a bytes object and its place in a list."""
    data = seal_aggregate(message)
    with peak_memory() as peak, suppress(MalformedEventError):
        parse_aggregate(data)
    assert peak.nbytes <= 16 * len(data) + 64 * 1024


@pytest.mark.long
def test_sub_records_take_little_more_memory_than_is_counted_for_them() -> None:
    data = encode_aggregate([("k" * 200, b"")] * 20_000)
    records = rows(data)
    aggregate = parse_aggregate(data)
    assert aggregate is not None
    with peak_memory() as peak:
        Deaggregator().deaggregate(records, SHARD)
    assert peak.nbytes <= 2 * aggregate.nbytes
