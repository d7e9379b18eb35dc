"""Answers of brokers that are valid and rare, to each request that the library sends.

Codes and fields are those of Kafka's protocol guide, and of Errors.java of Kafka 4.3.
tests/test_fault_catalogue.py lists the requests.
"""

from __future__ import annotations

from collections import defaultdict
from copy import copy
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from aiokafka import errors as kafka
from aiokafka.protocol.admin import DescribeConfigsResponse_v0
from aiokafka.protocol.commit import OffsetCommitResponse_v3, OffsetFetchResponse_v3
from aiokafka.protocol.coordination import FindCoordinatorResponse_v1
from aiokafka.protocol.fetch import FetchResponse_v11
from aiokafka.protocol.metadata import MetadataResponse_v5
from aiokafka.protocol.offset import OffsetResponse_v3
from aiokafka.protocol.produce import ProduceResponse_v7
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnResponse_v0,
    AddPartitionsToTxnResponse_v0,
    InitProducerIdResponse_v0,
)

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.events import Split
from fanout.core.policy import Fatal
from fanout.core.positions import Committed, Cursor
from fanout.errors import (
    BatchNotWrittenError,
    FanOutError,
    FencedError,
    ServiceError,
    UnwritableRecordError,
)
from fanout.kafka.group.calls import GroupOffsets, Identity
from fanout.kafka.partitions import Partition
from fanout.kafka.protocol.cluster_metadata import ClusterMetadata
from fanout.kafka.protocol.error_codes import CODE_NAMES, RETRIABLE, error_of
from fanout.kafka.protocol.messages.cluster_state import MetadataResponse_v10
from fanout.kafka.protocol.messages.fetch import CheckedFetchRequest, FetchResponse_v12
from fanout.kafka.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse_v3,
)
from fanout.kafka.reading.client import start_client
from fanout.kafka.reading.consumer_options import ConsumerOptions
from fanout.kafka.reading.offsets import OffsetResolver
from fanout.kafka.reading.policy import judge
from fanout.kafka.reading.transport import (
    AbortedTransaction,
    Fetched,
    FetchRefused,
    LogDivergedError,
    OffsetSpec,
    PartitionFetch,
)
from fanout.kafka.shuffle.topic import ShuffleTopic, _check, _configs
from fanout.kafka.transactions.calls import MemberRefusedError, TransactionCalls
from fanout.kafka.transactions.commit_token import Incarnation
from fanout.kafka.transactions.transactions import Transactions
from fanout.kafka.writing.policy import final_error
from fanout.kafka.writing.produce_requests import ProduceBatch, ProduceRequests
from fanout.kafka.writing.producer_id import (
    Idempotent,
    OpenTransaction,
    ProducerId,
    Transactional,
    obtain_producer_id,
)
from fanout.kafka.writing.row_batches import COLUMNS, prepare_rows
from fanout.kafka.writing.write_options import ProducerOptions
from fanout.spark.sinks.kafka.job import AttemptFailedError, _raise_failure
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from fanout.kafka.reading.transport import KafkaTransport

_WRITTEN: Final = pa.schema([(name, COLUMNS[name]) for name in ("topic", "partition", "value")])
ONE, TWO = Partition("t", 0), Partition("t", 1)
OURS: Final = Incarnation(7, 3)
JITTER: Final = FullJitter(Backoff(base=0.02, cap=2.0), Random(7))


class Answering:
    """Connections whose requests get answers by their names, in turn; the last one for ever."""

    throttled = 0

    def __init__(self, **answers: Any) -> None:
        self._answers = {
            name: list(given) if isinstance(given, list) else [given]
            for name, given in answers.items()
        }
        self.sent: defaultdict[str, int] = defaultdict(int)
        self.brokers: dict[int, Any] = {}

    def set_brokers(self, brokers: Any) -> None:
        self.brokers = brokers

    def add_broker(self, broker: int, server: Any) -> None: ...

    async def send_to_any(self, request: Any) -> Any:
        return await self.send(0, request)

    async def send(self, _broker: int, request: Any, *_: object, **__: object) -> Any:
        name = type(request).__name__.removesuffix("Request")
        self.sent[name] += 1
        if name == "FindCoordinator" and name not in self._answers:
            return FindCoordinatorResponse_v1(0, 0, "", 1, "a", 1)
        if name == "Metadata" and name not in self._answers:
            return metadata()
        answers = self._answers[name]
        return answers.pop(0) if len(answers) > 1 else answers[0]


