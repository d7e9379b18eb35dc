"""The command `fanout tail`: show the records of a stream or of topics as they come."""

from __future__ import annotations

import math
import os
import re
import sys
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fanout.cli.command import fanout_command
from fanout.cli.common import SourceName, age, aware_time, parse_source, run_coroutine
from fanout.cli.metrics_port import MetricsPort, served_metrics
from fanout.cli.service_options import AwsOptions, ClusterOptions, SchemaOptions
from fanout.core.sentence import Option, Sentence
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fanout.cli.record_output import Columns, RecordLines, StandardOutput
    from fanout.core.fan_out import FanOut
    from fanout.core.source import Source

# What is collected before it is printed. A record waits for others no longer than a person sees.
_RECORDS: Final = 10_000
_BYTES: Final = 8 * 1024 * 1024
_SECONDS: Final = 0.05
_HINT: Final = (
    "fanout tail: waiting for new records; --since 10m shows earlier ones too, and Ctrl-C ends it"
)
# What is read ahead of a terminal that is stopped, or of a pager.
_READ_AHEAD: Final = 64 * 1024 * 1024


@fanout_command("tail")
def tail(
    source: SourceName,
    *,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="AGE|TIME",
            help="Show earlier records too: those of the last 30s, 10m, 12h or 7d, those since a "
            "time such as 2026-11-22T08:00:00Z, or all of them with `earliest`. New records alone "
            "are the default.",
            show_default=False,
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="REGEX",
            help="Show only records in whose value this regular expression of Python is found.",
            show_default=False,
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--max", min=1, metavar="RECORDS", help="End after so many.", show_default=False
        ),
    ] = None,
    shards: Annotated[
        list[str] | None,
        typer.Option(
            "--shard",
            "--partition",
            help="Read this shard and those that replace it, such as 3 or shardId-000000000003, or "
            "this partition, such as 3 or orders-3; can be repeated.",
            show_default=False,
        ),
    ] = None,
    consumer: Annotated[
        str | None,
        typer.Option(
            help="The enhanced fan-out consumer of Kinesis, one that no other program uses. It is "
            "registered if it does not exist, and then deregistered at the end. The stream is "
            "polled if left out.",
            show_default=False,
        ),
    ] = None,
    aws: AwsOptions,
    kafka: ClusterOptions,
    schemas: SchemaOptions,
    metrics_port: MetricsPort = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print each record as a JSON object on a line.")
    ] = False,
) -> None:
    """Show the records of a stream of Kinesis or of topics of Kafka as they come, until Ctrl-C.

    It only looks: nothing is stored or committed, and no group of Kafka is joined. Polling counts
    against the limits that all pollers of a shard share; a consumer has its own.

    `fanout tail kinesis://orders --region eu-west-1`

    `fanout tail kafka://orders --bootstrap-servers broker:9092 --since 10m --filter 'lost|late'`

    `fanout tail kinesis://orders --since earliest --json | jq -r .key | head`

    `fanout tail kafka://orders --decode avro --registry https://registry:8081 --json`

    A line of text has the time, the shard or partition, the key and the value, with tabs between
    them. Control characters are escaped, and so are bytes that are not UTF-8. `--json` has more:
    the sequence number or offset, and the headers of Kafka. A key or value that is not UTF-8 is in
    base64 there, as `key_base64` or `value_base64`. With `--decode` the value is an object of JSON,
    and with `--key-decode` the key; a record that does not fit is left out, and logged.

    The exit code is 0 when `--max` is reached or the pipe is closed, 130 after Ctrl-C, and 2 if the
    source cannot be read.
    """
    from fanout.cli import record_output  # noqa: PLC0415 - for help

    of_kafka: dict[str, object] = {"key_decode": schemas.key_decode}
    service, name = parse_source(source, kinesis={"consumer": consumer}, kafka=of_kafka)
    start = _start(since)
    searched = _searched(pattern)
    chosen = tuple(shards or ())
    columns = record_output.KINESIS if service == "kinesis" else record_output.KAFKA
    typed = _typed(schemas, columns, name.split(",") if service == "kafka" else ())
    reading = (
        _kinesis(name, consumer, start, chosen, aws, **typed)
        if service == "kinesis"
        else _kafka(name, start, chosen, kafka, **typed)
    )
    output = record_output.StandardOutput()
    lines = record_output.RecordLines(
        columns=columns,
        pattern=searched,
        as_json=json,
        colored=output.colored,
    )
    hint = _HINT if since is None and sys.stderr.isatty() else ""
    with served_metrics(metrics_port) as watch:
        run_coroutine(_show(reading, lines, output, most, hint=hint, watch=watch))


