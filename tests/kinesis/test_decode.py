from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.errors import MalformedEventError
from fanout.kinesis.aws.api import HashRange
from fanout.kinesis.reading.decode import (
    FEW_ROWS,
    SCHEMA,
    ChildShard,
    ShardEvent,
    decode_event,
    decode_records,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def record(**changes: Any) -> dict[str, Any]:
    return {
        "ApproximateArrivalTimestamp": 1795218308.174,
        "Data": base64.b64encode(b"\x00payload\xff").decode(),
        "EncryptionType": "NONE",
        "PartitionKey": "user-1",
        "SequenceNumber": "49680412602923508161381989364352061050721676279901323266",
    } | changes


def event(*records: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "Records": list(records),
        "ContinuationSequenceNumber": "4968",
        "MillisBehindLatest": 0,
    } | changes


def decode(body: dict[str, Any]) -> ShardEvent:
    payload = json.dumps(body).encode()
    return decode_event(payload, stream="orders", shard_id="shardId-000000000007")


def test_a_record_becomes_a_row_with_the_names_of_the_databricks_connector() -> None:
    assert decode(event(record())).records.to_pylist() == [
        {
            "partitionKey": "user-1",
            "data": b"\x00payload\xff",
            "stream": "orders",
            "shardId": "shardId-000000000007",
            "sequenceNumber": "49680412602923508161381989364352061050721676279901323266",
            "approximateArrivalTimestamp": datetime(2026, 11, 20, 23, 45, 8, 174000, UTC),
            "subSequenceNumber": 0,
        }
    ]


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_every_event_has_the_same_schema_and_is_valid(count: int) -> None:
    records = decode(event(*[record()] * count)).records
    assert records.schema == SCHEMA
    assert records.num_rows == count
    records.validate(full=True)


@given(
    st.lists(
        st.builds(
            record,
            Data=st.binary(max_size=9).map(lambda data: base64.b64encode(data).decode()),
            PartitionKey=st.none() | st.text(max_size=3),
            SequenceNumber=st.text("0123456789"),
            ApproximateArrivalTimestamp=st.none() | st.floats(0, 253_402_300_799),
        ),
        max_size=FEW_ROWS,
    )
)
def test_a_few_records_become_the_same_rows_as_among_many(some: list[dict[str, Any]]) -> None:
    few = decode(event(*some)).records
    many = decode(event(*some, *[record()] * (FEW_ROWS + 1))).records
    few.validate(full=True)
    assert few.schema == many.schema
    assert few.equals(many.slice(0, len(some)))


def test_rows_keep_the_order_of_the_shard() -> None:
    records = decode(event(*(record(SequenceNumber=str(n)) for n in range(100)))).records
    assert records["sequenceNumber"].to_pylist() == [str(n) for n in range(100)]


def test_a_heartbeat_has_a_continuation_and_no_rows() -> None:
    heartbeat = decode(event(MillisBehindLatest=1234))
    assert heartbeat.records.num_rows == 0
    assert (heartbeat.continuation, heartbeat.millis_behind) == ("4968", 1234)


def test_the_end_of_a_shard_names_its_children() -> None:
    body = event()
    del body["ContinuationSequenceNumber"]
    hash_keys = {"StartingHashKey": "17", "EndingHashKey": str(2**128 - 1)}
    child = {
        "ShardId": "shardId-000000000008",
        "ParentShards": ["a", "b"],
        "HashKeyRange": hash_keys,
    }
    end = decode(body | {"ChildShards": [child]})
    assert end.continuation is None
    (named,) = end.children
    assert named == ChildShard("shardId-000000000008", ("a", "b"), HashRange(17, 2**128 - 1))


@pytest.mark.parametrize("broken", ["", "canary\n", "a b", "a" * 129, "\u0661"])
@pytest.mark.parametrize("place", ["ShardId", "ParentShards[0]"])
def test_a_child_that_no_position_could_name_is_malformed_and_not_quoted(
    place: str, broken: str
) -> None:
    hash_keys = {"StartingHashKey": "0", "EndingHashKey": "9"}
    child = {"ShardId": "b", "ParentShards": ["a"], "HashKeyRange": hash_keys}
    child |= {"ShardId": broken} if place == "ShardId" else {"ParentShards": [broken]}
    with pytest.raises(MalformedEventError) as caught:
        decode(event(ChildShards=[child]))
    assert place.split("[", maxsplit=1)[0] in str(caught.value)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("behind", [-1, 2**63, 10**400])
def test_a_lag_that_no_clock_could_show_is_malformed(behind: int) -> None:
    with pytest.raises(MalformedEventError, match=r"\$\.MillisBehindLatest"):
        decode(event(MillisBehindLatest=behind))
    with pytest.raises(MalformedEventError, match=r"\$\.MillisBehindLatest"):
        polled(MillisBehindLatest=behind)


@pytest.mark.parametrize("broken", ["", "-1", "canary", "1" * 40, "\u0661", "1\n"])
def test_a_hash_key_that_is_no_number_is_malformed_and_not_quoted(broken: str) -> None:
    hash_keys = {"StartingHashKey": "0", "EndingHashKey": broken}
    child = {"ShardId": "a", "ParentShards": [], "HashKeyRange": hash_keys}
    with pytest.raises(MalformedEventError, match=r"HashKeyRange\.EndingHashKey") as caught:
        decode(event(ChildShards=[child]))
    assert "canary" not in str(caught.value)


def test_a_null_continuation_is_the_end_too() -> None:
    assert decode(event(ContinuationSequenceNumber=None)).continuation is None


def test_an_event_without_children_has_none() -> None:
    assert decode(event()).children == ()
    assert decode(event(ChildShards=None)).children == ()


def test_a_record_without_arrival_time_has_a_null() -> None:
    late = record()
    del late["ApproximateArrivalTimestamp"]
    records = decode(event(record(), late)).records
    assert records["approximateArrivalTimestamp"].is_null().to_pylist() == [False, True]


def test_fields_that_the_service_adds_later_are_ignored() -> None:
    assert decode(event(record(New={"a": [1]}), New="x")).records.num_rows == 1


@given(st.lists(st.integers(0, 4_102_444_800_000), max_size=20))
def test_arrival_times_are_exact_to_the_millisecond(times: list[int]) -> None:
    # Written as the service does it: seconds with three decimals.
    records = [record(ApproximateArrivalTimestamp=time / 1000) for time in times]
    decoded = decode(event(*records)).records["approximateArrivalTimestamp"].to_pylist()
    assert decoded == [EPOCH + timedelta(milliseconds=time) for time in times]


@given(st.lists(st.tuples(st.binary(max_size=50), st.text(max_size=20)), max_size=10))
def test_any_data_and_any_partition_key_survive(pairs: list[tuple[bytes, str]]) -> None:
    records = [
        record(Data=base64.b64encode(data).decode(), PartitionKey=key) for data, key in pairs
    ]
    rows = decode(event(*records)).records
    assert list(zip(rows["data"].to_pylist(), rows["partitionKey"].to_pylist(), strict=True)) == (
        pairs
    )


@pytest.mark.parametrize("many", [0, FEW_ROWS])
def test_a_partition_key_that_is_not_there_is_null_and_an_empty_one_is_not(many: int) -> None:
    absent = record()
    del absent["PartitionKey"]
    some = [absent, record(PartitionKey=None), record(PartitionKey="")]
    rows = decode(event(*some, *[absent] * many)).records
    rows.validate(full=True)
    assert rows["partitionKey"].to_pylist() == [None, None, "", *[None] * many]


def test_a_memoryview_is_decoded_like_bytes() -> None:
    payload = memoryview(json.dumps(event(record())).encode())
    assert decode_event(payload, stream="s", shard_id="x").records.num_rows == 1


@pytest.mark.parametrize("name", ["Data", "SequenceNumber"])
def test_a_missing_record_field_is_malformed_and_named(name: str) -> None:
    broken = record()
    del broken[name]
    with pytest.raises(MalformedEventError, match=rf"`{name}` - at `\$.Records\[1\]`"):
        decode(event(record(), broken))


@pytest.mark.parametrize("name", ["Records", "MillisBehindLatest"])
def test_a_missing_event_field_is_malformed_and_named(name: str) -> None:
    broken = event()
    del broken[name]
    with pytest.raises(MalformedEventError, match=f"`{name}`"):
        decode(broken)


@pytest.mark.fault("What comes is no frame or no event at all")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Data", "canary!"),
        ("Data", "canary"),
        ("Data", 5),
        ("PartitionKey", 5),
        ("SequenceNumber", None),
        ("SequenceNumber", 4968),
        ("ApproximateArrivalTimestamp", "canary"),
        ("ApproximateArrivalTimestamp", -1),
        ("ApproximateArrivalTimestamp", 1e300),
        ("ApproximateArrivalTimestamp", 253402300799.9999),
    ],
)
def test_a_wrong_value_is_malformed_named_and_not_quoted(name: str, value: object) -> None:
    with pytest.raises(MalformedEventError, match=rf"\$.Records\[0\].{name}") as caught:
        decode(event(record(**{name: value})))
    assert "canary" not in str(caught.value)
    assert "canary" not in repr(caught.value.__cause__)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"Records":[', id="truncated"),
        pytest.param(b"[]", id="not an object"),
        pytest.param(b'{"x":' + b"[" * 100_000, id="deeper than the stack"),
        pytest.param(b'{"Records":[],"MillisBehindLatest":NaN}', id="not a JSON number"),
    ],
)
def test_what_is_not_an_event_is_malformed(payload: bytes) -> None:
    with pytest.raises(MalformedEventError, match="SubscribeToShardEvent cannot be decoded"):
        decode_event(payload, stream="s", shard_id="x")