def metadata(
    *rows: tuple[int, int, int], code: int = 0, cluster: str | None = "one", brokers: Any = None
) -> Any:
    """Return metadata of the topic `t`: the code, number and leader of partitions."""
    known = [(1, "a", 1, None)] if brokers is None else brokers
    partitions: Any = [
        (error, number, leader, [1], [1], [])
        for error, number, leader in rows or ((0, 0, 1), (0, 1, 1))
    ]
    return MetadataResponse_v5(0, known, cluster, 1, [(code, "t", False, partitions)])


async def client(**answers: Any) -> tuple[KafkaTransport, Answering]:
    connections: Any = Answering(**answers)
    return await start_client(connections, ConsumerOptions()), connections


def offsets(*rows: tuple[int, int, int]) -> Any:
    """Return an answer to ListOffsets: the number, code and offset of partitions."""
    return OffsetResponse_v3(0, [("t", [(n, code, -1, offset) for n, code, offset in rows])])


def committed(*rows: tuple[int, int, int], code: int = 0) -> Any:
    """Return an answer to OffsetFetch: the number, offset and code of partitions."""
    return OffsetFetchResponse_v3(0, [("t", [(n, offset, "", c) for n, offset, c in rows])], code)


@pytest.mark.fault("Every request: an error code that Kafka calls retriable")
@pytest.mark.parametrize("code", RETRIABLE)
def test_an_error_that_passes_by_itself_ends_neither_reading_nor_writing(code: int) -> None:
    error = error_of(code, "t-0")
    assert error is not None
    assert error.retriable
    assert final_error(error) is None
    for first in (True, False):
        assert not isinstance(judge(error, first=first), Fatal)


@pytest.mark.fault("Every request: an error code that Kafka calls retriable")
def test_an_error_that_aiokafka_does_not_know_has_its_name() -> None:
    assert str(error_of(78, "t-0")) == "[Error 78] OFFSET_NOT_AVAILABLE: t-0"
    assert str(error_of(999, "t-0")) == "[Error 999] a code that is newer than Kafka 4.3: t-0"
    again = copy(error_of(78, "t-0"))  # as Spark sends it to the driver
    assert again is not None
    assert (str(again), again.retriable) == ("[Error 78] OFFSET_NOT_AVAILABLE: t-0", True)


# ListOffsets


@pytest.mark.fault("ListOffsets")
@pytest.mark.parametrize("code", [3, 5, 6, 7, 9, 13, 14, 56, 72, 74, 75, 78, 103])
@in_virtual_time
async def test_a_leader_that_cannot_tell_offsets_yet_is_asked_again_when_a_stream_opens(
    code: int,
) -> None:
    """A new leader answers 78 until it knows what its followers have."""
    transport, connections = await client(Offset=[offsets((0, code, -1)), offsets((0, 0, 5))])
    resolver = OffsetResolver(transport, None, JITTER)
    assert await resolver.resolve("start", "latest", [Split("t-0")]) == {ONE: Cursor(4)}
    assert connections.sent["Offset"] == 2


@pytest.mark.fault("ListOffsets")
async def test_an_offset_of_a_time_that_no_record_has_is_none() -> None:
    transport, _ = await client(Offset=offsets((0, 0, -1)))
    assert await transport.offsets({ONE: 1_000}) == {ONE: None}


@pytest.mark.fault("ListOffsets")
async def test_a_look_up_that_leaves_a_partition_out_is_an_error_that_passes() -> None:
    transport, _ = await client(Offset=[offsets((0, 0, 5)), offsets((0, 0, 5), (1, 0, 6))])
    wanted = {ONE: OffsetSpec.LATEST, TWO: OffsetSpec.LATEST}
    with pytest.raises(kafka.KafkaProtocolError, match="nothing about t-1") as caught:
        await transport.offsets(wanted)
    assert caught.value.retriable
    assert await transport.offsets(wanted) == {ONE: 5, TWO: 6}


# OffsetFetch and OffsetCommit


