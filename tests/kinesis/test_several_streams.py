"""Several streams in one source: their shards have the same ids, and each has its own life."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from fanout.core.checkpoint import Checkpoint
from fanout.core.policy import Fatal, Phase
from fanout.core.positions import reaches
from fanout.errors import (
    OptionError,
    PositionError,
    ServiceError,
    SplitFailedError,
    StreamStateError,
)
from fanout.kinesis import KinesisSource
from fanout.kinesis.stream_positions import of_one_stream
from fanout.kinesis.streams_connection import ListingError
from tests.support.kinesis.reading import FIRST, Stream, client, next_second

if TYPE_CHECKING:
    from collections.abc import Sequence


BOTH = ("orders", "payments")
CONSUMER = "arn:aws:kinesis:us-east-1:123456789012:stream/orders/consumer/etl:1"

modes = pytest.mark.parametrize("mode", ["efo", "polling"])


@pytest.fixture
def payments(stream: Stream) -> Stream:
    """A second stream on the same server, whose shards have the ids of the first one's."""
    return Stream(stream.server, name="payments")


def expected(*streams: Stream) -> dict[str, list[str]]:
    return {
        f"{stream.name}/{shard}": numbers
        for stream in streams
        for shard, numbers in stream.log.items()
    }


async def read(where: Stream, count: int, /, **options: Any) -> tuple[dict[str, list[str]], str]:
    """Read until there are so many records; return them by split, and the positions after them."""
    async with where.reading(**options) as reader:
        await reader.has(count)
        return dict(reader.log), reader.stream.positions


def splits_of(positions: str) -> set[str]:
    return set(json.loads(positions)["splits"])


@modes
async def test_shards_of_one_id_in_two_streams_are_two_splits(
    stream: Stream, payments: Stream, mode: str
) -> None:
    stream.put(30)
    payments.put(20)
    async with stream.open(stream=BOTH, mode=mode) as opened:
        rows: list[tuple[str, str, bytes]] = []
        async for batch in opened:
            columns = (batch.records[name].to_pylist() for name in ("stream", "shardId", "data"))
            rows += zip(*columns, strict=True)
            assert {f"{name}/{shard}" for name, shard, _ in rows} <= {
                f"{name}/{FIRST}" for name in BOTH
            }
            if len(rows) == 50:
                break
        statistics = opened.statistics()
    assert sorted(data for name, _, data in rows if name == "orders") == sorted(
        str(n).encode() for n in range(30)
    )
    assert sum(name == "payments" for name, _, _ in rows) == 20
    assert set(statistics.splits) == {f"{name}/{FIRST}" for name in BOTH}
    assert statistics.origin.destination == "orders,payments"


async def test_a_consumer_is_registered_on_each_stream(stream: Stream, payments: Stream) -> None:
    async with stream.open(stream=BOTH, deregister="on_close"):
        with client(stream) as kinesis:
            for one in (stream, payments):
                (consumer,) = kinesis.list_stream_consumers(StreamARN=one.arn)["Consumers"]
                assert consumer["ConsumerName"] == "etl"
    with client(stream) as kinesis:
        for one in (stream, payments):
            assert kinesis.list_stream_consumers(StreamARN=one.arn)["Consumers"] == []


@modes
async def test_each_stream_is_resharded_by_itself(
    stream: Stream, payments: Stream, mode: str
) -> None:
    stream.put(10)
    payments.put(10)
    async with stream.reading(stream=BOTH, mode=mode) as reader:
        await reader.has(20)
        left, right = stream.server.split_shard("payments", FIRST)
        payments.put(5, shard=left)
        payments.put(5, shard=right)
        stream.put(10)
        await reader.has(40)
        known = splits_of(reader.stream.positions)
    assert reader.log == expected(stream, payments)
    assert known == {f"orders/{FIRST}", *(f"payments/{shard}" for shard in (FIRST, left, right))}


@pytest.mark.parametrize("shards", [2])
async def test_a_killed_reader_is_continued_exactly_in_each_stream(
    stream: Stream, payments: Stream
) -> None:
    stream.put(200)
    payments.put(100)
    log, positions = await read(stream, 1, stream=BOTH)
    stream.server.split_shard("payments", FIRST)
    payments.put(50)
    while sum(map(len, log.values())) < 350:
        done = sum(map(len, log.values()))
        more, positions = await read(stream, min(120, 350 - done), stream=BOTH, resume=positions)
        for split, numbers in more.items():
            log.setdefault(split, []).extend(numbers)
    assert log == expected(stream, payments)


