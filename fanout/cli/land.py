"""The command `fanout land`: write a stream or topics to Parquet files, exactly once."""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, final

import typer

from fanout.cli.command import ExitCode, fanout_command
from fanout.cli.common import Json, SourceName, age, aware_time, parse_source, print_json
from fanout.cli.metrics_port import MetricsPort, served_metrics
from fanout.cli.service_options import AwsOptions, ClusterOptions, SchemaOptions, typed
from fanout.cli.table_option import table_option
from fanout.core.option_checks import one_of
from fanout.core.sentence import Option
from fanout.errors import OptionError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from fanout.core.source import Source
    from fanout.core.statistics import TableStatistics
    from fanout.kafka.cluster import Cluster
    from fanout.landing.lander import Landing
    from fanout.landing.log.followed import LandedEntry

# An option would show in the list of processes.
_SECRET: Final = re.compile(
    r"secret|token|password|credential|(access|account|sas)_key", re.IGNORECASE
)


@fanout_command("land")
def land(
    source: SourceName,
    location: Annotated[
        str,
        typer.Argument(help="A directory, or a URI such as s3://lake/orders or gs://lake/orders."),
    ],
    *,
    start: Annotated[
        str | None,
        typer.Option(
            help="Where the first run begins: TRIM_HORIZON or LATEST of Kinesis, earliest or "
            "latest of Kafka, or a time such as 2026-11-22T08:00:00+00:00. The oldest record is "
            "the default. Later runs continue.",
            show_default=False,
        ),
    ] = None,
    on_data_loss: Annotated[
        str,
        typer.Option(
            help="What follows when records have expired, or were deleted, before they were read: "
            "fail, or earliest, which goes on with the oldest record that is left."
        ),
    ] = "fail",
    available_now: Annotated[
        bool,
        typer.Option("--available-now", help="End when everything that is there has been landed."),
    ] = False,
    max_wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long a file is filled.")
    ] = 60.0,
    max_records: Annotated[int, typer.Option(help="The most records in a file.")] = 5_000_000,
    max_bytes: Annotated[
        int, typer.Option(help="The most bytes of records in a file, before compression.")
    ] = 128 * 1024 * 1024,
    compression: Annotated[
        str, typer.Option(help="Of the files: zstd, snappy, lz4, gzip or none.")
    ] = "zstd",
    new_columns: Annotated[
        str, typer.Option(help="Columns that the landing lacks: add or ignore them.")
    ] = "add",
    partition_by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="Put files into directories by a column, such as segments/country=DE/, or by "
            "day(COLUMN) or hour(COLUMN) of times in UTC; can be repeated.",
            show_default=False,
        ),
    ] = None,
    partition_by_date: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Put files into segments/date=2026-11-22/ and so on, by a column with times: "
            "approximateArrivalTimestamp of Kinesis, timestamp of Kafka. The date is that of UTC.",
            show_default=False,
        ),
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="TABLE",
            help="A table that names the files: delta, in LOCATION/segments, or "
            "iceberg:CATALOG/DB.TABLE, in a catalog that pyiceberg loads; can be repeated.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        timedelta | None,
        typer.Option(
            parser=age,
            metavar="AGE",
            help="Delete what was written longer ago, such as 12h, 7d or 2w. Everything is kept "
            "if left out.",
            show_default=False,
        ),
    ] = None,
    keep_for_readers: Annotated[
        timedelta,
        typer.Option(
            parser=age,
            metavar="AGE",
            help="How long after its last commit a named reader of Spark keeps entries that are "
            "older than --keep and that it has not read.",
        ),
    ] = "7d",  # type: ignore[assignment]  # the parser gets it
    storage_options: Annotated[
        list[str] | None,
        typer.Option(
            "--storage-option",
            metavar="NAME=VALUE",
            help="A setting of the object store, such as region=eu-west-1 or "
            "endpoint=https://minio.example; can be repeated. Credentials are found as the "
            "service's SDK finds them.",
            show_default=False,
        ),
    ] = None,
    consumer: Annotated[
        str | None,
        typer.Option(
            help="The enhanced fan-out consumer of Kinesis, registered if it does not exist; the "
            "stream is polled if left out.",
            show_default=False,
        ),
    ] = None,
    aws: AwsOptions,
    group: Annotated[
        str | None,
        typer.Option(
            help="The group of Kafka to which landed offsets are committed, so that tools show "
            "the lag.",
            show_default=False,
        ),
    ] = None,
    kafka: ClusterOptions,
    schemas: SchemaOptions,
    columns: Annotated[
        list[str] | None,
        typed("A column of the source to keep, such as key; can be repeated.", "--column"),
    ] = None,
    into: Annotated[
        str | None, typed("Put all fields into one column, a struct.", metavar="COLUMN")
    ] = None,
    key_into: Annotated[
        str | None, typed("The column for the fields of keys; key if left out.", metavar="COLUMN")
    ] = None,
    on_bad_record: Annotated[
        str, typed("fail, the default, or gap, which leaves a bad record out and counts it.")
    ] = "fail",
    bad_records: Annotated[
        str | None,
        typed(
            "A directory or URI for Parquet files of records that cannot be decoded, each once.",
            metavar="LOCATION",
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            help="How many processes of this machine read and write files, each with splits and "
            "memory of its own."
        ),
    ] = 1,
    metrics_port: MetricsPort = None,
    json: Json = False,
) -> None:
    """Land a stream of Kinesis or topics of Kafka in Parquet files, exactly once.

    The files are in LOCATION/segments. Everything that reads Parquet reads them. The command
    continues where the last one on the same location stopped, also after a crash. It runs until
    SIGTERM or Ctrl-C, and lands what it has read before it ends:

    `fanout land kinesis://orders s3://lake/orders --consumer lander --region eu-west-1 --keep 30d`

    `fanout land kafka://orders ./orders --bootstrap-servers broker:9092 --available-now`

    `fanout land kafka://orders ./orders --decode avro --registry https://registry:8081`

    Each file is one line of output, with `--json` as an object. The exit code is 0 when it was told
    to end, or has landed what was there; it is 1 if a table does not have all of that. A second
    signal ends it at once: with 143 for SIGTERM, and 130 for Ctrl-C.
    """
    import asyncio  # noqa: PLC0415 - for help

    of_kafka: dict[str, object] = {"group": group, "key_decode": schemas.key_decode}
    service, name = parse_source(source, kinesis={"consumer": consumer}, kafka=of_kafka)
    pairs = _pairs(storage_options or ())
    topics = name.split(",") if service == "kafka" else ()
    stored = partial(_stored_reader, location, pairs)
    decoder = schemas.decoder(topics, columns or (), into, stored, key_into=key_into)
    one_of("on_bad_record", on_bad_record, "fail", "gap")
    one_of("on_data_loss", on_data_loss, "fail", "earliest")
    handling = {
        "decode": decoder,
        "on_bad_record": on_bad_record,
        "on_data_loss": on_data_loss,
    }
    reading = (
        _kinesis(name, consumer, start, aws, **handling)
        if service == "kinesis"
        else _kafka(name, kafka.cluster(travels=processes > 1), start, group, **handling)
    )
    options = {
        "compression": compression,
        "new_columns": new_columns,
        "partition_by": partition_by or (),
        "partition_by_date": partition_by_date,
        "bad_records": bad_records,
        "tables": [table_option(table) for table in tables or ()],
        "keep": keep,
        "keep_for_readers": keep_for_readers,
        "storage_options": pairs,
        "available_now": available_now,
        "max_wait": max_wait,
        "max_records": max_records,
        "max_bytes": max_bytes,
        "processes": processes,
    }
    with served_metrics(metrics_port) as watch:
        try:
            landing = _land(reading, location, _Report(processes, as_json=json), watch, **options)
            behind = asyncio.run(landing)
        except asyncio.CancelledError:  # by a signal, before it had begun
            raise typer.Exit(ExitCode.INTERRUPTED) from None
    for table in behind:
        entries = f"{table.entries_behind:,} entries behind"
        typer.echo(f"fanout land: {table.table} is {entries}: {table.failure}", err=True)
    if behind:
        _end_what_hangs()
        raise typer.Exit(ExitCode.FOUND)