@pytest.mark.fault("OffsetFetch")
@in_virtual_time
async def test_committed_offsets_that_are_left_out_are_not_taken_for_none() -> None:
    """A reader would begin at its reset, and skip or repeat records."""
    transport, _ = await client(
        StoredOffsets=[committed((0, 7, 0)), committed((0, 7, 0), (1, 9, 0))],
        Offset=offsets((0, 0, 100), (1, 0, 100)),
    )
    resolver = OffsetResolver(transport, "g", JITTER)
    splits = [Split("t-0"), Split("t-1")]
    found = await resolver.resolve("start", Committed(reset="latest"), splits)
    assert found == {ONE: Cursor(6), TWO: Cursor(8)}


@pytest.mark.fault("OffsetFetch")
@pytest.mark.parametrize("code", [14, 15, 16, 88])
@pytest.mark.parametrize("rows", ["all", "none", "refused"])
@in_virtual_time
async def test_a_group_that_is_loading_or_moves_is_asked_again(code: int, rows: str) -> None:
    """An answer that is refused as a whole may have no partitions at all."""
    failed = {
        "all": committed((0, -1, 0), code=code),
        "none": committed(code=code),
        "refused": committed((0, -1, code)),
    }[rows]
    transport, _ = await client(
        StoredOffsets=[failed, failed, committed((0, 7, 0))], Offset=offsets((0, 0, 100))
    )
    resolver = OffsetResolver(transport, "g", JITTER)
    found = await resolver.resolve("start", Committed(reset="latest"), [Split("t-0")])
    assert found == {ONE: Cursor(6)}


@pytest.mark.fault("OffsetFetch")
async def test_no_committed_offset_is_none() -> None:
    transport, _ = await client(StoredOffsets=committed((0, -1, 0)))
    assert await transport.committed("g", [ONE]) == {ONE: None}


@pytest.mark.fault("OffsetCommit")
async def test_a_commit_that_leaves_a_partition_out_is_not_taken_for_done() -> None:
    answer = OffsetCommitResponse_v3(0, [("t", [(0, 0)])])
    transport, _ = await client(GroupCommit=answer)
    assert await transport.commit("g", {ONE: Cursor(0)}) == {}
    with pytest.raises(kafka.KafkaProtocolError, match="nothing about t-1"):
        await transport.commit("g", {ONE: Cursor(0), TWO: Cursor(1)})


@pytest.mark.fault("OffsetCommit")
@pytest.mark.parametrize("code", [12, 22, 25, 27, 28, 69, 113])
async def test_a_commit_that_a_group_refuses_is_told_of_its_partition_alone(code: int) -> None:
    """A group with members refuses commits without one."""
    answer = OffsetCommitResponse_v3(0, [("t", [(0, 0), (1, code)])])
    transport, _ = await client(GroupCommit=answer)
    assert list(await transport.commit("g", {ONE: Cursor(0), TWO: Cursor(1)})) == [TWO]


# Metadata


@pytest.mark.fault("Metadata")
@pytest.mark.parametrize("code", [5, 9, 72])
async def test_a_partition_without_a_leader_is_listed_and_led_by_nobody(code: int) -> None:
    transport, _ = await client(Metadata=metadata((0, 0, 1), (code, 1, -1)))
    assert await transport.describe(["t"]) == {"t": [0, 1]}
    assert (transport.leader(ONE), transport.leader(TWO)) == (1, None)
    with pytest.raises(kafka.LeaderNotAvailableError):
        await transport.offsets({TWO: OffsetSpec.LATEST})


@pytest.mark.fault("Metadata")
async def test_a_broker_that_just_starts_lists_no_brokers_and_loses_none_of_ours() -> None:
    transport, connections = await client(Metadata=[metadata(), metadata(brokers=[])])
    await transport.describe(["t"])
    assert list(connections.brokers) == [1]


def with_id(topic_id: bytes, code: int = 0) -> Any:
    """Return metadata of the topic `t` with its id, as brokers answer since Kafka 2.8."""
    rows: Any = [] if code else [(0, 0, 1, 0, [1], [1], [], {})]
    topics: Any = [(code, "t", topic_id, False, rows, -1, {})]
    return MetadataResponse_v10(0, [(1, "a", 1, None, {})], "one", 1, topics, -1, {})


