"""Readers whose shard, consumer, stream or records are gone."""

from __future__ import annotations

import asyncio
import math
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import fanout
from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.events import Split
from fanout.core.positions import Cursor
from fanout.errors import SplitFailedError
from fanout.testing.faults import CutConnection, EndEarly, HalfAnEnd, RaiseInStream, RefuseSubscribe
from fanout.testing.kinesis.rules import KinesisRules
from tests.support.kinesis.reading import FIRST, Stream, client, eventually

if TYPE_CHECKING:
    from typing import Literal

SECOND, THIRD = (f"shardId-{number:012}" for number in (1, 2))
NOT_FOUND = RefuseSubscribe(status=400, code="ResourceNotFoundException", times=99)
REFUSED = RefuseSubscribe(status=400, code="InvalidArgumentException")

small_events = pytest.mark.parametrize(
    "rules", [replace(KinesisRules.fast(), max_event_records=2)], ids=["2 records an event"]
)


def consumers(stream: Stream) -> list[str]:
    with client(stream) as kinesis:
        listed = kinesis.list_stream_consumers(StreamARN=stream.arn)
    return [consumer["ConsumerARN"] for consumer in listed["Consumers"]]


def deregister(stream: Stream) -> None:
    with client(stream) as kinesis:
        kinesis.deregister_stream_consumer(StreamARN=stream.arn, ConsumerName="etl")


async def read_a_part(stream: Stream, records: int) -> str:
    """Read so many records, and return the positions after them."""
    async with stream.open() as opened:
        taken = 0
        while taken < records:
            batch = await anext(opened)
            taken += batch.num_records
            await opened.acknowledge(batch)
        return opened.positions


def sequence(positions: str) -> int:
    position = Checkpoint.from_json(positions).splits[FIRST].position
    assert isinstance(position, Cursor)
    return position.sequence


@pytest.mark.fault("The service does not find what is subscribed to")
@pytest.mark.fault("A shard has expired with records that were not read")
@pytest.mark.fault("The shard has expired, its consumer was deregistered, or the stream deleted")
@small_events
async def test_a_shard_that_expired_before_it_was_read_ends_the_stream_with_its_name(
    stream: Stream,
) -> None:
    stream.put(6)
    saved = await read_a_part(stream, 2)
    stream.server.split_shard("orders", FIRST)
    stream.server.expire("orders")
    async with stream.reading(resume=saved) as reader:
        failure = str(await reader.failed())
    assert failure.startswith(f"{FIRST} cannot go on: ")
    assert "past the stream's retention, with all that came after sequence number " in failure
    assert str(sequence(saved)) in failure
    assert "on_data_loss='earliest'" in failure
    assert "start anew, without the stored position" in failure


@pytest.mark.fault("A shard has expired with records that were not read")
@small_events
async def test_a_shard_that_expired_is_a_counted_gap_where_that_is_allowed(stream: Stream) -> None:
    stream.put(6)
    saved = await read_a_part(stream, 2)
    stream.server.split_shard("orders", FIRST)
    stream.server.expire("orders")
    stream.log.clear()
    stream.put(6)
    async with stream.reading(resume=saved, on_data_loss="earliest") as reader:
        await reader.has(6)
        await reader.until(lambda: reader.stream.statistics().gaps == 1)
    assert reader.log == stream.log


@pytest.mark.fault("A shard has expired with records that were not read")
async def test_a_shard_that_expired_after_it_was_read_to_its_end_is_finished(
    stream: Stream,
) -> None:
    stream.put(3)
    stream.server.split_shard("orders", FIRST)
    with client(stream) as kinesis:
        parent = kinesis.list_shards(StreamName="orders")["Shards"][0]
    end = int(parent["SequenceNumberRange"]["EndingSequenceNumber"])
    identity = Checkpoint.from_json(await fanout.resolve_start(stream.source())).source
    stored = {FIRST: SplitPosition(Split(FIRST), Cursor(end))}
    stream.inject(RefuseSubscribe(shard=FIRST, times=5))
    async with stream.reading(resume=Checkpoint(identity, stored).to_json()) as reader:
        await reader.until(lambda: reader.causes)
        stream.server.expire("orders")
        stream.log.clear()
        stream.put(6)
        await reader.has(6)
        assert reader.stream.statistics().gaps == 0
    assert reader.log == stream.log