async def _show(
    source: Source,
    lines: RecordLines,
    output: StandardOutput,
    left: int | None,
    *,
    hint: str,
    watch: Callable[[FanOut], None],
) -> None:
    """Print records until so many are printed, or the reader of the output has gone."""
    from fanout.core.opening import open_stream  # noqa: PLC0415 - for help

    async with open_stream(source) as stream:
        watch(stream)
        if hint:
            typer.echo(hint, err=True)
        with output.watched(stream.stop), suppress(BrokenPipeError):
            while left != 0 and not stream.stopping:
                drained = await stream.drain(
                    max_records=_RECORDS,
                    max_bytes=_BYTES,
                    max_wait=_SECONDS,
                    first_wait=math.inf,
                )
                found = (line for batch in drained.batches for line in lines.of(batch))
                printed = await output.write(islice(found, left))
                left = None if left is None else left - printed


def _start(since: str | None) -> datetime | str:
    """Return the start of a source: an age, a time that is not in the future, or a word."""
    if since is None:
        return "latest"
    if since.lower() in {"earliest", "trim_horizon"}:
        return "earliest"
    now = datetime.now(UTC)
    moment = aware_time(since)
    with suppress(typer.BadParameter, OverflowError):
        moment = now - age(since)
    if moment is None:
        raise OptionError(
            Option("since", since),
            " must be an age such as 30s, 10m, 12h or 7d, a time with its zone such as "
            "2026-11-22T08:00:00Z, or earliest",
        )
    if moment > now:
        raise OptionError(
            Option("since", since),
            Sentence.of(" is in the future; leave {since} out for new records alone"),
        )
    if moment.timestamp() < 0:
        raise OptionError(Option("since", since), " is before 1970; earliest shows all records")
    return moment


def _typed(schemas: SchemaOptions, columns: Columns, topics: Sequence[str]) -> dict[str, Any]:
    """Return the options of a source whose records are decoded, or none."""
    if schemas.decode is None:
        schemas.decoder(())  # checks that nothing is about it
        return {}
    beside = [each for each in columns.beside_value if each != "key" or not schemas.key_decode]
    decoder = schemas.decoder(topics, beside, columns.value)
    return {"decode": decoder, "on_bad_record": "gap"}


def _searched(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        pattern.encode()
    except UnicodeEncodeError:
        # The locale of this process is not that of the records, which are searched as UTF-8.
        pattern = os.fsencode(pattern).decode(errors="backslashreplace")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise OptionError(
            Option("pattern", pattern), f" is no regular expression: {error}"
        ) from error


def _kinesis(
    stream: str,
    consumer: str | None,
    start: datetime | str,
    shards: Sequence[str],
    aws: AwsOptions,
    **typed: Any,
) -> Source:
    source = aws.source(
        stream,
        consumer,
        start=start,
        max_bytes_in_flight=_READ_AHEAD,
        deregister="on_close",
        # What cannot be shown is logged, and the others are shown.
        on_data_loss="earliest",
        on_bad_aggregate="gap",
        on_bad_frame="gap",
        **typed,
    )
    if not shards:
        return source
    from fanout.kinesis.chosen_shards import ChosenShards  # noqa: PLC0415 - for help

    return ChosenShards(source, shards)


def _kafka(
    topics: str,
    start: datetime | str,
    partitions: Sequence[str],
    kafka: ClusterOptions,
    **typed: Any,
) -> Source:
    from fanout.kafka.reading.kafka_source import KafkaSource  # noqa: PLC0415 - for help

    names = topics.split(",")
    chosen = {name for one in partitions for name in _partitions(one, names)}
    return KafkaSource(
        cluster=kafka.cluster(),
        topics=None if chosen else names,
        partitions=sorted(chosen) or None,
        start=start,
        max_bytes_in_flight=_READ_AHEAD,
        on_data_loss="earliest",
        **typed,
    )


def _partitions(shards: str, topics: Sequence[str]) -> list[str]:
    """Return the names of the partitions that an option means."""
    if shards.isdecimal():
        return [f"{topic}-{int(shards)}" for topic in topics]
    topic, _, number = shards.rpartition("-")
    if topic not in topics or not number.isdecimal():
        raise OptionError(
            Option("shards", shards),
            f" must be a partition of {' or '.join(topics)}, such as 3 or {topics[0]}-3",
        )
    return [shards]