@pytest.mark.fault("Metadata")
async def test_the_id_of_a_topic_is_that_of_the_last_answer_and_none_while_it_is_gone() -> None:
    answers = [metadata(), with_id(b"\xfb" * 16), with_id(bytes(16)), with_id(bytes(16), 3)]
    connections: Any = Answering(Metadata=[*answers, with_id(b"a" * 16)])
    topics, seen = ClusterMetadata(connections), list[str]()
    for _ in range(5):
        await topics.refresh(["t"])
        seen.append(topics.topic_id("t"))
    first = "-_v7-_v7-_v7-_v7-_v7-w"
    assert seen == ["", first, first, "", "YWFhYWFhYWFhYWFhYWFhYQ"]


@pytest.mark.fault("Metadata")
async def test_a_broker_that_does_not_name_its_cluster_is_not_another_cluster() -> None:
    transport, _ = await client(
        Metadata=[metadata(), metadata(cluster=None), metadata(cluster=""), metadata(cluster="two")]
    )
    for _ in range(2):
        await transport.describe(["t"])
        assert transport.cluster_id == "one"
    with pytest.raises(ServiceError, match="the brokers belong to the cluster two now"):
        await transport.describe(["t"])


@pytest.mark.fault("Metadata")
async def test_a_writer_knows_its_cluster_though_a_broker_does_not_name_it() -> None:
    connections: Any = Answering(Metadata=[metadata(), metadata(cluster=None), metadata()])
    topics = ClusterMetadata(connections)
    for _ in range(3):
        await topics.refresh(["t"])
        assert topics.cluster_id == "one"


async def test_a_partition_whose_leader_is_forgotten_still_exists() -> None:
    connections: Any = Answering(Metadata=[metadata((0, 0, 1), (0, 1, 1))])
    topics = ClusterMetadata(connections)
    await topics.refresh(["t"])
    assert topics.leader(ONE) == 1
    topics.forget_leader(ONE)
    assert topics.leader(ONE) is None
    assert isinstance(topics.error(ONE), kafka.LeaderNotAvailableError)


# Fetch


async def fetched(*fields: Any) -> Any:
    transport, _ = await client(CheckedFetch=FetchResponse_v11(0, 0, 0, [("t", [(0, *fields)])]))
    return (await transport.fetch(1, {ONE: PartitionFetch(3, 100)}, max_wait=0.0))[ONE]


@pytest.mark.fault("Fetch: no topics (throttled)")
async def test_a_partition_without_records_and_aborted_transactions_is_empty() -> None:
    answer = await fetched(0, 9, 9, 0, None, -1, None)
    assert answer == Fetched(9, 9, 0, [], b"")


@pytest.mark.fault("Fetch: no topics (throttled)")
async def test_a_broker_that_reports_no_last_stable_offset_has_no_open_transaction() -> None:
    answer = await fetched(0, 9, -1, -1, [], -1, b"records")
    assert (answer.high_watermark, answer.last_stable_offset) == (9, 9)
    assert answer.log_start_offset is None


def diverging() -> FetchResponse_v12:
    """Return an answer as a broker gave it: epoch 3 ends at offset 2."""
    tags = {0: (3).to_bytes(4) + (2).to_bytes(8) + b"\0"}
    row = (0, 0, 9, 9, 0, None, -1, b"", tags)
    return FetchResponse_v12(0, 0, 0, [("t", [row], {})], {})


async def test_a_log_that_was_cut_off_before_a_fetch_is_no_answer() -> None:
    transport, _ = await client(CheckedFetch=diverging(), Metadata=metadata((0, 0, 1)))
    await transport.describe(["t"])
    answer = (await transport.fetch(1, {ONE: PartitionFetch(3, 100, 3)}, max_wait=0.0))[ONE]
    assert isinstance(answer, FetchRefused)
    assert isinstance(answer.error, LogDivergedError)
    assert (answer.error.epoch, answer.error.end) == (3, 2)


async def test_a_tagged_field_that_is_cut_short_says_nothing() -> None:
    row: Any = (0, 0, 9, 9, 0, None, -1, b"", {0: bytes(11)})
    transport, _ = await client(CheckedFetch=FetchResponse_v12(0, 0, 0, [("t", [row], {})], {}))
    answer = (await transport.fetch(1, {ONE: PartitionFetch(3, 100)}, max_wait=0.0))[ONE]
    assert isinstance(answer, Fetched)


