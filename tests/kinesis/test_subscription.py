from __future__ import annotations

import asyncio
import base64
import json
import weakref
from contextlib import aclosing
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from fanout.core.events import Batch, End, Split
from fanout.core.positions import Cursor, Horizon, Range, Timestamp
from fanout.core.subscription import Watchdog
from fanout.errors import DamagedFrameError, MalformedEventError, RemoteError, UnconfirmedEndError
from fanout.kinesis.reading.deaggregation import Deaggregator
from fanout.kinesis.reading.decode import FEW_ROWS, SCHEMA
from fanout.kinesis.reading.subscription import read_events
from fanout.kinesis.starting_position import starting_position
from fanout.kinesis.writing.kpl_format import encode_aggregate, seal_aggregate
from fanout.testing.kinesis.frames import encode_event, encode_exception, encode_frame
from fanout.testing.virtual_time.loop import simulate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from fanout.core.positions import Position

SHARD = Split("shardId-000000000000")
HELLO = encode_event("initial-response", b"{}")
LOWER = {"StartingHashKey": "0", "EndingHashKey": str(2**127 - 1)}
LEFT: dict[str, Any] = {
    "ShardId": "shardId-000000000001",
    "ParentShards": [SHARD.id],
    "HashKeyRange": LOWER,
}
MERGED: dict[str, Any] = {
    "ShardId": "shardId-000000000002",
    "ParentShards": [SHARD.id, "shardId-000000000009"],
    "HashKeyRange": LOWER,
}


def payload(
    numbers: Iterable[object] = (),
    *,
    until: object = None,
    children: Sequence[dict[str, Any]] | None = None,
    behind: int = 0,
    size: int = 1,
) -> bytes:
    event: dict[str, Any] = {
        "Records": [
            {"SequenceNumber": str(n), "PartitionKey": "k", "Data": "A" * 4 * size} for n in numbers
        ],
        "ContinuationSequenceNumber": None if until is None else str(until),
        "MillisBehindLatest": behind,
    }
    if children is not None:
        event["ChildShards"] = children
    return json.dumps(event).encode()


def event(numbers: Iterable[object] = (), **fields: Any) -> bytes:
    return encode_event("SubscribeToShardEvent", payload(numbers, **fields))


