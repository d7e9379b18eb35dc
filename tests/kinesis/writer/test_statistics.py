"""What a writer to Kinesis counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout import Origin, WriterStatistics
from fanout.testing.faults import RefuseCall, RefuseRecords
from tests.support.kinesis.writers import rows, writing

if TYPE_CHECKING:
    from fanout.testing.faults import Fault
    from tests.support.kinesis.reading import Stream

ORDERS = Origin("aws_kinesis", "orders")


@pytest.mark.parametrize("aggregate", [False, True])
async def test_records_bytes_and_calls_are_counted_once_confirmed(
    stream: Stream, *, aggregate: bool
) -> None:
    async with writing(stream, aggregate=aggregate) as writer:
        assert writer.statistics() == WriterStatistics(origin=ORDERS)
        await writer.write(rows(("key", "12345"), ("other", "12345")))
        assert writer.statistics().waiting_bytes == 18
        await writer.flush()
        assert writer.statistics() == WriterStatistics(2, 18, requests=1, origin=ORDERS)


@pytest.mark.parametrize(
    ("fault", "throttled"),
    [
        (RefuseRecords(times=3, code="ProvisionedThroughputExceededException"), 3),
        (RefuseRecords(times=3), 0),
        (RefuseCall(action="PutRecords", code="LimitExceededException", times=3), 3),
        (RefuseCall(action="PutRecords", status=500, code="InternalFailure", times=3), 0),
    ],
)
async def test_what_is_put_again_is_counted_and_what_is_throttled(
    stream: Stream, fault: Fault, throttled: int
) -> None:
    stream.inject(fault)
    async with writing(stream) as writer:
        await writer.write(rows(("a", "1"), ("b", "2")))
        await writer.flush()
        found = writer.statistics()
    assert (found.records, found.requests, found.retries) == (2, 4, 6)
    assert found.throttled == throttled
    assert found.waiting_bytes == 0


async def test_the_name_of_a_stream_comes_from_its_arn(stream: Stream) -> None:
    arn = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
    async with writing(stream, stream=arn) as writer:
        assert writer.statistics().origin == ORDERS
