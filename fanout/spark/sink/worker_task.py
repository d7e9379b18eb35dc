"""What one Spark task does in its Python worker: write the rows of its partitions to Kafka."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeAlias, final
from zipimport import zipimporter

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from pyspark import TaskContext

from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import (
    BadFrameError,
    FanOutError,
    FencedError,
    OptionError,
    ServiceError,
    UnwritableRecordError,
    WriteTimeoutError,
)
from fanout.kafka.writing.producer_id import Transactional, WriteMode
from fanout.kafka.writing.writer import open_writer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.kafka.security import Security
    from fanout.kafka.writing.producer_options import ProducerOptions
    from fanout.kafka.writing.writer import KafkaWriter

__all__ = (
    "REPORT_SCHEMA",
    "Delivery",
    "Encoder",
    "Failure",
    "Report",
    "read_report",
    "spare_worker",
    "task",
)


REPORT_SCHEMA: Final = "report string"

_END: Final = object()

_FAILURES: Final[dict[str, type[FanOutError]]] = {
    kind.__name__: kind
    for kind in (
        BadFrameError,
        FencedError,
        OptionError,
        ServiceError,
        UnwritableRecordError,
        WriteTimeoutError,
    )
}

Batches: TypeAlias = Iterator[pa.RecordBatch]

_Count = Annotated[int, msgspec.Meta(ge=0)]


class Encoder(Protocol):
    """Makes of a task's rows what is written."""

    newest: int | None
    """The latest event time of all rows, in milliseconds; None where there is none."""

    def encode(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield what is written of some rows, in order; the partitions are those of the rows."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """How tasks write; it is sent to them.

    Args:
        bootstrap_servers: Brokers to begin with.
        make_security: Says how they are talked to.
        mode: Whose records they are.
        options: What users say by Kafka's own names.
        client_id: What the brokers' logs and quotas call us.
        topic: Where everything goes; None where the rows say it.
        encoder: Makes what a task makes of its rows; None where they are written as they are.
    """

    bootstrap_servers: str | Sequence[str]
    make_security: Callable[[], Security]
    mode: WriteMode
    options: ProducerOptions
    client_id: str
    topic: str | None
    encoder: Callable[[], Encoder] | None = None


@final
class Failure(msgspec.Struct, frozen=True):
    """An error of this library in a task: Spark would try the task again, which helps nobody.

    Args:
        kind: The name of its class.
        message: What it says.
    """

    kind: str
    message: str

    def error(self) -> FanOutError:
        """Return the error as it was."""
        return _FAILURES.get(self.kind, ServiceError)(self.message)


@final
class Report(msgspec.Struct, frozen=True):
    """What a task has done.

    Args:
        stage: Spark's number of its stage.
        task: Its number in the stage.
        rows: The records that it has written.
        bytes: Their bytes, as they were sent.
        partitions: Where they are, by topic, and how many in each.
        new_topics: Topics of rows that it has not written, because nobody knew them.
        newest: The latest event time of its rows, in milliseconds, where they are encoded.
        failure: Why it gave up; None where it has written everything else.
    """

    stage: _Count
    task: _Count
    rows: _Count = 0
    bytes: _Count = 0
    partitions: dict[str, dict[_Count, _Count]] = {}
    new_topics: list[str] = []
    newest: int | None = None
    failure: Failure | None = None


def read_report(text: str) -> Report:
    """Read back what a task has said.

    Raises:
        ServiceError: It is no report.
    """
    try:
        return msgspec.json.decode(text, type=Report)
    except MALFORMED_JSON as error:
        raise ServiceError(f"a Spark task answered with no report: {error}") from error


def task(delivery: Delivery) -> Callable[[Batches], Batches]:
    """Return what a task does with its rows: it writes them, and returns a report."""

    def write_to_kafka(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None, "it runs in a task"
        _refuse_second_attempt(context, delivery)
        spare_worker()
        try:
            report = asyncio.run(_write(batches, delivery, context))
        except FanOutError as error:
            for _ in batches:  # Spark's side waits until it has said everything
                pass
            failure = Failure(type(error).__name__, str(error))
            report = Report(context.stageId(), context.partitionId(), failure=failure)
        text = msgspec.json.encode(report).decode()
        yield pa.RecordBatch.from_arrays([pa.array([text])], names=["report"])

    return write_to_kafka


def _refuse_second_attempt(context: Any, delivery: Delivery) -> None:
    """Fail before anything is written, where another attempt may have written the same rows."""
    attempt = context.attemptNumber()
    if isinstance(delivery.mode, Transactional) and attempt > 0:
        raise RuntimeError(
            f"attempt {attempt} of a task does not write, because what the one before it wrote is "
            f"part of the transaction; look above for why that failed: the whole batch is tried "
            f"again"
        )


async def _write(batches: Batches, delivery: Delivery, context: Any) -> Report:
    new_topics: set[str] = set()
    encoder = None if delivery.encoder is None else delivery.encoder()
    async with open_writer(
        delivery.bootstrap_servers,
        security=delivery.make_security(),
        mode=delivery.mode,
        options=delivery.options,
        client_id=delivery.client_id,
    ) as writer:
        # Spark's iterator reads a socket, which would block the loop.
        while (records := await asyncio.to_thread(next, batches, _END)) is not _END:
            rows = _with_topic(records, delivery.topic)
            for some in [rows] if encoder is None else encoder.encode(rows):
                await _write_known(writer, some, new_topics)
        written = await writer.flush()
    partitions: dict[str, dict[int, int]] = {}
    for partition, rows_there in written.partitions.items():
        partitions.setdefault(partition.topic, {})[partition.number] = rows_there
    return Report(
        context.stageId(),
        context.partitionId(),
        rows=written.rows,
        bytes=written.bytes,
        partitions=partitions,
        new_topics=sorted(new_topics),
        newest=None if encoder is None else encoder.newest,
    )


def _with_topic(records: pa.RecordBatch, topic: str | None) -> pa.RecordBatch:
    if topic is None:
        return records
    column = pa.repeat(pa.scalar(topic), records.num_rows)
    return records.append_column("topic", column)


async def _write_known(writer: KafkaWriter, records: pa.RecordBatch, new_topics: set[str]) -> None:
    """Write the rows that have a partition; the others' topics were not known to the driver."""
    partitions = records["partition"]
    if partitions.null_count:
        topics = records.filter(pc.is_null(partitions))["topic"].unique().to_pylist()
        if None in topics:
            raise UnwritableRecordError("a record has no topic: give each one")
        new_topics.update(topics)
        records = records.filter(pc.is_valid(partitions))
    if records.num_rows:
        await writer.write(records)


def spare_worker() -> None:
    """Make the tasks after this one in its worker cheaper to begin and to end."""
    _spare_modules()
    _spare_archive()


@cache
def _spare_modules() -> None:
    """Leave what a worker has loaded out of its garbage collections.

    There is one after each task, and it goes through all of Arrow, pandas and Kafka's protocol:
    about 100,000 objects that stay.
    """
    gc.collect()
    gc.freeze()


def _spare_archive() -> None:
    """Forget who imports from Spark's archive; who imports from it again is found again.

    Before each task Spark 3.5 and 4.0 tell all importers to look again what there is, because the
    user may have added files. Python then reads the directory of pyspark.zip, which does not
    change, once for each of the packages in it that were imported from: a thousand names, a dozen
    times.
    """
    ours = pyspark.__spec__.loader
    if not isinstance(ours, zipimporter):
        return
    for path, importer in [*sys.path_importer_cache.items()]:
        if isinstance(importer, zipimporter) and importer.archive == ours.archive:
            del sys.path_importer_cache[path]