class Reservations:
    """Remember what was reserved."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def __call__(self, nbytes: int) -> None:
        self.sizes.append(nbytes)


async def arriving(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def reading(
    *chunks: bytes,
    after: Position = Horizon(),  # noqa: B008 - a frozen value
    reserve: Any = None,
    max_event_bytes: int = 1 << 20,
    deaggregator: Deaggregator | None = None,
    split: Split = SHARD,
    droppable: int = 0,
) -> Any:
    return read_events(
        arriving(chunks),
        split,
        after,
        stream="orders",
        max_event_bytes=max_event_bytes,
        deaggregator=deaggregator or Deaggregator(),
        reserve=reserve or Reservations(),
        droppable=droppable,
    )


async def read(*chunks: bytes, **options: Any) -> list[Batch | End]:
    async with aclosing(reading(*chunks, **options)) as events:
        return [each async for each in events]


async def refused(*chunks: bytes, **options: Any) -> tuple[list[Batch | End], Exception]:
    """Return what was read before an error, and the error."""
    events: list[Batch | End] = []

    async def collect() -> None:
        async with aclosing(reading(*chunks, **options)) as reader:
            async for each in reader:
                events.append(each)  # noqa: PERF401 - what came before the error counts

    with pytest.raises((MalformedEventError, RemoteError)) as caught:
        await collect()
    return events, caught.value


def numbers(batch: Batch | End) -> list[str]:
    assert isinstance(batch, Batch)
    result: list[str] = batch.records.column("sequenceNumber").to_pylist()
    return result


@pytest.mark.fault("The service sends again what was read, at a position instead of after it")
@pytest.mark.parametrize(
    ("position", "written"),
    [
        (Horizon(), {"Type": "TRIM_HORIZON"}),
        (Timestamp(1_704_067_200_123), {"Type": "AT_TIMESTAMP", "Timestamp": 1_704_067_200.123}),
        (
            Cursor(49680412602923508161381989364352061050721676279901323266),
            {
                "Type": "AFTER_SEQUENCE_NUMBER",
                "SequenceNumber": "49680412602923508161381989364352061050721676279901323266",
            },
        ),
        (Cursor(7, 0), {"Type": "AT_SEQUENCE_NUMBER", "SequenceNumber": "7"}),
    ],
)
def test_a_position_is_written_as_the_service_wants_it(
    position: Position, written: dict[str, Any]
) -> None:
    assert starting_position(position) == written


@pytest.mark.fault("It is known how far a shard is behind, and unknown while it is not read")
async def test_records_come_with_the_range_that_they_cover_and_the_lag() -> None:
    (batch,) = await read(HELLO, event([11, 12], until=15, behind=2500), after=Cursor(10))
    assert isinstance(batch, Batch)
    assert numbers(batch) == ["11", "12"]
    assert batch.split is SHARD
    assert batch.records.schema == SCHEMA
    assert batch.records.column("stream").to_pylist() == ["orders", "orders"]
    assert batch.range == Range(Cursor(10), Cursor(15))
    assert batch.lag == 2.5


@pytest.mark.parametrize("count", [1, FEW_ROWS, FEW_ROWS + 1])
async def test_a_batch_has_the_bytes_of_its_records(count: int) -> None:
    (batch,) = await read(event([*range(1, count + 1)], until=count))
    assert isinstance(batch, Batch)
    # Each of the five columns of text ends with one offset more than it has values.
    assert batch.nbytes == batch.records.nbytes + 5 * 4


@pytest.mark.fault("No initial-response comes at all")
async def test_the_initial_response_may_be_missing() -> None:
    assert [numbers(each) for each in await read(event([1], until=1))] == [["1"]]


@pytest.mark.fault("An event without records comes before a single record")
async def test_an_event_without_records_is_progress() -> None:
    (batch,) = await read(HELLO, event(until=7), after=Timestamp(5))
    assert isinstance(batch, Batch)
    assert (batch.num_records, batch.range) == (0, Range(Timestamp(5), Cursor(7)))


@pytest.mark.fault("Records come event by event, in one subscription or in many")
async def test_the_ranges_of_batches_form_a_chain() -> None:
    body = event([1], until=2), event(until=3), event(until=3), event([4, 5], until=9)
    batches = await read(HELLO, *body)
    ranges = [batch.range for batch in batches if isinstance(batch, Batch)]
    assert ranges[0].after == Horizon()
    assert all(one.until == other.after for one, other in pairwise(ranges))
    assert ranges[-1].until == Cursor(9)


@pytest.mark.fault("The network cuts frames at any byte")
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 16, 50, 100, 1000])
async def test_the_cut_of_the_body_into_chunks_changes_nothing(size: int) -> None:
    body = HELLO + event([1, 2], until=2) + event(until=3) + event([4], children=[LEFT])
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    first, idle, last, end = await read(*chunks)
    assert [numbers(batch) for batch in (first, idle, last)] == [["1", "2"], [], ["4"]]
    assert end == End(SHARD, (Split(LEFT["ShardId"], (SHARD.id,)),))


async def test_a_body_that_ends_between_events_is_over_without_an_error() -> None:
    assert await read(HELLO) == []
    assert await read() == []


@pytest.mark.fault("Bytes trickle so slowly that no event is ever whole")
def test_frames_that_say_nothing_are_no_sign_of_life() -> None:
    async def body() -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(1)
            yield HELLO

    async def main() -> None:
        events = read_events(
            body(),
            SHARD,
            Horizon(),
            stream="orders",
            max_event_bytes=1 << 20,
            deaggregator=Deaggregator(),
            reserve=Reservations(),
        )
        async with aclosing(events):
            with pytest.raises(TimeoutError):
                async with Watchdog(35):
                    await anext(events)
        assert asyncio.get_running_loop().time() == 35

    simulate(main)


async def test_memory_for_each_of_many_events_in_a_chunk_is_reserved_when_it_is_its_turn() -> None:
    reserve = Reservations()
    body = [event([n], until=n, size=n * 10) for n in (1, 2, 3)]
    async with aclosing(reading(HELLO, b"".join(body), reserve=reserve)) as events:
        seen = [sum(reserve.sizes) async for _ in events]
    sizes = [len(payload([n], until=n, size=n * 10)) for n in (1, 2, 3)]
    assert seen == [sum(sizes[: n + 1]) for n in range(3)]


async def test_half_an_end_behind_a_dropped_frame_tells_no_loss_up_to_the_end() -> None:
    """The shard may go on; the next subscription begins before that frame, and drops it again."""
    unreadable = encode_event("SubscribeToShardEvent", b"{")
    seen, error = await refused(unreadable, event(), after=Cursor(5), droppable=1)
    assert isinstance(error, UnconfirmedEndError)
    assert seen == []


async def test_what_ends_a_subscription_waits_for_no_memory() -> None:
    """The memory may be held by events that a slow consumer does not take."""
    reserve = Reservations()
    seen, error = await refused(encode_exception("KMSDisabledException", "off"), reserve=reserve)
    assert seen == []
    assert isinstance(error, RemoteError)
    assert reserve.sizes == []


async def test_memory_for_an_event_in_pieces_is_reserved_before_it_is_assembled() -> None:
    reserve = Reservations()
    frame = event([1], until=1, size=1000)
    reserved_at: dict[int, list[int]] = {}

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(frame), 100):
            yield frame[start : start + 100]
            reserved_at[start + 100] = list(reserve.sizes)

    reader = read_events(
        pieces(),
        SHARD,
        Horizon(),
        stream="s",
        max_event_bytes=1 << 20,
        deaggregator=Deaggregator(),
        reserve=reserve,
    )
    async with aclosing(reader) as events:
        assert len([each async for each in events]) == 1
    assert reserved_at[100] == [len(frame)]
    assert reserve.sizes == [len(frame)]


async def test_a_batch_that_was_handed_on_is_kept_by_nobody() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield event([11, 12], until=12)
        await asyncio.sleep(3600)

    async def reserve(nbytes: int) -> None:
        del nbytes

    events = read_events(
        body(),
        SHARD,
        Horizon(),
        stream="orders",
        max_event_bytes=1 << 20,
        deaggregator=Deaggregator(),
        reserve=reserve,
    )
    async with aclosing(events):
        batch = await anext(events)
        assert isinstance(batch, Batch)
        kept = weakref.ref(batch.records)
        del batch
        waiting = asyncio.ensure_future(anext(events))  # noqa: TID251 - awaited below
        await asyncio.sleep(0)
        assert kept() is None
        waiting.cancel()
        await asyncio.wait([waiting])


@pytest.mark.fault("An event announces more bytes than are allowed")
async def test_an_event_that_announces_too_much_is_refused_without_a_reservation() -> None:
    reserve = Reservations()
    frame = event([1], until=1, size=1000)
    _, error = await refused(frame[:50], reserve=reserve, max_event_bytes=1000)
    assert "more than the 1000 allowed" in str(error)
    assert reserve.sizes == []


@pytest.mark.fault("The first frame of an answer is an exception, and no initial-response")
@pytest.mark.parametrize("before", [b"", HELLO])
async def test_an_exception_that_comes_first_is_raised_as_itself(before: bytes) -> None:
    _, error = await refused(before, encode_exception("ResourceInUseException", "taken over"))
    assert isinstance(error, RemoteError)
    assert error.code == "ResourceInUseException"
    assert str(error) == "ResourceInUseException: taken over"


@pytest.mark.fault("An error comes while an event is still waiting")
async def test_an_exception_comes_after_the_events_before_it() -> None:
    body = event([1], until=1) + encode_exception("InternalFailureException", "")
    (batch,), error = await refused(HELLO + body)
    assert numbers(batch) == ["1"]
    assert str(error) == "InternalFailureException"


@pytest.mark.parametrize(
    "text",
    [b"", b"no json", b"\xff", b"[1]", b'{"message": 7}', b'{"x":' + b"[" * 100_000],
    ids=lambda text: repr(text[:20]),
)
async def test_an_exception_needs_no_readable_message(text: bytes) -> None:
    headers = {":message-type": "exception", ":exception-type": "KMSDisabledException"}
    _, error = await refused(encode_frame(headers, text))
    assert str(error) == "KMSDisabledException"


async def test_an_error_that_is_not_in_the_model_has_its_code_and_message() -> None:
    headers = {":message-type": "error", ":error-code": "Surprise", ":error-message": "no"}
    _, error = await refused(encode_frame(headers, b""))
    assert isinstance(error, RemoteError)
    assert (error.code, str(error)) == ("Surprise", "Surprise: no")


@pytest.mark.parametrize("kind", ["exception", "error"])
async def test_an_exception_without_a_name_is_one_all_the_same(kind: str) -> None:
    _, error = await refused(encode_frame({":message-type": kind}, b""))
    assert isinstance(error, RemoteError)
    assert error.code == f"unnamed {kind}"


@pytest.mark.parametrize(
    "headers",
    [
        {":message-type": "event", ":event-type": "Surprise"},
        {":message-type": "event"},
        {":message-type": "surprise", ":event-type": "SubscribeToShardEvent"},
        {},
    ],
)
async def test_a_frame_of_an_unknown_type_is_malformed(headers: dict[str, str]) -> None:
    _, error = await refused(encode_frame(headers, payload([1], until=1)))
    assert isinstance(error, MalformedEventError)
    assert "does not belong into a subscription" in str(error)


@pytest.mark.fault("The last event has records as well")
async def test_the_last_event_may_have_records() -> None:
    batch, end = await read(HELLO, event([1, 2], children=[LEFT, MERGED]), after=Cursor(0))
    assert isinstance(batch, Batch)
    assert (numbers(batch), batch.range) == (["1", "2"], Range(Cursor(0), Cursor(2)))
    assert end == End(
        SHARD,
        (
            Split(LEFT["ShardId"], (SHARD.id,)),
            Split(MERGED["ShardId"], (SHARD.id, "shardId-000000000009")),
        ),
    )


async def test_the_last_event_may_be_empty() -> None:
    assert await read(HELLO, event(children=[LEFT])) == [
        End(SHARD, (Split(LEFT["ShardId"], (SHARD.id,)),))
    ]


@pytest.mark.fault("A shard ends: it is not subscribed to again")
async def test_nothing_is_read_after_the_end() -> None:
    assert len(await read(HELLO, event(children=[LEFT]), b"no frame")) == 1
    assert len(await read(HELLO, event(children=[LEFT]) + event([1], until=1))) == 1


@pytest.mark.fault("A shard ends by one of the two signs alone")
@pytest.mark.parametrize("children", [None, []])
@pytest.mark.parametrize("records", [[], [1]])
async def test_no_continuation_without_children_is_no_end(
    records: list[int], children: list[dict[str, Any]] | None
) -> None:
    events, error = await refused(HELLO, event(records, children=children))
    assert [numbers(each) for each in events] == [["1"]] * len(records)
    assert isinstance(error, UnconfirmedEndError)
    assert error.exhausted
    assert "no continuation, but no child shards" in str(error)


@pytest.mark.fault("A shard ends by one of the two signs alone")
@pytest.mark.parametrize("records", [[], [1]])
async def test_a_continuation_with_children_is_no_end(records: list[int]) -> None:
    events, error = await refused(HELLO, event(records, until=2, children=[LEFT]))
    (batch,) = events
    assert isinstance(batch, Batch)
    assert (numbers(batch), batch.range.until) == (["1"] * len(records), Cursor(2))
    assert isinstance(error, UnconfirmedEndError)
    assert not error.exhausted
    assert "child shards, but a continuation" in str(error)


@pytest.mark.fault("The service sends again what was read, at a position instead of after it")
@pytest.mark.parametrize("first", [4, 5])
async def test_a_record_that_is_not_after_the_position_is_malformed(first: int) -> None:
    events, error = await refused(event([first, 6], until=6), after=Cursor(5))
    assert events == []
    assert "a record that is not after its position" in str(error)


@pytest.mark.fault("The service sends again what was read, at a position instead of after it")
async def test_a_record_that_comes_again_in_the_next_event_is_malformed() -> None:
    events, error = await refused(event([1, 2], until=2), event([2, 3], until=3))
    assert [numbers(each) for each in events] == [["1", "2"]]
    assert "a record that is not after its position" in str(error)


@pytest.mark.parametrize("records", [[], [6]])
async def test_a_continuation_that_goes_back_is_malformed(records: list[int]) -> None:
    events, error = await refused(event(records, until=4), after=Cursor(5))
    assert events == []
    assert "a continuation that is before" in str(error)


async def test_a_continuation_before_the_last_record_is_malformed() -> None:
    events, error = await refused(event([6, 7, 8], until=7), after=Cursor(5))
    assert events == []
    assert "a continuation that is before" in str(error)


@pytest.mark.parametrize("until", [3, 4, None])
async def test_records_that_go_back_behind_the_position_are_malformed(until: int | None) -> None:
    children = [LEFT] if until is None else None
    events, error = await refused(event([6, 3], until=until, children=children), after=Cursor(5))
    assert events == []
    assert "a continuation that is before" in str(error)


async def test_a_continuation_at_the_last_record_is_progress() -> None:
    (batch,) = await read(event([6], until=6), after=Cursor(5))
    assert isinstance(batch, Batch)
    assert batch.range.until == Cursor(6)


@pytest.mark.parametrize("number", ["", "x", "-1", "1.5", " 1", "1_0", "\u0661", "1" * 129])
@pytest.mark.parametrize("place", ["first", "middle", "last", "continuation"])
async def test_a_sequence_number_is_up_to_128_decimal_digits(number: str, place: str) -> None:
    records: list[object] = [10, 20, 30]
    if place != "continuation":
        records[("first", "middle", "last").index(place)] = number
    until = number if place == "continuation" else 30
    events, error = await refused(event(records, until=until), after=Cursor(5))
    assert events == []
    assert "a sequence number is not a decimal number" in str(error)


async def test_a_sequence_number_may_have_128_digits() -> None:
    largest = int("9" * 128)
    (batch,) = await read(event([largest], until=largest), after=Cursor(5))
    assert isinstance(batch, Batch)
    assert batch.range.until == Cursor(largest)


@pytest.mark.fault("A body ends inside a frame, although its transfer was whole")
async def test_a_body_that_ends_inside_a_frame_is_malformed() -> None:
    frame = event([2], until=2)
    for length in (1, 11, 12, 20, len(frame) - 1):
        (batch,), error = await refused(HELLO, event([1], until=1), frame[:length])
        assert numbers(batch) == ["1"]
        assert isinstance(error, MalformedEventError)


async def test_a_damaged_frame_is_malformed_and_delivers_nothing() -> None:
    frame = bytearray(event([2], until=2))
    frame[-1] ^= 1
    (batch,), error = await refused(event([1], until=1), bytes(frame))
    assert numbers(batch) == ["1"]
    assert isinstance(error, MalformedEventError)
    assert "checksum" in str(error)


async def test_a_payload_that_cannot_be_decoded_is_malformed() -> None:
    _, error = await refused(encode_event("SubscribeToShardEvent", b'{"Records": []}'))
    assert isinstance(error, MalformedEventError)
    assert "MillisBehindLatest" in str(error)


def aggregates(*sizes: int, first: int = 11, until: int | None = 20, **fields: Any) -> bytes:
    """An event of aggregated records with so many sub-records each; 0 for a plain record."""
    body = json.loads(payload(range(first, first + len(sizes)), until=until, **fields))
    for record, size in zip(body["Records"], sizes, strict=True):
        if size:
            data = encode_aggregate([("key", bytes([number])) for number in range(size)])
            record["Data"] = base64.b64encode(data).decode()
    return encode_event("SubscribeToShardEvent", json.dumps(body).encode())


def sub_numbers(batch: Batch | End) -> list[tuple[str, int]]:
    assert isinstance(batch, Batch)
    subs: list[int] = batch.records.column("subSequenceNumber").to_pylist()
    return list(zip(numbers(batch), subs, strict=True))


@pytest.mark.fault("Records are aggregated by the Kinesis Producer Library")
async def test_aggregated_records_come_as_their_sub_records() -> None:
    (batch,) = await read(aggregates(0, 3, 1), after=Cursor(10))
    assert sub_numbers(batch) == [("11", 0), ("12", 0), ("12", 1), ("12", 2), ("13", 0)]
    assert isinstance(batch, Batch)
    assert batch.range == Range(Cursor(10), Cursor(20))


@pytest.mark.fault("The service sends again what was read, at a position instead of after it")
@pytest.mark.parametrize("sub", [0, 1, 2])
async def test_a_subscription_inside_a_record_begins_with_its_rest(sub: int) -> None:
    (batch,) = await read(aggregates(3, 2, 0), after=Cursor(11, sub))
    parts = [("11", 0), ("11", 1), ("11", 2), ("12", 0), ("12", 1), ("13", 0)]
    assert sub_numbers(batch) == parts[sub + 1 :]
    assert isinstance(batch, Batch)
    assert batch.range == Range(Cursor(11, sub), Cursor(20))


async def test_only_the_first_event_is_cut() -> None:
    body = aggregates(3, until=11), aggregates(3, first=12, until=12)
    first, second = await read(*body, after=Cursor(11, 1))
    assert sub_numbers(first) == [("11", 2)]
    assert sub_numbers(second) == [("12", 0), ("12", 1), ("12", 2)]


async def test_a_shard_may_end_with_the_rest_of_a_record() -> None:
    body = aggregates(3, until=None, children=[LEFT])
    batch, end = await read(body, after=Cursor(11, 1))
    assert sub_numbers(batch) == [("11", 2)]
    assert isinstance(batch, Batch)
    assert batch.range.until == Cursor(11)
    assert isinstance(end, End)


@pytest.mark.parametrize(
    ("first", "message"),
    [(10, "not after its position"), (12, "did not begin with the sub-records 0 to 1")],
)
async def test_inside_a_record_another_first_record_is_malformed(first: int, message: str) -> None:
    events, error = await refused(aggregates(3, first=first), after=Cursor(11, 1))
    assert events == []
    assert message in str(error)


@pytest.mark.parametrize("sizes", [(0,), (3,), (3, 9)])
@pytest.mark.parametrize("sub", [3, 4, 2**63 - 2])
async def test_inside_a_record_with_fewer_sub_records_is_malformed(
    sizes: tuple[int, ...], sub: int
) -> None:
    events, error = await refused(aggregates(*sizes), after=Cursor(11, sub))
    assert events == []
    assert "which its position is in" in str(error)


@pytest.mark.parametrize("continuation", [10, 11, 12])
async def test_a_heartbeat_inside_a_record_moves_nothing(continuation: int) -> None:
    body = event(until=continuation), aggregates(3)
    idle, batch = await read(*body, after=Cursor(11, 1))
    assert isinstance(idle, Batch)
    assert (idle.num_records, idle.lag) == (0, None)
    assert idle.range == Range(Cursor(11, 1), Cursor(11, 1))
    assert sub_numbers(batch) == [("11", 2)]


async def test_a_shard_does_not_end_inside_a_record() -> None:
    events, error = await refused(event(children=[LEFT]), after=Cursor(11, 1))
    assert events == []
    assert "ended before the rest of an aggregated record" in str(error)


@pytest.mark.fault("Records are aggregated by the Kinesis Producer Library")
async def test_a_malformed_aggregate_delivers_nothing_of_its_event() -> None:
    body = json.loads(payload([11, 12], until=12))
    body["Records"][1]["Data"] = base64.b64encode(seal_aggregate(b"\x0a")).decode()
    frame = encode_event("SubscribeToShardEvent", json.dumps(body).encode())
    events, error = await refused(frame, after=Cursor(10))
    assert events == []
    assert isinstance(error, MalformedEventError)
    assert f"the aggregated record 12 of {SHARD.id}" in str(error)


def damaged(*bad: int, sizes: Sequence[int] = (3, 3, 3, 0), first: int = 11) -> bytes:
    """An event of aggregates of which some, by their sequence number, are broken."""
    body = json.loads(payload(range(first, first + len(sizes)), until=20))
    for record, size in zip(body["Records"], sizes, strict=True):
        data = encode_aggregate([("key", bytes([number])) for number in range(size)])
        if int(record["SequenceNumber"]) in bad:
            data = seal_aggregate(b"\x0a")
        record["Data"] = base64.b64encode(data if size else b"plain").decode()
    return encode_event("SubscribeToShardEvent", json.dumps(body).encode())


@pytest.mark.parametrize(
    ("bad", "spans"),
    [
        ((), []),
        ((11,), [(Cursor(10), Cursor(11))]),
        ((12,), [(Cursor(11), Cursor(12))]),
        ((11, 12), [(Cursor(10), Cursor(11)), (Cursor(11), Cursor(12))]),
        ((13,), [(Cursor(12), Cursor(13))]),
        ((11, 13), [(Cursor(10), Cursor(11)), (Cursor(12), Cursor(13))]),
    ],
)
async def test_a_bad_aggregate_is_a_gap_around_exactly_its_record(
    bad: tuple[int, ...], spans: list[tuple[Cursor, Cursor]]
) -> None:
    (batch,) = await read(damaged(*bad), after=Cursor(10), deaggregator=Deaggregator("gap"))
    assert isinstance(batch, Batch)
    assert [(gap.after, gap.until) for gap in batch.gaps] == spans
    assert [gap.reason for gap in batch.gaps] == [
        f"the aggregated record {number} of {SHARD} has a number that does not end"
        for number in bad
    ]
    parts = [(str(n), sub) for n in (11, 12, 13) if n not in bad for sub in range(3)]
    assert sub_numbers(batch) == [*parts, ("14", 0)]
    assert batch.range == Range(Cursor(10), Cursor(20))


@pytest.mark.fault("Records at a time come to nothing, such as dropped aggregates")
async def test_an_event_of_bad_aggregates_alone_is_progress_with_gaps() -> None:
    body = damaged(11, 12, sizes=[3, 3])
    (batch,) = await read(body, after=Timestamp(5), deaggregator=Deaggregator("gap"))
    assert isinstance(batch, Batch)
    assert (batch.num_records, batch.range) == (0, Range(Timestamp(5), Cursor(20)))
    assert [gap.after for gap in batch.gaps] == [Timestamp(5), Cursor(11)]


async def test_inside_a_record_that_has_become_bad_its_rest_is_the_gap() -> None:
    body = damaged(11, 13)
    (batch,) = await read(body, after=Cursor(11, 1), deaggregator=Deaggregator("gap"))
    assert isinstance(batch, Batch)
    assert [gap.after for gap in batch.gaps] == [Cursor(11, 1), Cursor(12)]
    assert sub_numbers(batch) == [("12", 0), ("12", 1), ("12", 2), ("14", 0)]


async def test_inside_a_record_another_bad_first_record_is_malformed() -> None:
    events, error = await refused(
        damaged(12, first=12), after=Cursor(11, 1), deaggregator=Deaggregator("gap")
    )
    assert events == []
    assert "did not begin with the sub-records 0 to 1" in str(error)


def misplaced(pattern: str, number: int = 11) -> bytes:
    """An event of one aggregate of the KPL; `o` is a sub-record that is not of LEFT."""
    keys = [2**127 if sign == "o" else 0 for sign in pattern]
    data = encode_aggregate([("key", b"x")] * len(pattern), keys)
    body = json.loads(payload([number], until=20))
    body["Records"][0] |= {"Data": base64.b64encode(data).decode(), "PartitionKey": "a"}
    return encode_event("SubscribeToShardEvent", json.dumps(body).encode())


@pytest.mark.parametrize("pattern", ["iiii", "oiii", "iiio", "oiio", "ioio", "oooo"])
@pytest.mark.parametrize("sub", [None, 0, 1, 2, 3])
async def test_a_position_inside_an_aggregate_counts_what_is_of_another_shard(
    pattern: str, sub: int | None
) -> None:
    left = Split("shardId-000000000001", (SHARD.id,))
    deaggregator = Deaggregator()
    await read(event(children=[LEFT]), deaggregator=deaggregator)  # tells the range of LEFT
    after = Cursor(10) if sub is None else Cursor(11, sub)
    (batch,) = await read(misplaced(pattern), after=after, deaggregator=deaggregator, split=left)
    assert isinstance(batch, Batch)
    first = 0 if sub is None else sub + 1
    assert sub_numbers(batch) == [
        ("11", place) for place in range(first, 4) if pattern[place] == "i"
    ]
    assert batch.range == Range(after, Cursor(20))


def broken(frame: bytes) -> bytes:
    return frame[:-1] + bytes([frame[-1] ^ 1])


UNREADABLE = {
    "a checksum": broken(event([6, 7], until=7)),
    "a header": encode_frame({"": "event"}, payload([6, 7], until=7)),
    "its type": encode_frame({":message-type": "surprise"}, payload([6, 7], until=7)),
    "its content": encode_event("SubscribeToShardEvent", b'{"Records": []}'),
}


@pytest.mark.parametrize("what", UNREADABLE)
async def test_a_frame_that_cannot_be_decoded_is_named_as_such(what: str) -> None:
    _, error = await refused(HELLO, UNREADABLE[what], event([8], until=8))
    assert type(error) is DamagedFrameError


@pytest.mark.parametrize("size", [1, 50, 1000])
@pytest.mark.parametrize("what", UNREADABLE)
async def test_a_frame_that_may_be_dropped_is_a_gap_before_the_next_batch(
    what: str, size: int
) -> None:
    body = HELLO + UNREADABLE[what] + event([8, 9], until=9) + event([10], until=10)
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    batch, last = await read(*chunks, after=Cursor(5), droppable=1)
    assert isinstance(batch, Batch)
    assert isinstance(last, Batch)
    assert numbers(batch) == ["8", "9"]
    assert batch.range == Range(Cursor(5), Cursor(9))
    ((after, until),) = [(gap.after, gap.until) for gap in batch.gaps]
    assert (after, until) == (Cursor(5), Cursor(7))
    assert (numbers(last), last.gaps) == (["10"], ())


async def test_before_a_heartbeat_the_gap_reaches_to_its_continuation() -> None:
    (idle,) = await read(UNREADABLE["a checksum"], event(until=9), after=Cursor(5), droppable=1)
    assert isinstance(idle, Batch)
    assert [(gap.after, gap.until) for gap in idle.gaps] == [(Cursor(5), Cursor(9))]


async def test_before_the_end_the_gap_reaches_to_it() -> None:
    body = UNREADABLE["a checksum"], event(children=[LEFT])
    batch, end = await read(*body, after=Cursor(5), droppable=1)
    assert isinstance(batch, Batch)
    assert [(gap.after, gap.until) for gap in batch.gaps] == [(Cursor(5), None)]
    assert batch.range == Range(Cursor(5), Cursor(5))
    assert isinstance(end, End)


async def test_frames_in_a_row_are_one_gap_and_no_more_are_dropped_than_may_be() -> None:
    two = UNREADABLE["a checksum"] * 2
    (batch,) = await read(two, event([8], until=8), after=Cursor(5), droppable=2)
    assert isinstance(batch, Batch)
    assert len(batch.gaps) == 1
    events, error = await refused(two, event([8], until=8), after=Cursor(5), droppable=1)
    assert events == []
    assert isinstance(error, DamagedFrameError)


async def test_behind_an_event_no_frame_is_dropped() -> None:
    body = event([6], until=6), broken(event([7], until=7)), event([8], until=8)
    (batch,), error = await refused(*body, after=Cursor(5), droppable=9)
    assert numbers(batch) == ["6"]
    assert isinstance(error, DamagedFrameError)


@pytest.mark.parametrize("until", [7, None])
async def test_a_dropped_frame_with_nothing_behind_it_ends_nothing(until: int | None) -> None:
    last = event([6, 7], until=until, children=None if until else [LEFT])
    events, error = await refused(HELLO, broken(last), after=Cursor(5), droppable=1)
    assert events == []
    assert type(error) is MalformedEventError
    assert "nothing after a damaged frame, which may have been its end" in str(error)


async def test_behind_a_dropped_frame_one_sign_of_the_end_is_still_none() -> None:
    body = UNREADABLE["a checksum"], event(until=None)
    events, error = await refused(*body, after=Cursor(5), droppable=1)
    assert not any(isinstance(each, End) for each in events)
    assert isinstance(error, UnconfirmedEndError)


@pytest.mark.parametrize("at", [0, 4, 8])
async def test_a_frame_whose_length_is_damaged_is_never_dropped(at: int) -> None:
    frame = bytearray(event([6, 7], until=7))
    frame[at] ^= 1
    events, error = await refused(
        HELLO, bytes(frame), event([8], until=8), after=Cursor(5), droppable=9
    )
    assert events == []
    assert type(error) is MalformedEventError
    assert "it is unknown where the next frame begins" in str(error)


async def test_what_a_readable_event_says_wrongly_is_never_dropped() -> None:
    events, error = await refused(event([5], until=5), after=Cursor(5), droppable=9)
    assert events == []
    assert type(error) is MalformedEventError


async def test_inside_a_record_a_dropped_frame_takes_the_rest_of_it() -> None:
    body = broken(aggregates(3, until=11)), aggregates(2, first=12, until=12)
    (batch,) = await read(*body, after=Cursor(11, 1), droppable=1)
    assert isinstance(batch, Batch)
    assert sub_numbers(batch) == [("12", 0), ("12", 1)]
    assert batch.range == Range(Cursor(11, 1), Cursor(12))
    assert [(gap.after, gap.until) for gap in batch.gaps] == [(Cursor(11, 1), Cursor(11))]


async def test_inside_a_record_that_comes_behind_a_dropped_frame_nothing_is_lost() -> None:
    (batch,) = await read(broken(HELLO), aggregates(3), after=Cursor(11, 1), droppable=1)
    assert isinstance(batch, Batch)
    assert sub_numbers(batch) == [("11", 2)]
    assert batch.gaps == ()


async def test_the_memory_of_a_dropped_frame_is_taken_for_the_next() -> None:
    reserve = Reservations()
    unreadable = encode_event("SubscribeToShardEvent", b"x" * 60)
    following = event([7], until=7, size=10)
    assert (
        len(await read(unreadable, following, after=Cursor(5), droppable=1, reserve=reserve)) == 1
    )
    assert sum(reserve.sizes) == len(payload([7], until=7, size=10))
