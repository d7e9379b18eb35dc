from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from botocore.config import Config
from botocore.eventstream import ChecksumMismatch
from botocore.exceptions import ClientError, EventStreamError, ReadTimeoutError
from urllib3.exceptions import ProtocolError
from urllib3.exceptions import ReadTimeoutError as StreamTimeoutError

from fanout.testing.faults import (
    CorruptFrame,
    CutConnection,
    EndEarly,
    GoAway,
    HalfAnEnd,
    IgnoreSubscribe,
    RaiseInStream,
    RefuseCall,
    RefuseSubscribe,
    Stall,
)

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


def test_a_cut_breaks_off_inside_a_frame(kinesis: Any) -> None:
    kinesis.server.inject(CutConnection())
    with pytest.raises(ProtocolError):
        next(kinesis.subscribe())


def test_events_before_the_fault_arrive(kinesis: Any) -> None:
    kinesis.server.inject(CutConnection(event=2))
    kinesis.put(b"a")
    events = kinesis.subscribe()
    assert [record["Data"] for record in next(events)["Records"]] == [b"a"]
    with pytest.raises(ProtocolError):
        next(events)


def test_a_goaway_closes_the_connection_after_the_event(kinesis: Any) -> None:
    kinesis.server.inject(GoAway())
    kinesis.put(b"a")
    events = kinesis.subscribe()
    assert [record["Data"] for record in next(events)["Records"]] == [b"a"]
    with pytest.raises(ProtocolError):
        next(events)


def test_an_early_end_is_a_clean_one(kinesis: Any) -> None:
    kinesis.server.inject(EndEarly(event=2))
    assert ["ChildShards" in event for event in kinesis.subscribe()] == [False]


@pytest.mark.parametrize("checksum", ["prelude", "message"])
def test_a_corrupt_frame_fails_its_checksum(kinesis: Any, checksum: Any) -> None:
    kinesis.server.inject(CorruptFrame(checksum=checksum))
    with pytest.raises(ChecksumMismatch):
        next(kinesis.subscribe())


def test_an_exception_in_the_stream_has_its_code(kinesis: Any) -> None:
    kinesis.server.inject(RaiseInStream(code="KMSThrottlingException", message="slow down"))
    with pytest.raises(EventStreamError, match=r"KMSThrottlingException.*slow down"):
        next(kinesis.subscribe())


def test_a_stall_holds_even_heartbeats_back(kinesis: Any) -> None:
    kinesis.server.inject(Stall(seconds=0.4))
    begin = time.monotonic()
    next(kinesis.subscribe())
    assert time.monotonic() - begin >= 0.4


def test_a_stall_without_a_time_lasts_until_the_client_leaves(kinesis: Any) -> None:
    kinesis.server.inject(Stall(times=5))
    # The client makes the call again where it is not answered in time.
    kinesis.client = kinesis.connect(Config(read_timeout=1, retries={"total_max_attempts": 5}))
    with pytest.raises(StreamTimeoutError):
        next(kinesis.subscribe())


def test_a_refusal_has_its_status_and_code(kinesis: Any) -> None:
    fault = RefuseSubscribe(status=400, code="LimitExceededException", message="slow down")
    kinesis.server.inject(fault)
    with pytest.raises(ClientError, match=r"LimitExceededException.*slow down") as error:
        kinesis.subscribe()
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


def test_a_refusal_can_be_a_web_page(kinesis: Any) -> None:
    kinesis.server.inject(RefuseSubscribe(status=503, html=True))
    with pytest.raises(ClientError) as error:
        kinesis.subscribe()
    metadata = error.value.response["ResponseMetadata"]
    assert (metadata["HTTPStatusCode"], metadata["HTTPHeaders"]["content-type"]) == (
        503,
        "text/html",
    )


def test_any_call_can_be_refused(kinesis: Any) -> None:
    kinesis.server.inject(RefuseCall(action="ListShards", message="not you"))
    with pytest.raises(ClientError, match=r"AccessDeniedException.*ListShards.*not you") as error:
        kinesis.client.list_shards(StreamName="orders")
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert len(kinesis.client.list_shards(StreamName="orders")["Shards"]) == 1


def test_a_call_can_stay_without_an_answer(kinesis: Any) -> None:
    kinesis.server.inject(IgnoreSubscribe())
    kinesis.client = kinesis.connect(Config(read_timeout=0.2, retries={"total_max_attempts": 1}))
    with pytest.raises(ReadTimeoutError):
        kinesis.subscribe()


def test_a_refused_call_takes_nothing_over(kinesis: Any) -> None:
    events = kinesis.subscribe()
    kinesis.server.inject(RefuseSubscribe())
    with pytest.raises(ClientError):
        kinesis.subscribe()
    assert next(events)["Records"] == []


def test_the_subscription_after_a_fault_is_whole(kinesis: Any) -> None:
    kinesis.server.inject(CutConnection())
    kinesis.put(b"a")
    with pytest.raises(ProtocolError):
        next(kinesis.subscribe())
    assert [record["Data"] for record in next(kinesis.subscribe())["Records"]] == [b"a"]


def test_a_fault_of_another_shard_does_not_strike(start: Callable[..., Any]) -> None:
    kinesis = start(shards=2)
    kinesis.server.inject(EndEarly(shard=SECOND))
    next(kinesis.subscribe(shard=FIRST))
    assert list(kinesis.subscribe(shard=SECOND)) == []


def test_the_statistics_count_faults_that_struck(kinesis: Any) -> None:
    kinesis.server.inject(EndEarly())
    assert kinesis.server.statistics().faults == {}
    list(kinesis.subscribe())
    assert kinesis.server.statistics().faults == {"EndEarly": 1}


@pytest.mark.parametrize("event", [1, 2])
def test_a_shard_can_be_left_without_a_continuation(kinesis: Any, event: int) -> None:
    kinesis.server.inject(HalfAnEnd(event=event))
    kinesis.put(b"a")
    seen = [next(events := kinesis.subscribe()), next(events)]
    assert [entry["Data"] for entry in seen[0]["Records"]] == [b"a"]
    assert "ChildShards" not in seen[event - 1]
    assert "ContinuationSequenceNumber" not in seen[event - 1]
    assert "ContinuationSequenceNumber" in seen[2 - event]


@pytest.mark.parametrize("closed", [True, False])
def test_child_shards_can_come_with_a_continuation(kinesis: Any, closed: bool) -> None:  # noqa: FBT001
    if closed:
        kinesis.server.split_shard("orders", FIRST)
    kinesis.server.inject(HalfAnEnd(sign="children"))
    event = next(kinesis.subscribe())
    assert len(event["ChildShards"]) == (2 if closed else 1)
    assert event["ContinuationSequenceNumber"].isdigit()