@pytest.mark.fault("The shard has expired, its consumer was deregistered, or the stream deleted")
@pytest.mark.parametrize("shards", [4])
async def test_a_consumer_that_somebody_deregistered_is_registered_again_once_for_all_shards(
    stream: Stream,
) -> None:
    stream.put(20)
    async with stream.reading(deregister="on_close") as reader:
        await reader.has(20)
        before = consumers(stream)
        await asyncio.to_thread(deregister, stream)
        stream.put(20)
        await reader.has(40)
        after = consumers(stream)
    assert reader.log == stream.log
    assert set(reader.kinds) == {"ResourceNotFoundException"}
    assert len(after) == 1
    assert after != before
    assert consumers(stream) == []


@pytest.mark.fault("The shard has expired, its consumer was deregistered, or the stream deleted")
async def test_a_consumer_that_was_given_by_its_arn_and_is_gone_ends_the_stream(
    stream: Stream,
) -> None:
    with client(stream) as kinesis:
        answer = kinesis.register_stream_consumer(StreamARN=stream.arn, ConsumerName="etl")
    arn = answer["Consumer"]["ConsumerARN"]
    stream.put(3)
    async with stream.reading(consumer=arn) as reader:
        await reader.has(3)
        await asyncio.to_thread(deregister, stream)
        failure = await reader.failed()
    assert f"the consumer {arn} is gone: it was deregistered" in str(failure)
    assert consumers(stream) == []


@pytest.mark.fault("The shard has expired, its consumer was deregistered, or the stream deleted")
async def test_a_stream_that_was_deleted_ends_the_reading_with_its_name(stream: Stream) -> None:
    stream.put(3)
    with client(stream) as kinesis:
        async with stream.reading(discovery_interval=60) as reader:
            await reader.has(3)
            await asyncio.to_thread(
                kinesis.delete_stream, StreamName="orders", EnforceConsumerDeletion=True
            )
            failure = await reader.failed()
    assert "the stream 'orders' is gone: it was deleted" in str(failure)


@pytest.mark.fault("The shard has expired, its consumer was deregistered, or the stream deleted")
@pytest.mark.parametrize("discovery", [0.05, 60], ids=["by discovery", "by the shard"])
async def test_a_stream_that_replaces_the_one_that_is_read_is_not_read(
    stream: Stream, discovery: float
) -> None:
    stream.put(3)
    with client(stream) as kinesis:
        async with stream.reading(discovery_interval=discovery) as reader:
            await reader.has(3)
            kinesis.delete_stream(StreamName="orders", EnforceConsumerDeletion=True)
            stream.server.create_stream("orders")
            stream.server.put_records("orders", [("new", b"new")])
            failure = await reader.failed()
    assert "the stream was deleted, and another one was created by its name" in str(failure)
    assert reader.count == 3


@pytest.mark.fault("The service does not find what is subscribed to")
async def test_a_not_found_while_all_is_there_passes(stream: Stream) -> None:
    stream.put(3)
    stream.inject(
        RaiseInStream(code="ResourceNotFoundException"), replace(NOT_FOUND, call=2, times=3)
    )
    async with stream.reading() as reader:
        await reader.has(3)
    assert reader.log == stream.log
    assert set(reader.kinds) == {"ResourceNotFoundException"}


@pytest.mark.fault("The service does not find what is subscribed to")
async def test_a_not_found_that_stays_while_all_is_there_ends_the_stream(stream: Stream) -> None:
    stream.inject(NOT_FOUND)
    async with stream.reading() as reader:
        failure = await reader.failed()
    assert "the same error came 10 times at one position" in str(failure)
    assert "the stream, its consumer and the shard are all there" in str(failure)
    assert stream.server.statistics().faults == {"RefuseSubscribe": 10}


