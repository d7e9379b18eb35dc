"""Start a Spark query that hands a source's records to a handler, in exact micro-batches."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from fanout.core.membership import refuse_group
from fanout.core.opening import ResumePoint, resolved_start
from fanout.core.option_checks import (
    at_least_one,
    check_path,
    check_source,
    location_text,
    number,
    whole,
)
from fanout.core.user_functions import check_function, check_on_resubscribe
from fanout.errors import CheckpointError, OptionError, PositionError
from fanout.landing.claims import claim
from fanout.landing.log.columns import with_reader_of_start
from fanout.landing.log.ledger import BatchLedger
from fanout.landing.log.reading import BatchLimits, LandingPlace
from fanout.landing.log.set_aside import SetAsideLog
from fanout.landing.segments.segments import SegmentLog
from fanout.spark.hadoop.jvm import JAVA_ERRORS
from fanout.spark.hadoop.jvm_lock import JvmProcess
from fanout.spark.hadoop.session_checks import require_classic
from fanout.spark.hadoop.storage import open_storage, sweep_offsets
from fanout.spark.landers.stream import LandersStream
from fanout.spark.query.batch_context import BatchContext, RecoveringHandler
from fanout.spark.query.batch_runner import BatchRunner, check_handler
from fanout.spark.query.failed_batches import FailedBatches
from fanout.spark.query.query import FanOutQuery
from fanout.spark.query.query_stream import QueryStream
from fanout.spark.query.signals import heed_signals, stop_with_signals
from fanout.spark.workers.arrow_schema import check_spark_reads, is_case_sensitive
from fanout.spark.workers.loop_thread import LoopThread

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from fanout.core.checkpoint import Checkpoint
    from fanout.core.source import Source
    from fanout.core.statistics import OnResubscribe
    from fanout.landing.log.entries import BatchEntry
    from fanout.spark.landers.stream import OnExecutors
    from fanout.spark.query.batch_runner import Handler
    from fanout.spark.query.failed_batches import OnFailedBatch


def foreach_batch(
    spark: SparkSession,
    source: Source,
    handler: Handler,
    *,
    checkpoint_location: str | PathLike[str],
    max_records: int = 100_000,
    max_bytes: int = 128 * 1024 * 1024,
    min_records: int = 1,
    max_wait: float = 1.0,
    processing_time: str | None = None,
    available_now: bool = False,
    query_name: str | None = None,
    on_resubscribe: OnResubscribe | None = None,
    on_failed_batch: OnFailedBatch | None = None,
    landing: OnExecutors | None = None,
    group: None = None,
) -> FanOutQuery:
    """Start a query that hands a source's records to a handler, in exact micro-batches.

    A batch id has one content for ever: if the driver dies, the handler is called again with the
    same id and the same rows. A handler that overwrites its own batch, or writes it under its id,
    therefore gives exactly-once results. While Spark works on one batch the next is drained.

    Args:
        spark: A classic session (not Spark Connect).
        source: The source, for example a `KinesisSource`.
        handler: Called with a DataFrame and the batch id, in one thread, never without rows; for
            example a `KafkaSink`. The batch is done when it returns: it is no async function.
        checkpoint_location: A directory for this query alone, on any file system that Spark's
            own checkpoint can be on. Segments are stored there too.
        max_records: The most records in a batch.
        max_bytes: The most bytes of records in a batch, as they are in memory.
        min_records: The records for which a batch waits, so that a trickle makes no small files.
            A batch has fewer `max_wait` seconds after its first record, at `max_bytes`, and where
            no more will come; with landers also where one of them has its part of `max_records`,
            or a split ends or moves. A share group is refused with it.
        max_wait: Seconds to go on collecting while Spark waits and records keep coming. It is a
            ceiling, not a pause: a batch with `min_records` begins 10 ms after the newest record.
        processing_time: Spark's trigger interval, for example "10 seconds"; None starts a batch
            as soon as the last one is done and there are records.
        available_now: Read until every split has once reached its newest record, then end the
            query.
        query_name: Spark's name of the query.
        on_resubscribe: Called with the split, the cause and the delay in seconds each time a
            subscription is to be opened again. It must not block; what it raises ends the query.
            Landers tell of their resubscriptions once a second, of 1,000 each at most. An error of
            theirs that is not of the library is a `ForeignError`, whose text begins with its name.
        on_failed_batch: Called as the handler is, with the handler's `BatchFailedError` as third
            argument, after the handler has raised what may be about the rows. When it returns, the
            batch is set aside: counted, logged, and never given to the handler again. Where it
            raises, the query fails with the batch. None fails with each error. See
            `docs/foreach-batch.md`.
        landing: Where records are read: `OnExecutors(landers=8)` for landers on Spark's executors;
            None for the driver.
        group: A query joins no group: anything but None is refused.

    Returns:
        The running query.

    Raises:
        OptionError: If the handler is no plain function, an option is out of range, two contradict
            each other, or Spark cannot read a column of the source.
        SetupError: If the session is not classic; Java, credentials or a library are missing; or
            Spark's Python workers cannot run the tasks of a sink.
        ServiceError: If the source does not exist, or may not be read.
        CheckpointError: If the checkpoint is another source's, is in use, is damaged, was written
            by a newer version, or cannot be written; or if it is unknown whether an earlier run has
            committed a batch to Kafka.
    """
    check_source(source)
    check_handler(handler)
    checkpoint_location = location_text("checkpoint_location", checkpoint_location)
    refuse_group(
        group,
        "the checkpoint of a query has the positions of all splits; leave it out, and share the "
        "work among landers on Spark's executors by landing=OnExecutors(...)",
    )
    check_on_resubscribe(on_resubscribe)
    if on_failed_batch is not None:
        kind = "a function of a DataFrame, a batch id and an error"
        check_function("on_failed_batch", on_failed_batch, kind, arguments=3)
    if available_now and processing_time is not None:
        raise OptionError("available_now and processing_time contradict each other; pass one")
    _check_limits(max_records, max_bytes, max_wait)
    _check_min_records(min_records, max_records, max_wait)
    check_path("checkpoint_location", checkpoint_location)
    require_classic(spark)
    heed_signals(spark)
    limits = BatchLimits(max_records, max_bytes, max_wait, min_records)
    clock = _clock(spark, checkpoint_location, processing_time, query_name)
    # A start that is refused makes no checkpoint, and takes none from a query that runs.
    check_spark_reads(source.schema, case_sensitive=is_case_sensitive(spark))
    with ExitStack() as resources:
        storage = open_storage(spark, checkpoint_location)
        resources.callback(storage.close)
        source, keep_reader = with_reader_of_start(storage, source)
        check_spark_reads(source.schema, case_sensitive=is_case_sensitive(spark))
        ownership = resources.enter_context(claim(storage, JvmProcess(spark)))
        storage.sweep()
        sweep_offsets(spark, checkpoint_location)
        ledger = BatchLedger(storage, ownership)
        segments = SegmentLog(
            storage.scratch(),
            ownership.run,
            source.schema,
            max_records=max_records,
            max_bytes=max_bytes,
        )
        loop = resources.enter_context(LoopThread())

        def context(entry: BatchEntry) -> BatchContext:
            return BatchContext(
                entry.batch_id,
                entry.query_id,
                storage,
                ownership,
                loop,
                watermark=entry.watermark,
                content=entry.content,
                describe=lambda: (stream.statistics().origin, ledger.batch(entry.batch_id)),
            )

        if isinstance(handler, RecoveringHandler):
            _recover(spark, handler, loop, ledger, context)
        try:
            first = ledger.newest is None and ledger.pending.positions is None
            resume = ResumePoint(_positions(ledger, loop, source), first)
            keep_reader(ownership)
            stream: QueryStream | LandersStream
            if landing is None:
                stream = QueryStream(
                    loop,
                    source,
                    resume,
                    segments,
                    ledger.pending,
                    limits=limits,
                    bounded=available_now,
                    on_resubscribe=on_resubscribe,
                )
            else:
                stream = LandersStream(
                    spark,
                    loop,
                    source,
                    LandingPlace(storage, ownership.run, resume),
                    landing,
                    limits=limits.shared_by(landing.landers),
                    bounded=available_now,
                    on_resubscribe=on_resubscribe,
                )
                resources.callback(stream.close)
        except PositionError as error:
            raise CheckpointError(f"{storage.location} cannot be continued: {error}") from error
        runner = BatchRunner(
            spark,
            source.schema,
            handler,
            storage=storage,
            ledger=ledger,
            context=context,
            take=stream.take,
            failed=FailedBatches(on_failed_batch, SetAsideLog(storage, ownership)),
            acknowledge=stream.acknowledge,
        )
        query = FanOutQuery(stream, runner, ledger, ownership, resources)
        query.start(clock)
    stop_with_signals(query)
    return query


def _check_limits(max_records: int, max_bytes: int, max_wait: float) -> None:
    if number("max_wait", max_wait) < 0:
        raise OptionError(f"max_wait={max_wait} must not be negative")
    if whole("max_records", max_records) < 1 or whole("max_bytes", max_bytes) < 1:
        raise OptionError(f"max_records={max_records} and max_bytes={max_bytes} must be at least 1")


def _check_min_records(min_records: int, max_records: int, max_wait: float) -> None:
    at_least_one("min_records", min_records)
    if min_records > max_records:
        raise OptionError(f"min_records={min_records} is above max_records={max_records}")
    if min_records > 1 and max_wait == 0:
        raise OptionError(
            f"min_records={min_records} needs max_wait, the most seconds that a record waits for "
            f"others, and max_wait=0 waits for none"
        )


def _recover(
    spark: SparkSession,
    handler: RecoveringHandler,
    loop: LoopThread,
    ledger: BatchLedger,
    context: Callable[[BatchEntry], BatchContext],
) -> None:
    """Let a handler finish the open work of an earlier run, before any split is subscribed."""
    handler.prepare(spark, loop)
    if (newest := ledger.newest) is not None:
        handler.recover(context(newest))


def _positions(ledger: BatchLedger, loop: LoopThread, source: Source) -> Checkpoint:
    """Return the positions to continue after; in the first run, resolve the start and store it."""
    stored = ledger.pending.positions or ledger.positions()
    return stored or ledger.write_origin(loop.call(resolved_start(source)).to_json())


def _clock(
    spark: SparkSession, checkpoint_location: str, processing_time: str | None, name: str | None
) -> DataStreamWriter:
    """Return a stream whose offsets are Spark's own, so that a batch id survives every crash.

    Its offsets do not depend on the wall clock, and it starts a batch whenever the last one is
    done.
    """
    clock = spark.readStream.format("rate-micro-batch")
    rows = clock.option("rowsPerBatch", 1).option("numPartitions", 1).load()
    writer = rows.writeStream.option("checkpointLocation", checkpoint_location)
    if processing_time is not None:
        try:
            writer = writer.trigger(processingTime=processing_time)
        except (ValueError, *JAVA_ERRORS) as error:
            raise OptionError(
                f"processing_time={processing_time!r} is no interval; pass one like '10 seconds'"
            ) from error
    return writer if name is None else writer.queryName(name)
