"""The service's clock: LATEST is pinned to the Date header, and compared with arrival times."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fanout.kinesis.aws.api import KinesisClient
    from tests.conformance.service import Service


@pytest.mark.fault("The clock of the Date header is the one that stamps records")
async def test_the_date_header_is_the_clock_that_stamps_records(
    service: Service, kinesis: KinesisClient
) -> None:
    key = service.key()
    before = (await kinesis.describe_stream()).server_time
    (number,) = await service.put(key, b"now")
    after = (await kinesis.describe_stream()).server_time
    async with service.subscribe(
        kinesis, "AT_SEQUENCE_NUMBER", SequenceNumber=number
    ) as subscription:
        ((record,), _) = await subscription.records(key, 1)
    # The header is in whole seconds, cut off.
    assert before <= record["approximateArrivalTimestamp"] < after + timedelta(seconds=1)


async def test_a_record_put_after_the_date_was_read_comes_from_that_time_on(
    service: Service, kinesis: KinesisClient
) -> None:
    key = service.key()
    pinned = (await kinesis.describe_stream()).server_time
    await service.put(key, b"first", b"second")
    async with service.subscribe(
        kinesis, "AT_TIMESTAMP", Timestamp=pinned.timestamp()
    ) as subscription:
        records, _ = await subscription.records(key, 2)
    assert [record["data"] for record in records] == [b"first", b"second"]