@pytest.mark.long
async def test_a_stream_that_is_deleted_is_named_by_the_error(
    stream: Stream, payments: Stream
) -> None:
    stream.put(5)
    payments.put(5)
    async with stream.reading(stream=BOTH) as reader:
        await reader.has(10)
        with client(stream) as kinesis:
            kinesis.delete_stream(StreamName="payments", EnforceConsumerDeletion=True)
        failure = await reader.failed()
    assert isinstance(failure, SplitFailedError | ServiceError)
    assert "payments" in str(failure)


async def test_a_listing_that_fails_names_its_stream(stream: Stream, payments: Stream) -> None:
    async with stream.source(stream=BOTH).connect() as connection:
        with client(stream) as kinesis:
            kinesis.delete_stream(StreamName=payments.name, EnforceConsumerDeletion=True)
        with pytest.raises(ListingError, match="the stream 'payments': ") as raised:
            await connection.splits()
        verdict = await connection.verdict(raised.value, Phase.DISCOVER)
    assert isinstance(verdict, Fatal)


async def test_a_shard_that_expired_is_replaced_by_its_children_in_its_stream(
    stream: Stream, payments: Stream
) -> None:
    stream.put(5)
    payments.put(5)
    _, positions = await read(stream, 10, stream=BOTH)
    payments.put(5)
    left, right = stream.server.split_shard("payments", FIRST)
    stream.server.expire("payments")
    payments.put(3, shard=left)
    log, positions = await read(stream, 3, stream=BOTH, on_data_loss="earliest", resume=positions)
    assert log == {f"payments/{left}": payments.log[left]}
    known = {f"orders/{FIRST}", *(f"payments/{shard}" for shard in (FIRST, left, right))}
    assert splits_of(positions) <= known


async def test_a_stream_that_does_not_exist_is_named_by_the_error(stream: Stream) -> None:
    with pytest.raises(ServiceError, match="the stream 'refunds' cannot be described"):
        async with stream.open(stream=("orders", "refunds")):
            pass


async def test_positions_of_one_stream_are_continued_with_another_one_beside_it(
    stream: Stream, payments: Stream
) -> None:
    stream.put(10)
    log, positions = await read(stream, 10)
    assert set(log) == {FIRST}
    stream.put(10)
    payments.put(10)
    more, positions = await read(stream, 20, stream=BOTH, resume=positions)
    assert more[f"orders/{FIRST}"] == stream.log[FIRST][10:]
    assert more[f"payments/{FIRST}"] == payments.log[FIRST]
    assert splits_of(positions) == {f"{name}/{FIRST}" for name in BOTH}


async def test_a_stream_that_is_added_begins_at_the_start(stream: Stream, payments: Stream) -> None:
    stream.put(10)
    _, positions = await read(stream, 10, stream=["orders"])
    stream.put(5)
    payments.put(10)
    await next_second()
    await next_second()
    async with stream.reading(
        stream=BOTH, start={"orders": "TRIM_HORIZON", "payments": "LATEST"}, resume=positions
    ) as reader:
        await reader.has(5)
        payments.put(5)
        await reader.has(10)
    assert reader.log[f"orders/{FIRST}"] == stream.log[FIRST][10:]
    assert reader.log[f"payments/{FIRST}"] == payments.log[FIRST][10:]