async def test_a_replica_that_lacks_records_is_not_taken_for_a_log_that_was_cut_off() -> None:
    transport, _ = await client(CheckedFetch=diverging(), Metadata=metadata((0, 0, 1)))
    await transport.describe(["t"])
    answer = (await transport.fetch(2, {ONE: PartitionFetch(3, 100, 3)}, max_wait=0.0))[ONE]
    assert isinstance(answer, FetchRefused)
    assert type(answer.error) is kafka.NotLeaderForPartitionError


async def test_an_answer_with_tagged_fields_is_read_as_one_without() -> None:
    row: Any = (0, 0, 9, 9, 0, [(7, 4, {})], -1, b"records", {})
    transport, _ = await client(CheckedFetch=FetchResponse_v12(0, 0, 0, [("t", [row], {})], {}))
    answer = (await transport.fetch(1, {ONE: PartitionFetch(3, 100)}, max_wait=0.0))[ONE]
    assert answer == Fetched(9, 9, 0, [AbortedTransaction(7, 4)], b"records")


def test_a_fetch_names_the_epoch_where_the_broker_knows_that_version() -> None:
    request = CheckedFetchRequest((10, 1, 1000, 1), [("t", [(0, 3, 100, 5)])], "")
    assert request.prepare({1: (4, 17)}).topics == [("t", [(0, -1, 3, 5, -1, 100, {})], {})]
    assert request.prepare({1: (4, 11)}).topics == [("t", [(0, -1, 3, -1, 100)])]


@pytest.mark.fault("Fetch: a nearer replica")
async def test_a_replica_that_a_leader_names_is_read_next() -> None:
    transport, _ = await client(
        CheckedFetch=FetchResponse_v11(0, 0, 0, [("t", [(0, 0, 9, 9, 0, None, 2, b"")])])
    )
    await transport.describe(["t"])
    await transport.fetch(1, {ONE: PartitionFetch(3, 100)}, max_wait=0.0)
    assert transport.leader(ONE) == 2


@pytest.mark.fault("Fetch: a nearer replica")
@pytest.mark.parametrize("code", [3, 5, 6, 9, 13, 56, 72, 74, 75, 78, 100, 103, 106])
async def test_a_refusal_of_a_fetch_that_passes_is_told_of_its_partition(code: int) -> None:
    answer = await fetched(code, -1, -1, -1, None, -1, None)
    assert isinstance(answer, FetchRefused)
    assert isinstance(answer.error, kafka.KafkaError)
    assert answer.error.retriable


@pytest.mark.fault("Fetch: a nearer replica")
@pytest.mark.parametrize("code", [70, 71, 106])
async def test_an_answer_that_is_refused_as_a_whole_passes(code: int) -> None:
    transport, _ = await client(CheckedFetch=FetchResponse_v11(0, code, 0, []))
    with pytest.raises(kafka.KafkaError) as caught:
        await transport.fetch(1, {ONE: PartitionFetch(3, 100)}, max_wait=0.0)
    assert caught.value.retriable


# Produce


ROWS: Final = prepare_rows(
    pa.RecordBatch.from_pylist([{"topic": "t", "partition": 0, "value": b"v"}], _WRITTEN),
    datetime(2026, 1, 1, tzinfo=UTC),
)


async def produced(*rows: Any, attempts: int = 1) -> Any:
    """Send one batch as often as is wanted, and return the last error."""
    connections: Any = Answering(Produce=ProduceResponse_v7([("t", list(rows))], 0))
    requests = ProduceRequests(
        connections,
        options=ProducerOptions(),
        producer=ProducerId(7, 0),
        transaction=None,
        written={},
    )
    batch = ProduceBatch(ROWS, 100, deadline=0.0)
    for _ in range(attempts):
        answers = await requests.send(1, {ONE: batch})
    return answers[ONE], batch


def row(code: int, offset: int = -1, number: int = 0) -> Any:
    return (number, code, offset, -1, -1)


@pytest.mark.fault("Produce")
async def test_a_batch_that_has_arrived_before_counts_as_written() -> None:
    error, batch = await produced(row(46), attempts=2)
    assert (error, batch.first_offset) == (None, None)
    error, _ = await produced(row(46))
    assert isinstance(error, kafka.DuplicateSequenceNumber)  # another one has written it


