"""Chosen shards: readers that divide a stream read every record once, across reshards too."""

from __future__ import annotations

import json
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from fanout.core.events import Split
from fanout.core.statistics import SplitState
from fanout.errors import OptionError
from fanout.kinesis import KinesisSource
from fanout.kinesis.chosen_shards import ShardChoice
from fanout.spark.dataframe.source_options import source_from_options
from tests.kinesis.test_resharding import Storm
from tests.support.kinesis.reading import Stream, eventually

if TYPE_CHECKING:
    from tests.support.kinesis.reading import Reader

IDS = [f"shardId-{number:012}" for number in range(8)]

modes = pytest.mark.parametrize("mode", ["efo", "polling"])
of = pytest.mark.parametrize


def together(*readers: Reader) -> dict[str, list[str]]:
    """Return what the readers have read; a shard has one of them."""
    logs = [reader.log for reader in readers]
    assert len({shard for log in logs for shard in log}) == sum(map(len, logs))
    return {shard: numbers for log in logs for shard, numbers in log.items()}


@modes
@of("shards", [4])
async def test_chosen_shards_are_read_and_no_other(stream: Stream, mode: Any) -> None:
    for shard in IDS[:4]:
        stream.put(2, shard=shard)
    async with (
        stream.reading(mode=mode, shards=IDS[:1]) as one,
        stream.reading(mode=mode, shards=IDS[1:4], consumer="other") as other,
    ):
        await one.has(2)
        await other.has(6)
    assert together(one, other) == stream.log
    assert set(one.log) == {IDS[0]}


@of("shards", [4])
async def test_children_are_read_by_the_reader_of_their_older_parent(stream: Stream) -> None:
    async with (
        stream.reading(shards=[IDS[0], IDS[2]]) as even,
        stream.reading(shards=[IDS[1], IDS[3]], consumer="other") as odd,
    ):
        stream.server.split_shard("orders", IDS[0])  # 4 and 5
        merged = stream.server.merge_shards("orders", IDS[2], IDS[1])  # 6
        grandchild = stream.server.merge_shards("orders", IDS[5], merged)  # 7
        for shard in (IDS[3], IDS[4], grandchild):
            stream.put(2, shard=shard)
        await even.has(2)
        await odd.has(2)
        await even.until(lambda: even.count + odd.count == 6)
        splits = even.stream.statistics
        await eventually(lambda: splits().splits[IDS[2]].state is SplitState.ENDED)
        # No other one holds a watermark back.
        assert set(splits().splits) == {IDS[number] for number in (0, 2, 4, 5, 7)}
    assert together(even, odd) == stream.log
    assert set(even.log) == {IDS[4], IDS[7]}  # 7 is of 5 and 6, and 5 is of 0
    assert set(odd.log) == {IDS[3]}


@pytest.mark.long
@of("shards", [4])
@of("seed", range(3))
async def test_readers_that_divide_a_stream_read_each_record_once_in_a_storm(
    stream: Stream, seed: int
) -> None:
    storm = Storm(stream, seed, most=8)
    async with AsyncExitStack() as stack:
        readers = [
            await stack.enter_async_context(stream.reading(shards=[shard], consumer=f"c{number}"))
            for number, shard in enumerate(IDS[:4])
        ]
        for _ in range(8):
            stream.put(20)
            storm.reshard()
        stream.put(20)
        for reader in readers:
            await reader.until(lambda: sum(one.count for one in readers) == stream.put_in_all)
    assert together(*readers) == stream.log


