"""Read a partition with `decode`, and choose what becomes of records that it fails for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import fanout
from fanout.core.positions import Cursor
from fanout.errors import (
    DecodeFailedError,
    OptionError,
    RetryLaterError,
    SplitFailedError,
)
from fanout.kafka import Cluster, KafkaSource, Security
from fanout.kafka.reading.columns import SCHEMA
from fanout.testing.virtual_time.loop import running_loop
from tests.support.kafka.scripted_cluster import ScriptedCluster, ScriptedSource
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    import pyarrow as pa

    from fanout import BadRecords

PLACES = ["topic", "partition", "offset"]


def cluster_with(records: int) -> ScriptedCluster:
    cluster = ScriptedCluster()
    cluster.log().append(records)
    return cluster


def failing(*bad: int) -> Any:
    def decode(records: pa.RecordBatch) -> pa.RecordBatch:
        if set(bad) & set(records.column("offset").to_pylist()):
            raise ValueError("secret")
        return records.select(PLACES)

    return decode


@in_virtual_time
async def test_the_users_decode_maps_each_batch_in_one_step() -> None:
    source = ScriptedSource(cluster_with(4), decode=lambda records: records.select(PLACES)[1:])
    assert source.schema.names == PLACES
    async with fanout.open(source) as stream:
        batch = await anext(stream)
        assert batch.records.column("offset").to_pylist() == [1, 2, 3]
        assert batch.records.schema == source.schema


@in_virtual_time
async def test_rows_that_the_users_decode_leaves_out_move_the_position() -> None:
    source = ScriptedSource(cluster_with(4), decode=lambda records: records[:0], stop="latest")
    async with fanout.open(source) as stream:
        assert [batch async for batch in stream] == []
        assert stream.statistics().splits["t-0"].position == Cursor(3)


@pytest.mark.fault("The user's decode fails")
@in_virtual_time
async def test_an_error_of_the_users_decode_names_the_partition_and_its_offsets() -> None:
    async with fanout.open(ScriptedSource(cluster_with(4), decode=failing(2))) as stream:
        with pytest.raises(SplitFailedError, match="t-0 from offset 0 to 3") as failed:
            await anext(stream)
    cause = failed.value.__cause__
    assert isinstance(cause, DecodeFailedError)
    assert isinstance(cause.__cause__, ValueError)
    assert "secret" not in str(failed.value)


@in_virtual_time
async def test_bad_records_are_gaps() -> None:
    source = ScriptedSource(cluster_with(4), decode=failing(1, 2), on_bad_record="gap")
    async with fanout.open(source) as stream:
        batch = await anext(stream)
    assert batch.records.column("offset").to_pylist() == [0, 3]
    assert batch.gaps == (
        fanout.Gap(Cursor(0), Cursor(2), "decode failed for 2 of them (ValueError)"),
    )


@in_virtual_time
async def test_a_function_gets_the_bad_records_as_kafka_sent_them() -> None:
    got: list[BadRecords] = []

    async def keep(bad: BadRecords) -> None:
        got.append(bad)

    source = ScriptedSource(cluster_with(4), decode=failing(1, 2), on_bad_record=keep)
    async with fanout.open(source) as stream:
        batch = await anext(stream)
    assert batch.records.column("offset").to_pylist() == [0, 3]
    assert batch.gaps == ()
    (bad,) = got
    assert bad.records.schema == SCHEMA
    assert bad.records.column("offset").to_pylist() == [1, 2]
    assert repr(bad) == "<BadRecords t-0 2 records>"


def test_what_becomes_of_bad_records_is_checked_with_the_source() -> None:
    cluster = Cluster("localhost", security=Security(protocol="PLAINTEXT"))
    with pytest.raises(OptionError, match="on_bad_record is about decode"):
        KafkaSource(cluster=cluster, topics="t", on_bad_record="gap")
    with pytest.raises(OptionError, match="must be 'fail', 'gap' or an async function"):
        KafkaSource(cluster=cluster, topics="t", decode=failing(), on_bad_record="skip")  # type: ignore[arg-type]


@in_virtual_time
async def test_an_outage_in_decode_pauses_a_partition_and_leaves_nothing_out() -> None:
    def decode(records: pa.RecordBatch) -> pa.RecordBatch:
        if records.num_rows and running_loop().time() < 200.0:
            raise RetryLaterError("the registry does not answer")
        return records.select(PLACES)

    cluster = cluster_with(4)
    options: Any = {"decode": decode, "on_bad_record": "gap", "max_retries": 1}
    async with fanout.open(ScriptedSource(cluster, **options)) as stream:
        batch = await anext(stream)
        totals = stream.statistics().totals
    assert batch.records.column("offset").to_pylist() == [0, 1, 2, 3]
    assert (totals.gaps, totals.bad_records, totals.resubscriptions) == (0, 0, {})
    assert 200.0 <= running_loop().time() < 231.0
    asked = [want.offset for request in cluster.fetches for want in request.wanted.values()]
    assert asked[:2] == [0, 4][: len(asked)]  # the same records are decoded again