@pytest.mark.fault("A stored position has expired")
@small_events
async def test_records_that_expired_before_they_were_read_end_the_stream_with_the_number(
    stream: Stream,
) -> None:
    stream.put(6)
    saved = await read_a_part(stream, 2)
    stream.server.expire("orders")
    stream.put(6)
    async with stream.reading(resume=saved) as reader:
        failure = str(await reader.failed())
    assert re.match(rf"{FIRST} cannot go on: .*InvalidArgumentException", failure)
    assert f"what came after sequence number {sequence(saved)} is past the stream's" in failure
    assert "on_data_loss='earliest'" in failure
    assert "start anew, without the stored position" in failure
    assert reader.count == 0


@pytest.mark.fault("A stored position has expired")
@small_events
async def test_records_that_expired_are_a_measured_gap_where_that_is_allowed(
    stream: Stream,
) -> None:
    stream.put(6)
    saved = await read_a_part(stream, 2)
    await asyncio.sleep(0.05)
    stream.server.expire("orders")
    stream.log.clear()
    stream.put(6)
    gaps: list[fanout.Gap] = []
    left = 6
    async with stream.open(resume=saved, on_data_loss="earliest") as opened:
        while left:
            batch = await anext(opened)
            left -= batch.num_records
            gaps += batch.gaps
        statistics = opened.statistics().splits[FIRST]
    (gap,) = gaps
    assert gap.after == Cursor(sequence(saved))
    assert f"after sequence number {sequence(saved)} is past the stream's retention" in gap.reason
    assert statistics.gaps == 1
    assert 0.05 <= statistics.gap_seconds < 10


@small_events
@pytest.mark.parametrize("mode", ["efo", "polling"])
async def test_a_shard_that_is_empty_behind_a_gap_is_read_on(
    stream: Stream, mode: Literal["efo", "polling"]
) -> None:
    stream.put(6)
    saved = await read_a_part(stream, 2)
    stream.server.expire("orders")
    stream.log.clear()
    opening = stream.open(resume=saved, on_data_loss="earliest", mode=mode)
    async with opening as opened, asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(opened.drain(max_records=2, first_wait=math.inf))
        await eventually(lambda: reading.done() or opened.statistics().gaps)
        stream.put(2)
    numbers = [batch.records.column("sequenceNumber") for batch in reading.result().batches]
    assert [number.as_py() for column in numbers for number in column] == stream.log[FIRST]


@pytest.mark.parametrize("shards", [3])
async def test_a_retention_that_shrank_while_nobody_read_is_a_gap_in_each_shard(
    stream: Stream,
) -> None:
    stream.put(30)
    async with stream.reading() as reader:
        await reader.has(30)
        saved = reader.stream.positions
    for shard in (FIRST, SECOND, THIRD):
        stream.put(3, shard=shard)
    stream.server.split_shard("orders", SECOND)
    stream.put(30)
    stream.server.expire("orders")
    stream.log.clear()
    stream.put(30)
    async with stream.reading(resume=saved, on_data_loss="earliest") as reader:
        await reader.has(30)
        # The records of the closed shard's children come after its own gap.
        await reader.until(lambda: reader.stream.statistics().gaps == 3)
    assert reader.log == stream.log


@pytest.mark.fault("The retention is shortened")
async def test_nothing_is_lost_where_only_what_was_read_has_expired(stream: Stream) -> None:
    stream.put(6)
    saved = await read_a_part(stream, 6)
    stream.server.expire("orders")
    stream.log.clear()
    stream.put(6)
    async with stream.reading(resume=saved) as reader:
        await reader.has(6)
    assert reader.log == stream.log


@pytest.mark.fault("A position expires later, while its reader is slow")
@pytest.mark.fault("The retention is shortened")
@pytest.mark.parametrize("on_data_loss", ["fail", "earliest"])
@small_events
async def test_records_that_expire_while_their_reader_is_slow_are_never_skipped_in_silence(
    stream: Stream, on_data_loss: Literal["fail", "earliest"]
) -> None:
    stream.put(6)
    stream.inject(EndEarly(event=2))
    async with stream.open(on_data_loss=on_data_loss) as opened:
        first = await anext(opened)
        # As after a shorter retention period: the other four were never sent.
        stream.server.expire("orders")
        stream.put(2)
        if on_data_loss == "fail":
            with pytest.raises(SplitFailedError, match=r"is past the stream's retention"):
                await anext(opened)
        else:
            second = await anext(opened)
            assert [gap.after for gap in second.gaps] == [first.range.until]
            numbers = second.records.column("sequenceNumber").to_pylist()
            assert numbers == stream.log[FIRST][6:]


