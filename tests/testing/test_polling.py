from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from fanout.testing.faults import CutPoll, EmptyPoll, IgnoreCall, RefuseCall
from fanout.testing.kinesis.rules import KinesisRules

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST, SECOND, THIRD = (f"shardId-{number:012}" for number in range(3))
IMPATIENT = Config(retries={"total_max_attempts": 1}, read_timeout=0.2)


def iterator(kinesis: Any, kind: str = "TRIM_HORIZON", *, shard: str = FIRST, **value: Any) -> str:
    answer = kinesis.client.get_shard_iterator(
        StreamARN=kinesis.stream_arn, ShardId=shard, ShardIteratorType=kind, **value
    )
    return str(answer["ShardIterator"])


def poll(kinesis: Any, token: str, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = kinesis.client.get_records(ShardIterator=token, **more)
    return answer


def data(answer: dict[str, Any]) -> list[bytes]:
    return [record["Data"] for record in answer["Records"]]


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(ClientError) as error:
        call()
    return str(error.value.response["Error"]["Code"])


def test_an_answer_goes_on_where_the_one_before_ended(kinesis: Any) -> None:
    kinesis.put(b"a", b"b", b"c")
    first = poll(kinesis, iterator(kinesis), Limit=2)
    second = poll(kinesis, first["NextShardIterator"])
    assert (data(first), data(second)) == ([b"a", b"b"], [b"c"])
    assert first["MillisBehindLatest"] > 0
    assert second["MillisBehindLatest"] == 0


def test_an_idle_shard_answers_with_nothing_and_goes_on(kinesis: Any) -> None:
    answer = poll(kinesis, iterator(kinesis))
    assert (data(answer), answer["MillisBehindLatest"]) == ([], 0)
    kinesis.put(b"a")
    assert data(poll(kinesis, answer["NextShardIterator"])) == [b"a"]


@pytest.mark.parametrize(("kind", "read"), [("AT", [b"b", b"c"]), ("AFTER", [b"c"])])
def test_an_iterator_begins_at_or_after_a_sequence_number(
    kinesis: Any, kind: str, read: list[bytes]
) -> None:
    _, number, _ = kinesis.put(b"a", b"b", b"c")
    token = iterator(kinesis, f"{kind}_SEQUENCE_NUMBER", StartingSequenceNumber=number)
    assert data(poll(kinesis, token)) == read


def test_an_iterator_begins_at_a_time(kinesis: Any) -> None:
    kinesis.put(b"a")
    (record,) = poll(kinesis, iterator(kinesis))["Records"]
    arrived = record["ApproximateArrivalTimestamp"]
    assert data(poll(kinesis, iterator(kinesis, "AT_TIMESTAMP", Timestamp=arrived))) == [b"a"]


@pytest.mark.parametrize("token", ["", "bm8=", "eyJhIjoxfQ=="])
def test_an_iterator_of_somebody_else_is_refused(kinesis: Any, token: str) -> None:
    assert refused(lambda: poll(kinesis, token or "x")) == "InvalidArgumentException"


def test_the_last_answer_of_a_shard_has_no_next_iterator_and_its_children(kinesis: Any) -> None:
    kinesis.put(b"a", b"b")
    kinesis.server.split_shard("orders", FIRST)
    first = poll(kinesis, iterator(kinesis), Limit=1)
    assert "ChildShards" not in first
    last = poll(kinesis, first["NextShardIterator"])
    assert data(last) == [b"b"]
    assert "NextShardIterator" not in last
    assert [child["ShardId"] for child in last["ChildShards"]] == [SECOND, THIRD]
    assert [child["ParentShards"] for child in last["ChildShards"]] == [[FIRST], [FIRST]]


def test_an_iterator_expires(start: Callable[..., Any]) -> None:
    kinesis = start(replace(KinesisRules.fast(), iterator_life=1e-9))
    token = iterator(kinesis)
    assert refused(lambda: poll(kinesis, token)) == "ExpiredIteratorException"
    assert kinesis.server.statistics().violations == {"expired_iterator": 1}


@pytest.fixture
def _stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every call of a test come in the same second."""
    now = time.monotonic()
    monkeypatch.setattr(
        "fanout.testing.kinesis.polling.time", SimpleNamespace(monotonic=lambda: now)
    )


@pytest.mark.usefixtures("_stopped_clock")
def test_a_sixth_poll_of_a_shard_in_a_second_is_refused(start: Callable[..., Any]) -> None:
    kinesis = start(replace(KinesisRules.fast(), polls_per_second=5), shards=2)
    token = iterator(kinesis)
    for _ in range(5):
        poll(kinesis, token)
    assert refused(lambda: poll(kinesis, token)) == "ProvisionedThroughputExceededException"
    assert data(poll(kinesis, iterator(kinesis, shard=SECOND))) == []
    statistics = kinesis.server.statistics()
    assert statistics.violations == {"polled_too_often": 1}
    assert statistics.poll_calls == {FIRST: 6, SECOND: 1}


@pytest.mark.usefixtures("_stopped_clock")
def test_a_sixth_iterator_of_a_shard_in_a_second_is_refused(start: Callable[..., Any]) -> None:
    kinesis = start(replace(KinesisRules.fast(), polls_per_second=5))
    for _ in range(5):
        iterator(kinesis)
    assert refused(lambda: iterator(kinesis)) == "ProvisionedThroughputExceededException"


def test_a_shard_that_returned_too_much_refuses_until_the_average_is_back(
    start: Callable[..., Any],
) -> None:
    kinesis = start(replace(KinesisRules.fast(), polled_bytes_per_second=100))
    kinesis.put(b"x" * 1000)
    answer = poll(kinesis, iterator(kinesis))
    following = answer["NextShardIterator"]
    assert refused(lambda: poll(kinesis, following)) == "ProvisionedThroughputExceededException"
    assert kinesis.server.statistics().violations == {"polled_too_much": 1}


def test_an_answer_is_as_large_as_the_rules_allow(start: Callable[..., Any]) -> None:
    kinesis = start(replace(KinesisRules.fast(), max_poll_records=2, max_poll_bytes=20))
    kinesis.put(b"a", b"b", b"x" * 10, b"y" * 10, b"z" * 30)
    sizes, token = [], iterator(kinesis)
    for _ in range(4):
        answer = poll(kinesis, token)
        sizes.append(len(data(answer)))
        token = answer["NextShardIterator"]
    assert sizes == [2, 1, 1, 1]


def test_a_refused_poll_has_the_status_and_the_code(kinesis: Any) -> None:
    kinesis.server.inject(RefuseCall(action="GetRecords", code="KMSThrottlingException"))
    token = iterator(kinesis)
    assert refused(lambda: poll(kinesis, token)) == "KMSThrottlingException"
    assert data(poll(kinesis, token)) == []


def test_a_refusal_of_iterators_spares_the_records(kinesis: Any) -> None:
    token = iterator(kinesis)
    kinesis.server.inject(RefuseCall(action="GetShardIterator", code="InternalFailure"))
    assert data(poll(kinesis, token)) == []
    assert refused(lambda: iterator(kinesis)) == "InternalFailure"


def test_a_refused_poll_may_be_an_html_page(kinesis: Any) -> None:
    kinesis.server.inject(RefuseCall(action="GetRecords", status=503, html=True))
    token = iterator(kinesis)
    assert refused(lambda: poll(kinesis, token)) == "503"


@pytest.mark.parametrize("action", ["GetRecords", "GetShardIterator"])
def test_an_ignored_call_is_never_answered(kinesis: Any, action: str) -> None:
    token = iterator(kinesis)
    kinesis.server.inject(IgnoreCall(action=action))
    kinesis.client = kinesis.connect(IMPATIENT)
    with pytest.raises(ReadTimeoutError):
        iterator(kinesis) if action == "GetShardIterator" else poll(kinesis, token)


def test_a_cut_poll_breaks_off_inside_its_answer(kinesis: Any) -> None:
    kinesis.put(b"a")
    kinesis.server.inject(CutPoll())
    token = iterator(kinesis)
    with pytest.raises(ConnectionClosedError) as error:
        poll(kinesis, token)
    assert "IncompleteRead" in repr(error.value.kwargs["error"])
    assert data(poll(kinesis, token)) == [b"a"]


def test_an_empty_poll_is_behind_and_goes_on_at_the_same_place(kinesis: Any) -> None:
    kinesis.put(b"a")
    kinesis.server.inject(EmptyPoll())
    answer = poll(kinesis, iterator(kinesis))
    assert data(answer) == []
    assert answer["MillisBehindLatest"] > 0
    assert data(poll(kinesis, answer["NextShardIterator"])) == [b"a"]