@pytest.mark.fault("Produce")
async def test_an_answer_about_no_partition_or_another_one_confirms_nothing() -> None:
    for rows in ((), (row(0, 5, number=3),)):
        error, batch = await produced(*rows)
        assert isinstance(error, kafka.KafkaConnectionError)
        assert batch.first_offset is None


@pytest.mark.fault("Produce")
@pytest.mark.parametrize("code", [3, 5, 6, 7, 13, 19, 20, 51, 56, 89])
async def test_a_batch_that_cannot_be_written_for_now_is_sent_again(code: int) -> None:
    error, _ = await produced(row(code))
    assert final_error(error) is None


@pytest.mark.fault("Produce")
async def test_a_record_that_a_topic_does_not_take_is_named_as_such() -> None:
    error, _ = await produced(row(87))
    final = final_error(error)
    assert isinstance(final, UnwritableRecordError)
    assert "a compacted one takes none without a key" in str(final)


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (47, FencedError, "a newer run has taken over"),
        (49, BatchNotWrittenError, "transactional.id.expiration.ms"),
        (90, FencedError, "a newer run has taken over"),
        (120, BatchNotWrittenError, "open the writer again, and write what follows"),
    ],
)
async def test_a_transaction_that_cannot_go_on_says_what_to_do(
    code: int, kind: type[FanOutError], text: str
) -> None:
    error, _ = await produced(row(code))
    final = final_error(error)
    assert type(final) is kind
    assert text in str(final)
    # A sink begins the batch again, in a transaction of its own.
    with pytest.raises(AttemptFailedError):
        _raise_failure(final)


# InitProducerId, AddPartitionsToTxn, TxnOffsetCommit


@pytest.mark.fault("InitProducerId")
@pytest.mark.parametrize("code", [7, 14, 15, 16, 51])
async def test_a_producer_id_that_is_not_assigned_yet_is_asked_for_again(code: int) -> None:
    connections: Any = Answering(InitProducerId=InitProducerIdResponse_v0(0, code, -1, -1))
    with pytest.raises(kafka.KafkaError) as caught:
        await obtain_producer_id(connections, Idempotent())
    assert caught.value.retriable


@pytest.mark.fault("AddPartitionsToTxn, TxnOffsetCommit")
async def test_partitions_that_are_left_out_are_not_part_of_a_transaction() -> None:
    """A broker that does not check would keep their records out of every commit."""
    for added in ([], [("t", [(0, 0)])]):
        connections: Any = Answering(AddPartitionsToTxn=AddPartitionsToTxnResponse_v0(0, added))
        transaction = OpenTransaction(connections, Transactional("id", OURS))
        with pytest.raises(kafka.KafkaProtocolError, match="nothing about") as caught:
            await transaction.add([ONE, TWO])
        assert caught.value.retriable


@pytest.mark.fault("AddPartitionsToTxn, TxnOffsetCommit")
@in_virtual_time
async def test_offsets_that_are_left_out_are_set_again() -> None:
    """The transaction would commit without them, and its records would be read again."""
    connections: Any = Answering(
        AddOffsetsToTxn=AddOffsetsToTxnResponse_v0(0, 0),
        TxnOffsetCommit=[
            TxnOffsetCommitResponse_v3(0, [], {}),
            TxnOffsetCommitResponse_v3(0, [("t", [(0, 0, {})], {})], {}),
            TxnOffsetCommitResponse_v3(0, [("t", [(0, 0, {}), (1, 0, {})], {})], {}),
        ],
    )
    transactions = Transactions(TransactionCalls(connections), jitter=JITTER, patience=60.0)
    await transactions.store_offsets("id", OURS, GroupOffsets("g", {ONE: 1, TWO: 2}, {}))
    assert connections.sent["TxnOffsetCommit"] == 3


CLAIM: Final = GroupOffsets("g", {ONE: 1}, {"t": "text"}, Identity("member", 5, "static"))


def set_by_a_member(*codes: int) -> Any:
    answers = [TxnOffsetCommitResponse_v3(0, [("t", [(0, code, {})], {})], {}) for code in codes]
    return Answering(AddOffsetsToTxn=AddOffsetsToTxnResponse_v0(0, 0), TxnOffsetCommit=answers)