@pytest.mark.fault("Another error comes at a stored position")
@pytest.mark.parametrize(
    "code", ["InternalFailure", "LimitExceededException", "ResourceInUseException"]
)
@small_events
async def test_another_error_at_a_stored_position_skips_nothing(stream: Stream, code: str) -> None:
    stream.put(6)
    saved = await read_a_part(stream, 2)
    stream.inject(RefuseSubscribe(status=400, code=code, times=3))
    async with stream.reading(resume=saved, on_data_loss="earliest") as reader:
        await reader.has(4)
        assert reader.stream.statistics().gaps == 0
    assert reader.log[FIRST] == stream.log[FIRST][2:]
    assert reader.kinds == [code] * 3


@pytest.mark.fault("A stored position has expired")
@small_events
async def test_a_position_that_is_refused_without_having_expired_repeats_nothing(
    stream: Stream,
) -> None:
    stream.put(6)
    stream.inject(CutConnection(event=2), replace(REFUSED, call=2))
    async with stream.reading(on_data_loss="earliest") as reader:
        failure = await reader.failed()
    assert "still has older records, so nothing has expired" in str(failure)
    assert reader.log[FIRST] == stream.log[FIRST][: reader.count]


@pytest.mark.parametrize("shards", [2])
@pytest.mark.parametrize("mode", ["efo", "polling"])
@pytest.mark.parametrize(
    ("on_data_loss", "sentence"),
    [
        ("fail", "past the stream's retention, unless the number is one of another shard; "),
        ("earliest", "nothing has expired: if the number is one of another shard, correct the st"),
    ],
)
async def test_a_number_of_another_shard_is_not_only_called_expired(
    stream: Stream, mode: str, on_data_loss: str, sentence: str
) -> None:
    second = "shardId-000000000001"
    stream.put(1, shard=FIRST)
    stream.put(1, shard=second)
    start = {FIRST: stream.log[second][0], "*": "LATEST"}
    async with stream.reading(mode=mode, on_data_loss=on_data_loss, start=start) as reader:
        failure = await reader.failed()
    assert sentence in str(failure)
    assert FIRST not in reader.log


@pytest.mark.parametrize("on_data_loss", ["fail", "earliest"])
async def test_a_number_of_another_stream_is_never_taken_for_one_that_expired(
    stream: Stream, on_data_loss: str
) -> None:
    stream.put(2)
    message = (
        "StartingSequenceNumber 1 used in GetShardIterator on shard shardId-000000000000 in stream "
        "orders under account 123456789012 is invalid because it did not come from this stream."
    )
    stream.inject(replace(REFUSED, message=message))
    start = {FIRST: stream.log[FIRST][0]}
    async with stream.reading(on_data_loss=on_data_loss, start=start) as reader:
        failure = await reader.failed()
    assert "is of another stream: correct the start, or start anew" in str(failure)
    assert reader.count == 0


@pytest.mark.parametrize("on_data_loss", ["fail", "earliest"])
async def test_a_horizon_that_is_refused_ends_the_stream(stream: Stream, on_data_loss: str) -> None:
    stream.inject(REFUSED)
    async with stream.reading(on_data_loss=on_data_loss) as reader:
        failure = await reader.failed()
    assert "InvalidArgumentException" in str(failure)
    assert reader.causes == []


@pytest.mark.parametrize("on_data_loss", ["fail", "earliest"])
async def test_a_number_from_before_the_shard_is_not_taken_for_one_that_has_expired(
    stream: Stream, on_data_loss: str
) -> None:
    async with stream.reading(start={FIRST: "42"}, on_data_loss=on_data_loss) as reader:
        failure = await reader.failed()
    assert "sequence number 42 is not one of this shard's, which begins at" in str(failure)


