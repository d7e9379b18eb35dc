"""Check what fanout uses of aiokafka beyond its documented API, version by version.

When a new aiokafka fails one of these, read what has changed there before the test is changed: the
files `client.py`, `connections.py`, `frames.py`, `layouts.py` and `wire.py` of `fanout/kafka` go
by it.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import AIOKafkaConnection, AIOKafkaProtocol, CloseReason
from aiokafka.errors import BrokerResponseError, KafkaError, UnknownError, for_code
from aiokafka.protocol.admin import DescribeConfigsRequest, SaslAuthenticateRequest
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)

from fanout.kafka.partitions import Partition, partition_rows
from fanout.kafka.protocol.broker_connection import ResponseFrame, _pieces, _UnloggedRequest
from fanout.kafka.protocol.coordinators import codes_of
from fanout.kafka.protocol.messages.transactions import (
    CommittedOffsetsRequest,
    DescribeTransactionsRequest,
)
from fanout.kafka.reading.client import read_fetched
from fanout.kafka.reading.transport import AbortedTransaction, Fetched

# The versions of each call that Kafka 0.11 to 4.x and aiokafka have in common.
VERSIONS: dict[Any, range] = {
    FetchRequest: range(4, 12),
    OffsetRequest: range(2, 4),
    MetadataRequest: range(4, 6),
    OffsetFetchRequest: range(3, 4),
    OffsetCommitRequest: range(3, 4),
    FindCoordinatorRequest: range(1, 2),
    InitProducerIdRequest: range(1),
    AddOffsetsToTxnRequest: range(1),
    EndTxnRequest: range(1),
    CommittedOffsetsRequest: range(7, 8),
    DescribeTransactionsRequest: range(1),
    DescribeConfigsRequest: range(3),
}
ROWS = [("orders", [(0, 5, 1)])]
REQUESTS: dict[Any, Any] = {
    FetchRequest: FetchRequest(10, 1, 1000, 1, ROWS, "rack"),
    OffsetRequest: OffsetRequest(-1, 1, [("orders", [(0, -1)])]),
    MetadataRequest: MetadataRequest(["orders"], allow_auto_topic_creation=False),
    OffsetFetchRequest: OffsetFetchRequest("group", [("orders", [0])]),
    OffsetCommitRequest: OffsetCommitRequest("group", -1, "", -1, [("orders", [(0, 5, "")])]),
    FindCoordinatorRequest: FindCoordinatorRequest("group", 0),
    InitProducerIdRequest: InitProducerIdRequest("orders", 1000),
    AddOffsetsToTxnRequest: AddOffsetsToTxnRequest("orders", 7, 1, "group"),
    EndTxnRequest: EndTxnRequest("orders", 7, 1, transaction_result=True),
    CommittedOffsetsRequest: CommittedOffsetsRequest("group", ["orders"], stable=True),
    DescribeTransactionsRequest: DescribeTransactionsRequest("orders"),
    DescribeConfigsRequest: DescribeConfigsRequest([(4, "orders", ["name"])]),
}
EACH = [(kind, version) for kind, versions in VERSIONS.items() for version in versions]


def prepared(kind: Any, version: int) -> Any:
    request = REQUESTS[kind]
    return request.prepare({request.API_KEY: (version, version)})


@pytest.mark.parametrize(("kind", "version"), EACH)
def test_a_request_is_encoded_in_every_version(kind: Any, version: int) -> None:
    struct = prepared(kind, version)
    assert version == struct.API_VERSION
    assert b"orders" in struct.encode() or b"group" in struct.encode()


@pytest.mark.parametrize("kind", VERSIONS)
def test_no_version_is_used_that_is_not_known_here(kind: Any) -> None:
    newest = REQUESTS[kind].prepare({REQUESTS[kind].API_KEY: (0, 99)})
    assert VERSIONS[kind][-1] == newest.API_VERSION


@pytest.mark.parametrize("version", VERSIONS[MetadataRequest])
def test_a_topic_that_is_asked_about_is_not_created(version: int) -> None:
    assert prepared(MetadataRequest, version).allow_auto_topic_creation is False


def names(schema: Any, *inside: str) -> list[str]:
    """Return the fields of a schema, or those of the rows of an array inside it."""
    for name in inside:
        schema = schema.fields[schema.names.index(name)].array_of
    return list(schema.names)


FETCHED = ["partition", "error_code", "highwater_offset", "last_stable_offset"]
FETCHED_REST = {
    4: ["aborted_transactions", "message_set"],
    **{v: ["log_start_offset", "aborted_transactions", "message_set"] for v in range(5, 11)},
    11: ["log_start_offset", "aborted_transactions", "preferred_read_replica", "message_set"],
}


@pytest.mark.parametrize("version", VERSIONS[FetchRequest])
def test_a_fetch_is_answered_in_the_layout_that_is_read(version: int) -> None:
    schema = prepared(FetchRequest, version).RESPONSE_TYPE.SCHEMA
    assert names(schema, "topics", "partitions") == FETCHED + FETCHED_REST[version]
    assert ("error_code" in schema.names) is (version >= 7)


@pytest.mark.parametrize(
    ("fields", "start", "replica"),
    [
        (([(7, 2)], b"x"), None, None),
        ((3, [(7, 2)], b"x"), 3, None),
        ((3, [(7, 2)], -1, b"x"), 3, None),
        ((3, [(7, 2)], 2, b"x"), 3, 2),
        ((-1, [(7, 2)], -1, b"x"), None, None),
    ],
)
def test_what_was_fetched_is_read_from_every_layout(
    fields: tuple[Any, ...], start: int | None, replica: int | None
) -> None:
    answer = Fetched(
        high_watermark=9,
        last_stable_offset=8,
        log_start_offset=start,
        aborted=[AbortedTransaction(7, 2)],
        batches=b"x",
    )
    assert read_fetched(9, 8, *fields) == (answer, replica)


def test_nothing_fetched_and_nothing_aborted_may_be_null() -> None:
    answer, _ = read_fetched(9, 8, 0, None, -1, None)
    assert (answer.aborted, answer.batches) == ([], b"")


LAYOUTS: list[tuple[Any, tuple[str, ...], list[str]]] = [
    (OffsetRequest, ("topics", "partitions"), ["partition", "error_code", "timestamp", "offset"]),
    (
        OffsetFetchRequest,
        ("topics", "partitions"),
        ["partition", "offset", "metadata", "error_code"],
    ),
    (OffsetFetchRequest, (), ["throttle_time_ms", "topics", "error_code"]),
    (OffsetCommitRequest, ("topics", "partitions"), ["partition", "error_code"]),
    (MetadataRequest, ("brokers",), ["node_id", "host", "port", "rack"]),
    (MetadataRequest, ("topics",), ["error_code", "topic", "is_internal", "partitions"]),
    (
        FindCoordinatorRequest,
        (),
        ["throttle_time_ms", "error_code", "error_message", "coordinator_id", "host", "port"],
    ),
    (
        InitProducerIdRequest,
        (),
        ["throttle_time_ms", "error_code", "producer_id", "producer_epoch"],
    ),
    (AddOffsetsToTxnRequest, (), ["throttle_time_ms", "error_code"]),
    (EndTxnRequest, (), ["throttle_time_ms", "error_code"]),
]


@pytest.mark.parametrize(("kind", "inside", "fields"), LAYOUTS)
def test_a_call_is_answered_in_the_layout_that_is_read(
    kind: Any, inside: tuple[str, ...], fields: list[str]
) -> None:
    for version in VERSIONS[kind]:
        assert names(prepared(kind, version).RESPONSE_TYPE.SCHEMA, *inside) == fields


@pytest.mark.parametrize("version", VERSIONS[MetadataRequest])
def test_a_partition_is_described_with_its_leader_in_third_place(version: int) -> None:
    schema = prepared(MetadataRequest, version).RESPONSE_TYPE.SCHEMA
    assert names(schema, "topics", "partitions")[:3] == ["error_code", "partition", "leader"]
    assert "cluster_id" in schema.names


def test_the_codes_of_a_coordinator_are_in_rows_or_at_the_end() -> None:
    commit = prepared(OffsetCommitRequest, 3).RESPONSE_TYPE
    found = prepared(OffsetFetchRequest, 3).RESPONSE_TYPE
    stable = prepared(CommittedOffsetsRequest, 7).RESPONSE_TYPE
    assert codes_of(commit(0, [("orders", [(0, 0), (1, 16)])])) == {0, 16}
    assert codes_of(found(0, [("orders", [(0, 5, "", 15)])], 0)) == {0, 15}
    assert codes_of(found(0, [("orders", [(0, 16, "", 0)])], 15)) == {0, 15}
    assert codes_of(stable(0, [("orders", [(0, 5, 1, "", 88, {})], {})], 14, {})) == {14, 88}


def test_the_rows_of_an_answer_are_its_partitions() -> None:
    answer = prepared(OffsetCommitRequest, 3).RESPONSE_TYPE(0, [("a", [(0, 1)]), ("b", [(2, 3)])])
    assert list(partition_rows(answer.topics)) == [(Partition("a", 0), 1), (Partition("b", 2), 3)]


@pytest.mark.parametrize("request_", [*REQUESTS.values(), SaslAuthenticateRequest(b"canary")])
def test_a_request_and_its_answer_are_shown_by_their_names_alone(request_: Any) -> None:
    struct = _UnloggedRequest(request_).prepare({request_.API_KEY: (0, 99)})
    plain = request_.prepare({request_.API_KEY: (0, 99)})
    assert struct.encode() == plain.encode()
    assert repr(struct) == str(struct) == type(plain).__name__
    answer = struct.RESPONSE_TYPE
    assert issubclass(answer, plain.RESPONSE_TYPE)
    assert repr(answer.__new__(answer)) == plain.RESPONSE_TYPE.__name__
    header = struct.build_request_header(correlation_id=7, client_id="me")
    assert header.encode() == plain.build_request_header(7, "me").encode()


@pytest.mark.parametrize("version", range(3, 8))
def test_records_are_sent_as_aiokafka_encodes_them(version: int) -> None:
    def request_of(*records: Any) -> Any:
        rows = [("orders", [*enumerate(records[:2])]), ("users", [(7, records[2])])]
        request = ProduceRequest("w-1", -1, 1000, rows)
        return request.prepare({request.API_KEY: (version, version)})

    whole = request_of(b"head body", b"", b"x" * 100_000).encode()
    struct = request_of((b"head ", pa.py_buffer(b"body")), (), (b"x" * 60_000, b"x" * 40_000))
    fields = [getattr(struct, name) for name in struct.SCHEMA.names]
    assert b"".join(_pieces(struct.SCHEMA, fields)) == whole


def test_a_connection_takes_what_it_is_given() -> None:
    taken = inspect.signature(AIOKafkaConnection).parameters
    assert {
        "host",
        "port",
        "client_id",
        "request_timeout_ms",
        "max_idle_ms",
        "ssl_context",
        "security_protocol",
        "sasl_mechanism",
        "sasl_plain_username",
        "sasl_plain_password",
        "sasl_oauth_token_provider",
    } <= set(taken)
    assert list(inspect.signature(AIOKafkaConnection.send).parameters) == [
        "self",
        "request",
        "expect_response",
    ]
    assert list(inspect.signature(AIOKafkaConnection.close).parameters) == ["self", "reason", "exc"]


def test_a_connection_prepares_its_requests_by_the_brokers_versions() -> None:
    # And it closes by its own method, which is where ours breaks the transport off first.
    source = inspect.getsource(AIOKafkaConnection)
    assert "request.prepare(self._versions)" in source
    assert "self._writer.close()" in source
    assert "if not fut.done()" in inspect.getsource(AIOKafkaConnection._handle_frame)


def test_a_token_comes_from_one_method() -> None:
    assert AbstractTokenProvider.__abstractmethods__ == {"token"}


def test_an_error_has_its_code_and_says_whether_it_may_pass() -> None:
    assert for_code(12345) is UnknownError
    assert issubclass(BrokerResponseError, KafkaError)
    transient = {code for code in range(1, 80) if for_code(code).retriable}
    assert {3, 5, 6, 7, 14, 15, 16} <= transient
    assert transient.isdisjoint({1, 2, 17, 29, 30, 58})


def test_a_connection_can_be_given_another_way_to_receive() -> None:
    # What is in these places: the protocol and its transport once connected, and the requests
    # that wait, each with its number and what waits for the answer. aiokafka's own reader waits
    # for bytes alone, and for the end of them.
    read = inspect.getsource(AIOKafkaConnection._read)
    assert read.count("await") == read.count("await reader.readexactly(") == 2
    source = inspect.getsource(AIOKafkaConnection)
    for used in (
        "self._reader, self._writer, self._protocol = reader, writer, protocol",
        "(correlation_id, request_struct, fut),",
        "correlation_id, request, fut = self._requests[0]",
        "request.parse_response_header(resp)",
        "self._last_action = time.monotonic()",
        "self._requests.popleft()",
        "correlation_id = self._next_correlation_id()",
        "client_id=self._client_id",
        "self._writer.write(size + message)",
        "wait_for(fut, self._request_timeout)",
    ):
        assert used in source, used
    assert issubclass(AIOKafkaProtocol, asyncio.StreamReaderProtocol)
    assert CloseReason.OUT_OF_SYNC


@pytest.mark.parametrize("version", VERSIONS[FetchRequest])
def test_an_answer_of_fetch_is_read_from_a_frame_as_from_a_file(version: int) -> None:
    kind = prepared(FetchRequest, version).RESPONSE_TYPE
    fields = [1, 2, 3, 4, [(7, 2)], b"x" * 100_000]
    fields[4:4] = [5] if version >= 5 else []
    fields[-1:-1] = [6] if version >= 11 else []
    head = [0, 0, 0] if version >= 7 else [0]
    answer = kind(*head, [("orders", [tuple(fields)])])
    data = answer.encode()
    assert kind.decode(ResponseFrame(bytearray(data))) == kind.decode(data) == answer