@of("shards", [3])
async def test_positions_of_other_shards_are_kept_and_continue_when_they_are_chosen(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    for shard in IDS[:3]:
        stream.put(2, shard=shard)
    async with stream.reading() as every:
        await every.has(6)
        positions = every.stream.positions
    left, _ = stream.server.split_shard("orders", IDS[1])
    for shard in (IDS[0], left):
        stream.put(2, shard=shard)
    async with stream.reading(shards=IDS[1], resume=positions) as second:
        await second.has(2)
        await second.until(lambda: IDS[1] in json.loads(second.stream.positions)["splits"])
        positions = second.stream.positions
    assert set(second.log) == {left}
    assert "these are no longer read, but their positions are kept" in caplog.text
    async with stream.reading(resume=positions) as again:
        await again.has(2)
    assert set(again.log) == {IDS[0]}


@of("shards", [2])
async def test_children_of_expired_shards_are_known_from_the_stored_positions(
    stream: Stream,
) -> None:
    left, right = stream.server.split_shard("orders", IDS[0])
    async with stream.reading(shards=IDS[0]) as reader:
        for shard in (left, right):
            stream.put(1, shard=shard)
        await reader.has(2)
        positions = reader.stream.positions
    grandchild, _ = stream.server.split_shard("orders", left)
    stream.server.expire("orders")  # of the family, the listing has the open ones
    stream.put(1, shard=grandchild)
    async with stream.reading(shards=IDS[0], resume=positions, on_data_loss="earliest") as reader:
        await reader.has(1)
    assert dict(reader.log) == {grandchild: stream.log[grandchild]}


@pytest.mark.long
@of("shards", [2])
async def test_stored_shards_whose_parents_are_forgotten_are_not_left_out(stream: Stream) -> None:
    """The reader has forgotten shards that it has read, as they had expired."""
    left, _ = stream.server.split_shard("orders", IDS[0])
    grandchildren = stream.server.split_shard("orders", left)
    async with stream.reading(shards=IDS[0]) as reader:
        for shard in grandchildren:
            stream.put(1, shard=shard)
        await reader.has(2)
        stored = json.loads(reader.stream.positions)
    del stored["splits"][left]
    stored["splits"].pop(IDS[0], None)
    stream.server.expire("orders")
    with pytest.raises(OptionError, match=f"shards='{IDS[0]}' has expired, .*{grandchildren[0]}"):
        async with stream.open(shards=IDS[0], resume=json.dumps(stored)):
            pass


@of("shards", [2])
@of(
    ("shards_option", "named"),
    [("shardId-000000000009", "shardId-000000000009"), ([IDS[0], "orders"], "orders")],
)
async def test_a_shard_that_is_not_listed_is_an_error_that_lists_what_there_is(
    stream: Stream, shards_option: Any, named: str
) -> None:
    with pytest.raises(OptionError, match=rf"shards='{named}' is no shard .*; it has {IDS[0]}"):
        async with stream.open(shards=shards_option):
            pass


@of(
    ("shards", "sentence"),
    [
        ([], "shards is empty"),
        ([7], "must be the id of a shard"),
        (["a b"], "must be the id of a shard"),
        (["payments/shardId-000000000000"], "must be a shard of orders"),
        (["orders/shardId-000000000000"], "must be a shard of orders"),
    ],
)
def test_what_is_no_id_of_a_shard_is_refused(shards: Any, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        KinesisSource(stream="orders", consumer="etl", shards=shards)


async def test_a_shard_of_one_of_several_streams_has_its_name_before_it(stream: Stream) -> None:
    payments = Stream(stream.server, name="payments")
    for one in (stream, payments):
        one.put(2)
    streams = ["orders", "payments"]
    async with stream.reading(stream=streams, shards=f"payments/{IDS[0]}") as reader:
        await reader.has(2)
    assert dict(reader.log) == {f"payments/{IDS[0]}": payments.log[IDS[0]]}
    async with stream.reading(stream=streams, shards=IDS[0]) as both:
        await both.has(4)
    with pytest.raises(OptionError, match="must be a shard of orders or payments"):
        stream.source(stream=streams, shards=f"other/{IDS[0]}")


def test_a_choice_follows_the_older_parent_alone_or_either() -> None:
    merged = Split("c", ("b", "a"))
    for names, chosen in (({"a"}, [merged]), ({"b"}, [])):
        choice = ShardChoice(names)
        choice.learn([Split("a"), Split("b"), merged])
        assert [split for split in (merged,) if split in choice] == chosen
        either = ShardChoice(names, any_parent=True)
        either.learn([merged])
        assert merged in either


def test_children_in_any_order_are_followed() -> None:
    choice = ShardChoice({"a"})
    family = [Split("d", ("c",)), Split("c", ("b",)), Split("b", ("a",))]
    choice.learn(family)
    assert all(split in choice for split in family)


def test_spark_takes_shards_with_commas_between_them() -> None:
    options = {"source": "kinesis", "stream": "orders", "consumer": "etl"}
    source = source_from_options({**options, "shards": ",".join(IDS[:2])})
    assert isinstance(source, KinesisSource)
    assert source.shards == tuple(IDS[:2])


# Several copies


@pytest.mark.long
async def test_copies_that_take_a_shard_from_each_other_are_warned_of_once(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    async with stream.reading() as one, stream.reading() as other, stream.reading():
        await one.until(lambda: len(one.causes) > 20)
        await other.until(lambda: len(other.causes) > 20)
    warned = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert 1 <= len(warned) <= 3  # once a copy
    assert "another process reads with the consumer etl" in warned[0].getMessage()
    assert "shards=" in warned[0].getMessage()