@pytest.mark.parametrize("code", [22, 25, 82, 110, 113])
async def test_offsets_of_a_member_that_the_group_has_fenced_are_refused(code: int) -> None:
    transactions = Transactions(
        TransactionCalls(set_by_a_member(code)), jitter=JITTER, patience=60.0
    )
    with pytest.raises(MemberRefusedError, match=f"refuses offsets .*: {CODE_NAMES[code]}"):
        await transactions.store_offsets("id", OURS, CLAIM)


@pytest.mark.parametrize("code", [14, 15, 16, 51])
@in_virtual_time
async def test_offsets_of_a_member_are_set_again_while_the_coordinator_moves(code: int) -> None:
    connections = set_by_a_member(code, code, 0)
    transactions = Transactions(TransactionCalls(connections), jitter=JITTER, patience=60.0)
    await transactions.store_offsets("id", OURS, CLAIM)
    assert connections.sent["TxnOffsetCommit"] == 3


@pytest.mark.parametrize("code", [47, 48, 49])
async def test_offsets_of_a_member_are_no_error_in_a_transaction_that_has_ended(code: int) -> None:
    transactions = Transactions(
        TransactionCalls(set_by_a_member(code)), jitter=JITTER, patience=60.0
    )
    await transactions.store_offsets("id", OURS, CLAIM)  # its end tells how


def test_a_member_sets_offsets_in_the_bytes_of_version_3() -> None:
    """As TxnOffsetCommitRequest.json has them: compact strings, and a byte for tagged fields."""
    request = TxnOffsetCommitRequest(
        ("id", "g", 7, 3), ("m", 5, None), [("t", [(0, 10, 4, "text")])]
    )
    built = request.prepare({28: (0, 5)})
    assert built.API_VERSION == 3
    fields = (
        *(b"\x03id", b"\x02g", b"\0\0\0\0\0\0\0\x07", b"\0\x03", b"\0\0\0\x05", b"\x02m"),
        *(b"\0", b"\x02", b"\x02t", b"\x02", b"\0\0\0\0", b"\0\0\0\0\0\0\0\x0a"),
        *(b"\0\0\0\x04", b"\x05text", b"\0", b"\0", b"\0"),
    )
    assert built.encode() == b"".join(fields)


# FindCoordinator


@pytest.mark.fault("FindCoordinator")
@pytest.mark.parametrize("code", [14, 15])
@in_virtual_time
async def test_a_coordinator_that_is_being_elected_is_looked_for_again(code: int) -> None:
    none = FindCoordinatorResponse_v1(0, code, "", -1, "", -1)
    transport, connections = await client(
        FindCoordinator=[none, none, FindCoordinatorResponse_v1(0, 0, "", 1, "a", 1)],
        StoredOffsets=committed((0, 7, 0)),
    )
    resolver = OffsetResolver(transport, "g", JITTER)
    assert await resolver.resolve("start", "committed", [Split("t-0")]) == {ONE: Cursor(6)}
    assert connections.sent["FindCoordinator"] == 3


# DescribeConfigs


@pytest.mark.fault("DescribeConfigs")
@pytest.mark.parametrize(
    ("entries", "seconds"),
    [
        ([("transaction.max.timeout.ms", "60000", True, True, False)], 60.0),
        ([("transaction.max.timeout.ms", None, True, True, False)], 900.0),
        ([], 900.0),
    ],
)
@in_virtual_time
async def test_a_setting_that_a_broker_does_not_report_has_its_default(
    entries: Any, seconds: float
) -> None:
    answer = DescribeConfigsResponse_v0(0, [(0, "", 4, "1", entries)])
    connections: Any = Answering(DescribeConfigs=answer)
    transactions = Transactions(TransactionCalls(connections), jitter=JITTER, patience=60.0)
    assert await transactions.max_timeout() == seconds


@pytest.mark.fault("DescribeConfigs")
async def test_a_topic_whose_retention_is_not_reported_can_be_shuffled_in() -> None:
    entries = [("retention.ms", None, False, False, False)]
    connections: Any = Answering(
        DescribeConfigs=DescribeConfigsResponse_v0(0, [(0, "", 2, "t", entries)])
    )
    topic = ShuffleTopic(name="t", partition_count=2, replication_factor=1, retention=None)
    _check(topic, 1, await _configs(connections, "t"))
