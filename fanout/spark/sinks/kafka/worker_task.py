"""The Spark task of a sink: it writes the rows of its partitions to Kafka in a Python worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeAlias, final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from fanout.core.remote_error import ErrorWire
from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import FanOutError, ServiceError, UnwritableRecordError
from fanout.kafka.writing.producer_id import Transactional, WriteMode
from fanout.kafka.writing.writer import open_writer
from fanout.spark.sinks.kafka.owned_rows import OwnedRows
from fanout.spark.workers.spare_worker import spare_worker

if TYPE_CHECKING:
    from fanout.kafka.cluster import Cluster
    from fanout.kafka.writing.write_options import ProducerOptions
    from fanout.kafka.writing.writer import KafkaWriter
    from fanout.spark.sinks.kafka.owned_rows import SharedFiles

REPORT_SCHEMA: Final = "report string"

_END: Final = object()

Batches: TypeAlias = Iterator[pa.RecordBatch]

_Count = Annotated[int, msgspec.Meta(ge=0)]


class Encoder(Protocol):
    """Encode a task's rows into the records that are written."""

    newest: int | None
    """The latest event time of all rows, in milliseconds; None where there is none."""

    def encode(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the records of some rows, in order; the partitions are those of the rows."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The settings of the tasks of a batch; they are pickled and sent to the workers."""

    cluster: Cluster  # see `Cluster.for_workers`
    mode: WriteMode  # the transaction or the producer that the records belong to
    producing: ProducerOptions
    topic: str | None  # of all rows; None where the rows name it
    # Makes the encoder of a task; None to write rows as they are.
    encoder: Callable[[], Encoder] | None = None


@final
class TaskReport(msgspec.Struct, frozen=True):
    """The result of a task."""

    stage: _Count  # Spark's number of its stage
    task: _Count  # its number in the stage
    rows: _Count = 0  # that it has written
    bytes: _Count = 0  # of these records, as they were sent
    # The number of records in each partition, by topic.
    partitions: dict[str, dict[_Count, _Count]] = {}
    # Of rows that it has not written, because the driver did not know them.
    new_topics: list[str] = []
    # The latest event time of its rows, in milliseconds, where they are encoded.
    newest: int | None = None
    checksum: _Count = 0  # that of the partitions of all rows of the batch, where it has read them
    # The error that ended it, as data: Spark would try a task that raises again.
    failure: ErrorWire | None = None


def read_report(text: str) -> TaskReport:
    """Parse the report of a task; raise ServiceError where it is malformed."""
    try:
        return msgspec.json.decode(text, type=TaskReport)
    except MALFORMED_JSON as error:
        raise ServiceError(f"a Spark task answered with no report: {error}") from error


def task(options: TaskOptions) -> Callable[[Batches], Batches]:
    """Return the function that a task runs on its rows: it writes them, and returns a report."""

    def write_to_kafka(batches: Batches) -> Batches:
        report = _write_task(batches, options)
        for _ in batches:  # Spark's side waits until all its rows were read
            pass
        yield pa.RecordBatch.from_arrays([pa.array([_text(report)])], names=["report"])

    return write_to_kafka


def file_task(options: TaskOptions, files: SharedFiles) -> Callable[[Iterable[int]], list[str]]:
    """Return the function of a task that reads its rows from files; it returns a report."""

    def write_to_kafka(_: Iterable[int]) -> list[str]:
        context = TaskContext.get()
        assert context is not None, "it runs in a task"
        rows = OwnedRows(files, context.partitionId())
        report = _write_task(iter(rows), options)
        return [_text(msgspec.structs.replace(report, checksum=rows.checksum))]

    return write_to_kafka


def write_files(options: TaskOptions, files: SharedFiles) -> TaskReport:
    """Write all rows of files in this process, as one task would; it blocks."""
    return _report(iter(OwnedRows(files, 0)), options, TaskReport(stage=0, task=0))


def _write_task(batches: Batches, options: TaskOptions) -> TaskReport:
    """Write the rows of a task, and return its report, also where it fails."""
    context = TaskContext.get()
    assert context is not None, "it runs in a task"
    _refuse_second_attempt(context, options)
    spare_worker()
    return _report(batches, options, TaskReport(context.stageId(), context.partitionId()))


def _report(batches: Batches, options: TaskOptions, task: TaskReport) -> TaskReport:
    try:
        return asyncio.run(_write(batches, options, task))
    except FanOutError as error:
        return msgspec.structs.replace(task, failure=ErrorWire.of(error))


def _text(report: TaskReport) -> str:
    return msgspec.json.encode(report).decode()


def _refuse_second_attempt(context: Any, options: TaskOptions) -> None:
    """Fail before anything is written, where another attempt may have written the same rows."""
    attempt = context.attemptNumber()
    if isinstance(options.mode, Transactional) and attempt > 0:
        raise RuntimeError(
            f"attempt {attempt} of a task does not write, because the rows of the one before it "
            f"are part of the transaction; look above for why that failed: the whole batch is "
            f"tried again"
        )


async def _write(batches: Batches, options: TaskOptions, task: TaskReport) -> TaskReport:
    new_topics: set[str] = set()
    encoder = None if options.encoder is None else options.encoder()
    async with open_writer(options.cluster, mode=options.mode, options=options.producing) as writer:
        # Spark's iterator reads a socket, which would block the loop.
        while (records := await asyncio.to_thread(next, batches, _END)) is not _END:
            rows = _with_topic(records, options.topic)
            for some in [rows] if encoder is None else encoder.encode(rows):
                await _write_known(writer, some, new_topics)
        written = await writer.flush()
    partitions: dict[str, dict[int, int]] = {}
    for partition, rows_there in written.partitions.items():
        partitions.setdefault(partition.topic, {})[partition.number] = rows_there
    return msgspec.structs.replace(
        task,
        rows=written.rows,
        bytes=written.bytes,
        partitions=partitions,
        new_topics=sorted(new_topics),
        newest=None if encoder is None else encoder.newest,
    )


def _with_topic(records: pa.RecordBatch, topic: str | None) -> pa.RecordBatch:
    if topic is None or "topic" in records.schema.names:
        return records
    column = pa.repeat(pa.scalar(topic), records.num_rows)
    return records.append_column("topic", column)


async def _write_known(writer: KafkaWriter, records: pa.RecordBatch, new_topics: set[str]) -> None:
    """Write the rows that have a partition; the driver did not know the topics of the others."""
    partitions = records["partition"]
    if partitions.null_count:
        topics = records.filter(pc.is_null(partitions))["topic"].unique().to_pylist()
        if None in topics:
            raise UnwritableRecordError("a record has no topic: give each one")
        new_topics.update(topics)
        records = records.filter(pc.is_valid(partitions))
    if records.num_rows:
        await writer.write(records)