def _end_what_hangs() -> None:
    """End the process if a call of a table has not ended: Python would wait for its threads."""
    from fanout.landing.projections.table_projection import is_called  # noqa: PLC0415 - for help

    if is_called():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ExitCode.FOUND)


@final
class _Report:
    """Print each entry, and count them."""

    def __init__(self, processes: int, *, as_json: bool) -> None:
        self._processes = processes
        self._json = as_json
        self.entries = self.rows = self.bytes = 0

    def landed(self, entry: LandedEntry, landing: Landing) -> None:
        self.entries += 1
        self.rows += entry.rows
        self.bytes += entry.bytes
        now = landing.statistics()
        lag = max((one.lag for one in now.splits.values() if one.lag is not None), default=None)
        if self._json:
            print_json(
                {
                    "entry": entry.number,
                    "files": entry.files,
                    "rows": entry.rows,
                    "bytes": entry.bytes,
                    "lag": lag,
                }
                | ({"processes": len(now.landers)} if self._processes > 1 else {})
            )
            return
        behind = "" if lag is None else f", {lag:.1f} s behind"
        if self._processes > 1:
            behind += f", {len(now.landers)} of {self._processes} processes"
        files = ", ".join(entry.files) or "no file"
        typer.echo(f"{files}: {entry.rows:,} records, {entry.bytes / 1e6:,.1f} MB{behind}")

    def ended(self) -> None:
        if self._json:
            print_json({"entries": self.entries, "rows": self.rows, "bytes": self.bytes})
        else:
            typer.echo(
                f"landed {self.rows:,} records in {self.entries:,} entries, "
                f"{self.bytes / 1e6:,.1f} MB"
            )


