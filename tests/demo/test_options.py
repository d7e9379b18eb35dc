from __future__ import annotations

import pytest

from fanout.demo.options import DemoOptions, ServiceName, StorageName
from fanout.errors import OptionError


@pytest.mark.parametrize("records", [0, 999, 1_000_001])
def test_a_number_of_records_out_of_range_is_refused(records: int) -> None:
    with pytest.raises(OptionError, match="between 1,000 and 1,000,000"):
        DemoOptions(records=records)


def test_records_that_would_leave_a_shard_without_any_are_refused() -> None:
    with pytest.raises(OptionError, match="at least 5,000 for 50 shards"):
        DemoOptions(records=4_999, shards=50)


@pytest.mark.parametrize("shards", [0, 51])
def test_a_number_of_shards_out_of_range_is_refused(shards: int) -> None:
    with pytest.raises(OptionError, match="between 1 and 50"):
        DemoOptions(shards=shards)


def test_a_shuffle_needs_kafka() -> None:
    assert DemoOptions(shuffle=True, source=ServiceName.KAFKA).shuffle
    with pytest.raises(OptionError, match="pass source='kafka'"):
        DemoOptions(shuffle=True)


@pytest.mark.parametrize("source", [ServiceName.KINESIS, ServiceName.KAFKA])
def test_the_storage_may_be_s3(source: ServiceName) -> None:
    assert DemoOptions(source=source, storage=StorageName.S3).storage is StorageName.S3
    assert DemoOptions(source=source).storage is StorageName.DISK


@pytest.mark.parametrize("landers", [-1, 9])
def test_a_number_of_landers_out_of_range_is_refused(landers: int) -> None:
    with pytest.raises(OptionError, match=f"landers={landers} must be between 0 and 8"):
        DemoOptions(landers=landers)


@pytest.mark.parametrize("source", [ServiceName.KINESIS, ServiceName.KAFKA])
def test_landers_may_read_kinesis_and_kafka(source: ServiceName) -> None:
    assert DemoOptions(source=source, landers=2).landers == 2


@pytest.mark.parametrize(
    ("source", "shuffle", "storage", "why"),
    [
        (ServiceName.KAFKA_SHARE, False, StorageName.DISK, "a share group locks records"),
        (ServiceName.KINESIS_QUEUE, False, StorageName.DISK, "a queue locks records"),
        (ServiceName.KAFKA, True, StorageName.DISK, "the shuffle of the demo; leave shuffle out"),
        (ServiceName.KAFKA, False, StorageName.S3, "need storage='disk'"),
    ],
)
def test_landers_are_not_for_all_else(
    source: ServiceName, *, shuffle: bool, storage: StorageName, why: str
) -> None:
    with pytest.raises(OptionError, match=f"landers=2 .*{why}"):
        DemoOptions(source=source, shuffle=shuffle, storage=storage, landers=2)


@pytest.mark.parametrize("source", [ServiceName.KINESIS, ServiceName.KAFKA])
def test_a_dataframe_may_read_kinesis_and_kafka(source: ServiceName) -> None:
    assert DemoOptions(source=source, dataframe=True).dataframe
    assert not DemoOptions(source=source).dataframe


@pytest.mark.parametrize(
    ("source", "shuffle", "storage", "landers", "why"),
    [
        (ServiceName.KINESIS, False, StorageName.DISK, 2, "leave landers out"),
        (ServiceName.KAFKA_SHARE, False, StorageName.DISK, 0, "a share group cannot be landed"),
        (ServiceName.KINESIS_QUEUE, False, StorageName.DISK, 0, "a queue cannot be landed"),
        (ServiceName.KAFKA, True, StorageName.DISK, 0, "leave shuffle out"),
        (ServiceName.KAFKA, False, StorageName.S3, 0, "needs storage='disk'"),
    ],
)
def test_a_dataframe_is_not_for_all_else(
    source: ServiceName, *, shuffle: bool, storage: StorageName, landers: int, why: str
) -> None:
    with pytest.raises(OptionError, match=f"dataframe=True .*{why}"):
        DemoOptions(
            source=source, shuffle=shuffle, storage=storage, landers=landers, dataframe=True
        )


@pytest.mark.parametrize(
    ("source", "shuffle"), [(ServiceName.KAFKA, True), (ServiceName.KAFKA_SHARE, False)]
)
def test_s3_is_not_for_a_shuffle_or_a_share_group(source: ServiceName, *, shuffle: bool) -> None:
    with pytest.raises(OptionError, match="source='kafka' without a shuffle"):
        DemoOptions(source=source, shuffle=shuffle, storage=StorageName.S3)


@pytest.mark.parametrize("nodes", [0, 2, 6])
def test_a_cluster_of_which_no_node_may_fail_is_refused(nodes: int) -> None:
    with pytest.raises(OptionError, match=f"nodes={nodes} must be 1, or 3 to 5"):
        DemoOptions(source=ServiceName.KAFKA, nodes=nodes)


def test_nodes_are_those_of_kafka() -> None:
    assert DemoOptions(source=ServiceName.KAFKA_SHARE, nodes=3).nodes == 3
    with pytest.raises(OptionError, match="nodes=3 are those of a cluster of Kafka; pass source="):
        DemoOptions(nodes=3)