@pytest.mark.long
async def test_a_stream_that_is_read_no_longer_keeps_its_positions(
    stream: Stream, payments: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    stream.put(10)
    payments.put(10)
    _, positions = await read(stream, 20, stream=BOTH)
    stream.put(10)
    payments.put(10)
    with caplog.at_level(logging.WARNING):
        log, positions = await read(stream, 10, stream=["orders"], resume=positions)
    assert log == {f"orders/{FIRST}": stream.log[FIRST][10:]}
    assert f"no longer read, but their positions are kept: payments/{FIRST}" in caplog.text
    log, positions = await read(stream, 10, stream=BOTH, resume=positions)
    assert log == {f"payments/{FIRST}": payments.log[FIRST][10:]}


async def test_positions_that_a_stream_resumed_from_are_acknowledged_by_their_old_names(
    stream: Stream, payments: Stream
) -> None:
    stream.put(10)
    payments.put(10)
    _, alone = await read(stream, 10)
    stored = Checkpoint.from_json(alone)
    async with stream.reading(stream=BOTH, resume=alone) as reader:
        await reader.has(10)
        acknowledged = reader.stream.positions
        # A job that repeats its last batch acknowledges what it has resumed from.
        await reader.stream.acknowledge(stored)
        assert reader.stream.positions == acknowledged
        for wrong in (None, 7, "x", [stored]):
            with pytest.raises(OptionError, match="done must be a batch, what was drained, or a"):
                await reader.stream.acknowledge(wrong)  # type: ignore[arg-type]
        other = Checkpoint(stored.source, {})
        with pytest.raises(StreamStateError, match="these are positions of kinesis:arn"):
            await reader.stream.acknowledge(other)


async def test_positions_of_other_streams_are_refused(stream: Stream, payments: Stream) -> None:
    payments.put(1)
    _, positions = await read(payments, 1)
    with pytest.raises(PositionError, match=r"belong to kinesis:.*payments.* not to .*orders"):
        async with stream.open(stream=["orders"], resume=positions):
            pass


@pytest.mark.usefixtures("payments")
async def test_one_stream_does_not_continue_positions_of_several(stream: Stream) -> None:
    stream.put(1)
    _, positions = await read(stream, 1, stream=BOTH)
    with pytest.raises(PositionError, match="resume them with the source that wrote them"):
        async with stream.open(resume=positions):
            pass


@pytest.mark.long
async def test_positions_of_a_stream_that_was_replaced_are_refused(
    stream: Stream, payments: Stream
) -> None:
    payments.put(1)
    _, positions = await read(stream, 1, stream=BOTH)
    with client(stream) as kinesis:
        kinesis.delete_stream(StreamName="payments", EnforceConsumerDeletion=True)
    Stream(stream.server, name="payments")
    with pytest.raises(PositionError, match=r"that was deleted: .*/payments was"):
        async with stream.open(stream=BOTH, resume=positions):
            pass


async def test_positions_of_several_streams_have_those_of_each(
    stream: Stream, payments: Stream
) -> None:
    stream.put(3)
    payments.put(4)
    _, alone = await read(stream, 3)
    _, both = await read(stream, 7, stream=BOTH)
    async with stream.source().connect() as connection:
        described: Any = connection
        found = of_one_stream(Checkpoint.from_json(both), described.stream)
    expected = Checkpoint.from_json(alone)
    assert found.source == expected.source
    assert found.splits.keys() == expected.splits.keys()
    assert reaches(found.splits[FIRST].position, expected.splits[FIRST].position)


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        ({"orders": "1"}, r"start\['orders'\] is a place in one shard; name the shard"),
        ({"orders": "LATEST"}, f"start names no position for payments/{FIRST}"),
        ({"refunds": "LATEST", "*": "LATEST"}, "start names what is not listed.*refunds"),
    ],
)
@pytest.mark.usefixtures("payments")
async def test_a_start_that_fits_no_streams_is_refused(
    stream: Stream, start: dict[str, str], sentence: str
) -> None:
    with pytest.raises(OptionError, match=sentence):
        async with stream.open(stream=BOTH, start=start):
            pass


@pytest.mark.parametrize(
    ("streams", "options", "sentence"),
    [
        ((), {}, "stream names no stream"),
        (("orders", "or ders"), {}, "'or ders' is neither a stream's name"),
        (("orders", 1), {}, "a string or a sequence of strings"),
        (("orders", "orders"), {}, "stream names 'orders' twice"),
        (
            ("orders", "arn:aws:kinesis:us-east-1:123456789012:stream/orders"),
            {},
            "stream names 'orders' twice",
        ),
        (BOTH, {"consumer": CONSUMER}, "registered on the stream .*orders, not on payments"),
    ],
)
def test_streams_that_cannot_be_read_together_are_refused(
    streams: Sequence[str], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(OptionError, match=sentence):
        KinesisSource(**{"stream": streams, "consumer": "etl"} | options)


async def test_decode_is_called_with_the_records_of_all_streams(
    stream: Stream, payments: Stream
) -> None:
    stream.put(3)
    payments.put(4)
    names: list[str] = []

    def decode(records: Any) -> Any:
        names.extend(records["stream"].to_pylist())
        return records.drop_columns(["stream"])

    await read(stream, 7, stream=BOTH, decode=decode)
    assert sorted(names) == ["orders"] * 3 + ["payments"] * 4


def test_a_source_of_several_streams_can_be_compared_and_hashed() -> None:
    one, other = (KinesisSource(stream=list(BOTH), consumer="etl") for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one.stream == BOTH
