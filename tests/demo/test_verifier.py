from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fanout.demo.options import STREAM, DemoFailedError, ServiceName
from fanout.demo.verification import Evidence, Proof, SentRecord, verify, verify_in_process
from fanout.demo.workspace import ReadRecord, Workspace
from fanout.testing.s3_clients import BUCKET, s3_files
from fanout.testing.s3_server import serve_s3
from fanout.testing.trials.records import Record, RecordProducer

SHARD = "shardId-000000000000"
FIRST_NUMBER = 49680412602923508161381989364352061050721676279901323266
RECORDS = RecordProducer(STREAM, Random(1)).make(4)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(str(tmp_path))
    give(workspace)
    return workspace


def give(workspace: Workspace, **known: object) -> None:
    """Write down what was sent, and what else is known."""
    sent = [SentRecord(SHARD, str(FIRST_NUMBER + record.number)) for record in RECORDS]
    evidence = msgspec.structs.replace(Evidence(ServiceName.KINESIS, sent, {SHARD: ()}), **known)
    workspace.evidence.write_bytes(msgspec.json.encode(evidence))


def verified(workspace: Workspace) -> Proof:
    """Compare in this process; a process of its own takes a second to start."""
    evidence = msgspec.json.decode(workspace.evidence.read_bytes(), type=Evidence)
    return verify(evidence, list(workspace.read_output()))


def write(workspace: Workspace, batch_id: int, *records: Record, name: str = "part-0") -> None:
    path = Path(workspace.batch(batch_id)) / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(*records), path)


def table(*records: Record) -> pa.Table:
    return pa.table(
        {
            "partitionKey": [record.key for record in records],
            "data": [record.value for record in records],
            "shardId": [SHARD] * len(records),
            "sequenceNumber": [str(FIRST_NUMBER + record.number) for record in records],
        }
    )


def test_a_written_record_is_read_with_its_batch(workspace: Workspace) -> None:
    record = RECORDS[0]
    write(workspace, 12, record)
    write(workspace, 3, RECORDS[1])
    key = record.key.encode()
    expected = ReadRecord(12, key, record.value, SHARD, str(FIRST_NUMBER))
    assert expected in list(workspace.read_output())
    assert len(list(workspace.read_output())) == 2
    assert list(workspace.read_output(12)) == [expected]


def test_a_record_of_kafka_is_read_with_its_partition_and_offset(workspace: Workspace) -> None:
    record = RECORDS[0]
    path = Path(workspace.batch(3)) / "part-0.parquet"
    path.parent.mkdir(parents=True)
    columns = {
        "key": [record.key.encode()],
        "value": [record.value],
        "topic": ["orders"],
        "partition": pa.array([4], pa.int32()),
        "offset": [17],
    }
    pq.write_table(pa.table(columns), path)
    expected = ReadRecord(3, record.key.encode(), record.value, "orders-4", "17")
    assert list(workspace.read_output()) == [expected]


def test_a_record_of_a_shuffle_is_read_with_its_time(workspace: Workspace) -> None:
    record = RECORDS[0]
    path = Path(workspace.batch(3)) / "part-0.parquet"
    path.parent.mkdir(parents=True)
    columns = {
        "key": [record.key.encode()],
        "value": [record.value],
        "topic": ["orders-by-key"],
        "partition": pa.array([4], pa.int32()),
        "offset": [17],
        "eventTime": pa.array([1_234], pa.timestamp("ms")),
    }
    # As Spark writes timestamps.
    pq.write_table(pa.table(columns), path, use_deprecated_int96_timestamps=True)
    key = record.key.encode()
    expected = ReadRecord(3, key, record.value, "orders-by-key-4", "17", 1_234)
    assert list(workspace.read_output()) == [expected]


def test_reports_of_watermarks_are_read_in_their_order(workspace: Workspace) -> None:
    reported = [(0, None), (1, 7), (1, 7)]
    give(workspace, reported=reported)
    evidence = msgspec.json.decode(workspace.evidence.read_bytes(), type=Evidence)
    assert evidence.reported == reported
    proof = verified(workspace)
    assert (proof.watermark_violations, proof.watermark_passed) == (0, 0)
    give(workspace, reported=[*reported, (1, 6)])
    assert verified(workspace).watermark_violations == 1


def test_files_that_spark_has_not_committed_do_not_count(workspace: Workspace) -> None:
    (Path(workspace.batch(0)) / "_temporary").mkdir(parents=True)
    write(workspace, 0, RECORDS[0], name="_temporary/part-0")
    assert list(workspace.read_output()) == []


def test_a_whole_output_is_proven(workspace: Workspace) -> None:
    first, *others = RECORDS
    write(workspace, 0, first)
    write(workspace, 1, *others[:1])
    write(workspace, 1, *others[1:], name="part-1")
    proof = verify_in_process(workspace)
    assert proof.holds
    assert (proof.records_sent, proof.records_read, proof.batches) == (4, 4, 2)


def test_a_restart_is_proven_from_its_file(workspace: Workspace) -> None:
    first, *others = RECORDS
    write(workspace, 0, first)
    write(workspace, 1, *others)
    assert verified(workspace).second_generation is None
    give(workspace, killed_in=0, born=frozenset({SHARD}))
    assert verified(workspace).second_generation == 3


def test_a_missing_batch_is_found(workspace: Workspace) -> None:
    write(workspace, 0, *RECORDS[:3])
    assert verified(workspace).lost == 1


def test_an_output_that_was_never_written_is_all_lost(workspace: Workspace) -> None:
    assert verified(workspace).lost == 4


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DemoFailedError, match=r"cannot be compared.*No such file"):
        verify_in_process(Workspace(str(tmp_path)))


@pytest.mark.long
def test_an_output_on_s3_is_proven_and_nothing_of_it_is_on_the_disk(workspace: Workspace) -> None:
    first, *others = RECORDS
    with serve_s3() as endpoint:
        on_s3 = Workspace(workspace.root, endpoint)
        assert on_s3.checkpoint("shuffling query") == f"s3a://{BUCKET}/checkpoints/shuffling-query"
        assert verify_in_process(on_s3).lost == 4
        for batch_id, name, records in (
            (0, "part-0", [first]),
            (10, "part-0", others[:1]),
            (10, "part-1", others[1:]),
            (10, "_temporary/0/part-1", others[1:]),
        ):
            path = f"{on_s3.batch(batch_id).removeprefix('s3a://')}/{name}.parquet"
            pq.write_table(table(*records), path, filesystem=s3_files(endpoint))
        counts = [len(list(on_s3.read_output(batch_id))) for batch_id in (0, 1, 10)]
        assert counts == [1, 0, 3]
        proof = verify_in_process(on_s3)
    assert proof.holds
    assert (proof.records_sent, proof.records_read, proof.batches) == (4, 4, 2)
    assert verify_in_process(workspace).lost == 4