@pytest.mark.fault("A restart exactly at the end of a shard")
async def test_a_number_beyond_the_end_of_a_closed_shard_is_its_end(stream: Stream) -> None:
    stream.server.split_shard("orders", FIRST)
    stream.put(3)
    start = {FIRST: "9" * 60, "*": "TRIM_HORIZON"}
    async with stream.reading(start=start) as reader:
        await reader.has(3)
        assert reader.stream.statistics().gaps == 0
    assert reader.log == stream.log


@pytest.mark.fault("A start lies in the future")
async def test_a_start_just_ahead_of_the_clock_is_waited_for(stream: Stream) -> None:
    stream.put(3)
    stream.inject(replace(REFUSED, times=2))
    start = datetime.now(UTC) + timedelta(seconds=1)
    async with stream.reading(start=start) as reader:
        await reader.until(lambda: len(reader.causes) >= 2)
        await eventually(lambda: datetime.now(UTC) > start)
        stream.log.clear()
        stream.put(3)
        await reader.has(3)
    assert reader.log == stream.log


@pytest.mark.fault("A start lies in the future")
async def test_a_start_far_ahead_of_the_clock_ends_the_stream(stream: Stream) -> None:
    async with stream.reading(start=datetime.now(UTC) + timedelta(hours=1)) as reader:
        failure = await reader.failed()
    assert re.search(r"the start is 3\d\d\d s ahead of the service's clock", str(failure))


@pytest.mark.fault("A shard ends by one of the two signs alone")
@pytest.mark.long
@small_events
@pytest.mark.parametrize("sign", ["no_continuation", "children"])
@pytest.mark.parametrize("event", [1, 2, 3, 4])
async def test_one_sign_of_the_end_of_a_closed_shard_loses_nothing(
    stream: Stream, event: int, sign: Literal["no_continuation", "children"]
) -> None:
    stream.put(5)
    stream.server.split_shard("orders", FIRST)
    stream.put(5)
    stream.inject(HalfAnEnd(sign=sign, shard=FIRST, event=event, times=2))
    async with stream.reading() as reader:
        await reader.has(10)
        assert reader.stream.statistics().gaps == 0
    assert reader.log == stream.log
    shards = [*dict.fromkeys(reader.order)]
    assert reader.order == sorted(reader.order, key=lambda shard: shard != FIRST)
    assert shards[0] == FIRST


@pytest.mark.fault("A shard ends by one of the two signs alone")
@pytest.mark.parametrize("sign", ["no_continuation", "children"])
async def test_a_shard_that_never_sends_both_signs_ends_where_the_listing_confirms_it(
    stream: Stream, sign: Literal["no_continuation", "children"]
) -> None:
    stream.put(5)
    stream.server.split_shard("orders", FIRST)
    stream.put(5)
    stream.inject(HalfAnEnd(sign=sign, shard=FIRST, event=None, times=99))
    async with stream.reading() as reader:
        await reader.has(10)
        await reader.until(lambda: reader.stream.statistics().splits[FIRST].state.name == "ENDED")
    assert reader.log == stream.log


@pytest.mark.fault("A shard ends by one of the two signs alone")
@pytest.mark.parametrize("sign", ["no_continuation", "children"])
async def test_one_sign_of_an_end_is_not_believed_of_an_open_shard(
    stream: Stream, sign: Literal["no_continuation", "children"]
) -> None:
    stream.put(3)
    stream.inject(HalfAnEnd(sign=sign))
    async with stream.reading() as reader:
        await reader.until(lambda: reader.causes)
        stream.put(3)
        await reader.has(6)
    assert reader.log == stream.log
    assert reader.kinds == ["UnconfirmedEndError"]


async def test_an_open_shard_that_keeps_saying_half_an_end_ends_the_stream(stream: Stream) -> None:
    stream.put(3)
    stream.inject(HalfAnEnd(times=99))
    async with stream.reading() as reader:
        failure = await reader.failed()
    assert "the same error came 3 times at one position; the shard is listed as open" in str(
        failure
    )
    assert reader.log == stream.log