def test_text_that_is_not_utf8_is_malformed_and_not_quoted() -> None:
    payload = json.dumps(event(record(PartitionKey="canary"))).encode()
    with pytest.raises(MalformedEventError, match="not UTF-8") as caught:
        decode_event(payload.replace(b"canary", b"canary\xff"), stream="s", shard_id="x")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "Records": st.lists(
                st.dictionaries(st.sampled_from(sorted(record())), json_values), max_size=3
            )
            | json_values,
            "MillisBehindLatest": json_values,
            "ContinuationSequenceNumber": json_values,
            "ChildShards": json_values,
        },
    )
)
def test_any_json_is_an_event_or_malformed(body: dict[str, Any]) -> None:
    try:
        decoded = decode(body)
    except MalformedEventError:
        return
    assert isinstance(decoded.records, pa.RecordBatch)


def polled(**changes: Any) -> tuple[ShardEvent, str | None]:
    body = {"Records": [record()], "NextShardIterator": "next", "MillisBehindLatest": 7} | changes
    return decode_records(
        json.dumps(body).encode(), stream="orders", shard_id="shardId-000000000007"
    )


def test_an_answer_of_get_records_has_the_rows_of_an_event() -> None:
    answer, following = polled()
    assert answer.records == decode(event(record())).records
    assert (answer.ended, answer.continuation, answer.millis_behind) == (False, None, 7)
    assert following == "next"


