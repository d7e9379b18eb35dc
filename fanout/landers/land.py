"""Land a source in Parquet files, in this process or by several."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from fanout._exports import naming_extras
from fanout.core.cancellation import in_thread
from fanout.core.membership import refuse_group
from fanout.core.opening import open_stored
from fanout.core.option_checks import (
    as_sequence,
    at_least_one,
    check_mapping,
    check_offers,
    check_source,
    check_text,
    location_text,
    number,
    one_of,
    wrong_type,
)
from fanout.core.sentence import Option
from fanout.errors import OptionError
from fanout.landing.lander import KEEP_FOR_READERS, check_not_lent, open_landing
from fanout.landing.log.reading import BatchLimits, ReadingOptions
from fanout.landing.segments.bad_records import check_bad_records, keeping_bad_records
from fanout.landing.segments.partitions import partition_fields
from fanout.landing.segments.segment_filler import SegmentFiller
from fanout.landing.segments.segments import SegmentLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from os import PathLike

    from fanout.core.source import Source
    from fanout.core.statistics import OnResubscribe
    from fanout.landing.lander import Landing
    from fanout.landing.log.reading import LandingPlace, Reading
    from fanout.landing.projections.table_projection import TableOption

_COMPRESSIONS: Final = ("zstd", "snappy", "lz4", "gzip", "none")


@asynccontextmanager
async def land(
    source: Source,
    location: str | PathLike[str],
    *,
    max_records: int = 5_000_000,
    max_bytes: int = 128 * 1024 * 1024,
    max_wait: float = 60.0,
    compression: str = "zstd",
    partition_by: str | Sequence[str] = (),
    partition_by_date: str | None = None,
    keep: timedelta | None = None,
    keep_for_readers: timedelta = KEEP_FOR_READERS,
    storage_options: Mapping[str, str] | None = None,
    spark_log: bool = True,
    tables: Sequence[TableOption] = (),
    bad_records: str | PathLike[str] | None = None,
    new_columns: str = "add",
    available_now: bool = False,
    on_resubscribe: OnResubscribe | None = None,
    processes: int = 1,
    group: None = None,
) -> AsyncIterator[Landing]:
    """Land a source in Parquet files on a disk or in a bucket, exactly once.

    The records are in `LOCATION/segments/*.parquet`; entries beside them say which files were
    landed, in which order, and up to which positions. A run continues after the newest entry, so
    that every record is in one entry, and in one only. A file that a killed run named in no entry
    is deleted before the next run writes one. Of two runs on one location the newer one goes on.

    Args:
        source: The source, for example a `KinesisSource`; a share group is refused.
        location: A directory, or a URI such as `s3://lake/orders`, `gs://lake/orders` or
            `abfss://lake@account.dfs.core.windows.net/orders`. It belongs to the landing.
        max_records: The most records in a file.
        max_bytes: The most bytes of records in a file, before they are compressed.
        max_wait: The most seconds from the first record of a file until it is written.
        compression: Of the Parquet files: zstd, snappy, lz4, gzip or none.
        partition_by: What directories are made of: columns with texts, integers, booleans or dates,
            and `day(COLUMN)` or `hour(COLUMN)` of times in UTC. `["country", "day(at)"]` puts files
            into `segments/country=DE/at_day=2026-11-22/`.
        partition_by_date: A column with times, such as `"approximateArrivalTimestamp"` of Kinesis
            and `"timestamp"` of Kafka: files are in `segments/date=2026-11-22/` then, by the date
            in UTC. None for one directory.
        keep: Delete entries and files that were written longer ago; None keeps them for ever.
        keep_for_readers: How long after its last commit a named reader, which is a query of
            `format("fanout")`, keeps entries that are older than `keep` and that it has not read.
        storage_options: Settings of the object store by obstore's names, such as `endpoint` and
            `region`. Credentials are found as the service's SDK finds them.
        spark_log: Keep the log by which Spark reads the files without fanout. It has a line for
            each file, in memory too. With False a landing that has none gets none.
        tables: Tables that name the files: each a `DeltaTable` or an `IcebergTable`. They have an
            entry when it is yielded. One that fails stays behind and is tried again; its
            `Statistics.tables` says so, and no file is deleted meanwhile.
        bad_records: A location, as that of the landing, for records that `decode` fails for: below
            it is a directory of this landing, with Parquet files of the records as they came and
            the reason. Each is in one file once. None leaves them to `on_bad_record`.
        new_columns: What becomes of columns that the records did not have when the landing was
            started: `"add"` lands them, and records from before have null there; `"ignore"` leaves
            them out, and a decoder reads with the schema of before.
        available_now: End when every split has once reached its newest record.
        on_resubscribe: Called for each recoverable end of a subscription with the split, the
            cause and the seconds until the next attempt.
        processes: How many processes of this machine read: from 2 on this one starts so many that
            share the splits, and writes the entries and tables. They get the source pickled.
            One that dies is replaced. Each fills a file of its own, in memory of its own.
        group: A landing joins no group: anything but None is refused.

    Yields:
        The landing. Iterate it.

    Raises:
        OptionError: An option is malformed, the source locks its records, or it cannot be pickled
            for other processes.
        SetupError: A library or credentials are missing.
        ServiceError: The source does not exist, or we may not read it.
        CheckpointError: The location cannot be used, is another source's or a Spark query's; on a
            local disk also if another process lands there.

    Cancellation: subscriptions are closed, and other processes have ended, before the block is
    left. Records that are in no entry come again in the next run.
    """
    refuse_group(
        group,
        "a landing has one writer, and the positions of all splits; leave it out, or land several "
        "sources, each at a place of its own",
    )
    check_source(source)
    place = location_text("location", location)
    kept = None if bad_records is None else location_text("bad_records", bad_records)
    check_mapping("storage_options", storage_options)
    for table in as_sequence("tables", tables, "a list of DeltaTable() and IcebergTable(...)"):
        check_offers("tables", table, "open", "a list of DeltaTable() and IcebergTable(...)")
    if partition_by_date is not None:
        check_text("partition_by_date", partition_by_date)
    one_of("compression", compression, *_COMPRESSIONS)
    one_of("new_columns", new_columns, "add", "ignore")
    at_least_one("processes", processes)
    _check_limits(max_records, max_bytes, max_wait, keep=keep, keep_for_readers=keep_for_readers)
    partitions = partial(
        partition_fields, partition_by=partition_by, partition_by_date=partition_by_date
    )
    if new_columns == "add":  # otherwise the columns are those of before
        partitions(source.schema)  # it may refuse
    if kept is not None:
        await in_thread(partial(check_bad_records, kept, place))
        keeping_bad_records(source)  # it may refuse
    limits = BatchLimits(max_records, max_bytes, max_wait)
    options = ReadingOptions(limits, compression, available_now, on_resubscribe)
    if processes == 1:
        reading = partial(_read_here, options=options)
    else:
        with naming_extras("processes="):
            from fanout.landers.processes import read_by_processes  # noqa: PLC0415 - few need it
        reading = partial(
            read_by_processes,
            processes=processes,
            storage_options=storage_options,
            options=options,
        )
    async with open_landing(
        source,
        place,
        reading,
        new_columns=new_columns,
        partitions_of=partitions,
        keep=keep,
        keep_for_readers=keep_for_readers,
        storage_options=storage_options,
        spark_log=spark_log,
        tables=tables,
        bad_records=kept,
    ) as landing:
        yield landing


@asynccontextmanager
async def _read_here(
    place: LandingPlace, source: Source, *, options: ReadingOptions
) -> AsyncIterator[Reading]:
    """Read in this process."""
    limits = options.limits
    scratch = await in_thread(place.storage.scratch)
    segments = SegmentLog(
        scratch,
        place.run,
        source.schema,
        max_records=limits.max_records,
        max_bytes=limits.max_bytes,
        compression=options.compression,
    )
    async with open_stored(
        source if place.bad is None else keeping_bad_records(source),
        place.resume,
        available_now=options.available_now,
        on_resubscribe=options.on_resubscribe,
    ) as stream:
        check_not_lent(stream.capabilities, stream.delivered.source)
        filler = SegmentFiller(
            stream,
            segments,
            max_wait=limits.max_wait,
            bounded=options.available_now,
            eager=False,
        )
        yield stream, filler


def _check_limits(
    max_records: int, max_bytes: int, max_wait: float, **ages: timedelta | None
) -> None:
    for name, value in (("max_records", max_records), ("max_bytes", max_bytes)):
        at_least_one(name, value)
    if number("max_wait", max_wait) < 0:
        raise OptionError(Option("max_wait", max_wait), " must not be negative")
    for name, age in ages.items():
        if age is None and name == "keep":
            continue
        if not isinstance(age, timedelta):
            raise wrong_type(name, age, "a timedelta, such as timedelta(days=7)")
        if age <= timedelta():
            out = "leave it out to keep files" if name == "keep" else "7 days is the default"
            raise OptionError(Option(name), f"={age} must be longer than nothing; {out}")