def _stored_reader(location: str, storage_options: Mapping[str, str]) -> str:
    """Return the schema that a landing was read with; empty where there is none."""
    from fanout.landing.log.columns import stored_reader  # noqa: PLC0415 - for help
    from fanout.landing.storage.opening import open_storage  # noqa: PLC0415 - for help

    with closing(open_storage(location, storage_options)) as storage:
        return stored_reader(storage)


async def _land(
    source: Source,
    location: str,
    report: _Report,
    watch: Callable[[Landing], None],
    **options: Any,
) -> list[TableStatistics]:
    """Land a source; return the tables that lack something in the end."""
    import asyncio  # noqa: PLC0415 - for help

    from fanout.landers.land import land as open_landing  # noqa: PLC0415 - for help

    opening = asyncio.current_task()
    assert opening is not None
    loop = asyncio.get_running_loop()
    _on_signal(loop, opening.cancel)
    async with open_landing(source, location, **options) as landing:
        watch(landing)
        _on_signal(loop, landing.stop)
        async for entry in landing:
            report.landed(entry, landing)
    report.ended()
    return [table for table in landing.statistics().tables if table.entries_behind or table.failure]


def _on_signal(loop: AbstractEventLoop, stop: Callable[[], object]) -> None:
    """Let the next SIGTERM or Ctrl-C end the command cleanly, and the one after it at once."""

    def receive(_: signal.Signals) -> None:
        listen(_end_at_once)
        stop()

    def listen(callback: Callable[[signal.Signals], None]) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, callback, number)

    listen(receive)


def _end_at_once(number: signal.Signals) -> NoReturn:
    """End the process although a thread may wait for a disk or a service."""
    typer.echo(
        f"fanout land: a second signal came, {number.name}: the command ends at once; the next one "
        f"continues after the last entry",
        err=True,
    )
    os._exit(128 + number)


def _kinesis(
    stream: str, consumer: str | None, start: str | None, aws: AwsOptions, **handling: Any
) -> Source:
    begin = _start(start, "TRIM_HORIZON", "LATEST", "earliest", "latest")
    return aws.source(stream, consumer, start=begin, **handling)


def _kafka(
    topics: str, cluster: Cluster, start: str | None, group: str | None, **handling: Any
) -> Source:
    from fanout.kafka.reading.kafka_source import KafkaSource  # noqa: PLC0415 - for help

    return KafkaSource(
        cluster=cluster,
        topics=topics.split(","),
        start=_start(start, "earliest", "latest", "committed"),
        group_id=group,
        **handling,
    )


def _start(text: str | None, oldest: str, *others: str) -> datetime | str:
    if text is None or text in {oldest, *others}:
        return text or oldest
    if (moment := aware_time(text)) is not None:
        return moment
    words = ", ".join((oldest, *others))
    raise OptionError(
        Option("start", text),
        f" must be {words}, or a time with its zone, such as 2026-11-22T08:00:00+00:00",
    )


def _pairs(options: Sequence[str]) -> Mapping[str, str]:
    pairs = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not (name and equals):
            raise OptionError(Option("storage_options", option), " must be NAME=VALUE")
        if _SECRET.search(name):
            raise OptionError(
                Option("storage_options"),
                f" has {name!r}: a secret would show in the list of processes; set it in the "
                "environment, as the service's SDK finds it",
            )
        pairs[name] = value
    return pairs