@pytest.mark.parametrize("last", [b'"NextShardIterator":null,', b""])
def test_an_answer_without_an_iterator_ends_its_shard(last: bytes) -> None:
    hash_keys = b'"HashKeyRange":{"StartingHashKey":"0","EndingHashKey":"9"}'
    children = b'"ChildShards":[{"ShardId":"b","ParentShards":["a"],' + hash_keys + b"}]"
    body = b'{"Records":[],' + last + children + b"}"
    answer, following = decode_records(body, stream="orders", shard_id="any")
    assert (answer.ended, following) == (True, None)
    assert answer.children == (ChildShard("b", ("a",), HashRange(0, 9)),)


def test_an_answer_need_not_say_how_far_behind_it_is() -> None:
    body = b'{"Records":[],"NextShardIterator":"next"}'
    answer, _ = decode_records(body, stream="orders", shard_id="any")
    assert answer.millis_behind is None


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{}", "^an answer of GetRecords cannot be decoded: .*`Records`"),
        (b'{"Records":[', "^an answer of GetRecords cannot be decoded"),
        (b'{"Records":["\xff"]}', "^an answer of GetRecords"),
    ],
)
def test_an_answer_that_is_malformed_is_named(body: bytes, sentence: str) -> None:
    with pytest.raises(MalformedEventError, match=sentence):
        decode_records(body, stream="orders", shard_id="any")
