"""Puts of a client: what is stored with a record, limits of a shard, and faults, on every wire."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from fanout.testing.faults import CutPut, GoAwayAtCall, RefuseRecords, RevokeKey
from fanout.testing.kinesis.rules import KinesisRules

if TYPE_CHECKING:
    from collections.abc import Callable

ORDERS = {"StreamName": "orders"}
THROTTLED = "ProvisionedThroughputExceededException"


def put(kinesis: Any, data: bytes) -> dict[str, Any]:
    answer: dict[str, Any] = kinesis.client.put_record(**ORDERS, PartitionKey="key", Data=data)
    return answer


def put_all(kinesis: Any, *data: bytes) -> dict[str, Any]:
    records = [{"PartitionKey": "key", "Data": each} for each in data]
    answer: dict[str, Any] = kinesis.client.put_records(**ORDERS, Records=records)
    return answer


def stored(kinesis: Any) -> list[tuple[bytes, str]]:
    """Return the data of all records with their encryption, as a subscription has them."""
    records = next(kinesis.subscribe())["Records"]
    return [(record["Data"], record["EncryptionType"]) for record in records]


def code_of(call: Callable[[], Any]) -> tuple[str, int]:
    with pytest.raises(ClientError) as error:
        call()
    answer = error.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


def test_a_record_keeps_the_encryption_that_its_stream_had(kinesis: Any) -> None:
    key = {"EncryptionType": "KMS", "KeyId": "alias/aws/kinesis"}
    types = [put(kinesis, b"a")["EncryptionType"]]
    kinesis.client.start_stream_encryption(**ORDERS, **key)
    types.append(put(kinesis, b"b")["EncryptionType"])
    types.append(put_all(kinesis, b"c")["EncryptionType"])
    kinesis.put(b"d")
    kinesis.client.stop_stream_encryption(**ORDERS, **key)
    types.append(put_all(kinesis, b"e")["EncryptionType"])
    assert types == ["NONE", "KMS", "KMS", "NONE"]
    kept = [(b"a", "NONE"), (b"b", "KMS"), (b"c", "KMS"), (b"d", "KMS"), (b"e", "NONE")]
    assert stored(kinesis) == kept
    position = {"ShardId": "shardId-000000000000", "ShardIteratorType": "TRIM_HORIZON"}
    token = kinesis.client.get_shard_iterator(**ORDERS, **position)["ShardIterator"]
    polled = kinesis.client.get_records(ShardIterator=token)["Records"]
    assert [(record["Data"], record["EncryptionType"]) for record in polled] == kept


@pytest.mark.long
def test_a_shard_takes_so_many_records_in_a_second_from_all_puts(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_700_000_000_000]
    monkeypatch.setattr("fanout.testing.kinesis.moto_stream.now_in_millis", lambda: now[0])
    kinesis = start(replace(KinesisRules.fast(), put_records_per_second=2))
    put(kinesis, b"a")
    answer = put_all(kinesis, b"b", b"c")
    assert answer["FailedRecordCount"] == 1
    assert [record.get("ErrorCode") for record in answer["Records"]] == [None, THROTTLED]
    assert code_of(lambda: put(kinesis, b"d")) == (THROTTLED, 400)
    now[0] += 1000
    put(kinesis, b"e")
    assert [data for data, _ in stored(kinesis)] == [b"a", b"b", b"e"]


def test_a_shard_takes_so_many_bytes_in_a_second_from_all_puts(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.testing.kinesis.moto_stream.now_in_millis", lambda: 1_000_000)
    kinesis = start(replace(KinesisRules.fast(), put_bytes_per_second=10))
    put(kinesis, b"a" * 5)
    assert code_of(lambda: put(kinesis, b"b")) == (THROTTLED, 400)


def test_some_records_are_refused_and_the_others_are_stored(kinesis: Any) -> None:
    kinesis.server.inject(RefuseRecords(every=2, code=THROTTLED))
    answer = put_all(kinesis, b"a", b"b", b"c")
    codes = [record.get("ErrorCode") for record in answer["Records"]]
    assert (answer["FailedRecordCount"], codes) == (2, [THROTTLED, None, THROTTLED])
    assert [data for data, _ in stored(kinesis)] == [b"b"]


@pytest.mark.parametrize(("code", "status"), [("InternalFailure", 500), (THROTTLED, 400)])
def test_a_record_alone_is_refused(kinesis: Any, code: str, status: int) -> None:
    kinesis.server.inject(RefuseRecords(code=code))
    assert code_of(lambda: put(kinesis, b"a")) == (code, status)
    put(kinesis, b"b")
    assert [data for data, _ in stored(kinesis)] == [b"b"]


@pytest.mark.parametrize("call", [put, put_all])
def test_a_put_is_stored_although_its_answer_is_lost(
    kinesis: Any, call: Callable[[Any, bytes], Any]
) -> None:
    kinesis.server.inject(CutPut())
    with pytest.raises(ConnectionClosedError):
        call(kinesis, b"a")
    assert [data for data, _ in stored(kinesis)] == [b"a"]


def test_a_revoked_key_is_refused_everywhere(kinesis: Any) -> None:
    kinesis.server.inject(RevokeKey(access_key="testing", code="ExpiredTokenException"))
    for call in (kinesis.client.list_streams, lambda: put(kinesis, b"a"), kinesis.subscribe):
        assert code_of(call) == ("ExpiredTokenException", 400)


def test_a_connection_may_go_away_instead_of_an_answer(kinesis: Any) -> None:
    kinesis.server.inject(GoAwayAtCall(action="PutRecord", call=2))
    put(kinesis, b"a")
    with pytest.raises(ConnectionClosedError):
        put(kinesis, b"b")
    put(kinesis, b"c")
    assert [data for data, _ in stored(kinesis)] == [b"a", b"c"]
    assert kinesis.server.statistics().faults == {"GoAwayAtCall": 1}
