"""The command `fanout status`: show what a landing or the checkpoint of a query holds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fanout.cli.checkpoint_files import checkpoint_files, describe_owner, moment
from fanout.cli.command import ExitCode, fanout_command, in_words_of_options
from fanout.cli.common import Json, calling_the_service, print_json, print_table, run_coroutine
from fanout.cli.service_options import AwsOptions, ClusterOptions
from fanout.cli.table_option import table_option
from fanout.errors import FanOutError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fanout.core.checkpoint import Checkpoint, SplitPosition
    from fanout.core.findings import Backlog
    from fanout.core.statistics import TableStatistics
    from fanout.landing.log.checkpoint_status import CheckpointStatus

# Of a batch that was set aside so many splits are named; --json has more.
_NAMED_PLACES = 5


@fanout_command("status")
def status(
    checkpoint: Annotated[
        str,
        typer.Argument(
            help="A landing, or the checkpoint location of a query: a path, or a URI such as "
            "s3a://lake/_chk."
        ),
    ],
    stream: Annotated[
        str | None,
        typer.Argument(
            help="The stream of Kinesis, by its name or ARN, to ask for the lag; several by "
            "commas.",
            show_default=False,
        ),
    ] = None,
    *,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="TABLE",
            help="A table of the landing, as for fanout land, to see how far it is; can be "
            "repeated.",
            show_default=False,
        ),
    ] = None,
    aws: AwsOptions,
    kafka: ClusterOptions,
    json: Json = False,
) -> None:
    """Show the newest batch or entry, the positions, the owner and the pending segments.

    It claims and writes nothing, so the query or the landing may be running. A landing, and a path
    on the local disk, needs neither Spark nor Java; any other location is read through a Spark
    session that is started for it, with the jars and settings of spark-defaults.conf and
    PYSPARK_SUBMIT_ARGS. With the stream, or with the options of a Kafka cluster, it also asks the
    source for the lag of each split:

    `fanout status s3a://lake/_chk/orders orders --region eu-west-1`

    The exit code is 1 if the source was named and the lag could not be read, or unread records have
    expired, or a table lacks entries or cannot be read, or the landing has lost entries. It is 2 if
    there is neither a checkpoint of fanout nor a landing, or it is damaged, or a newer version
    wrote it.
    """
    from fanout.landing.log.checkpoint_status import read_status  # noqa: PLC0415 - for help
    from fanout.landing.projections.table_projection import read_table  # noqa: PLC0415 - the same

    with checkpoint_files(checkpoint) as files:
        found = read_status(files)
    told = [read_table(checkpoint, table_option(table)) for table in tables or ()]
    # The next run continues after the pending segments.
    positions = found.pending.positions or found.positions
    lags: dict[str, Backlog] = {}
    failure = ""
    if positions is not None:
        ask = _source(positions, stream, aws, kafka)
        if ask is not None:
            with calling_the_service():
                lags, failure = _lags(ask)
    if json:
        answer = _plain(found, positions, lags, failure)
        print_json(answer | {"tables": [_plain_table(table) for table in told]})
    else:
        _print(found, positions, lags, failure)
        for table in told:
            behind = f"{table.entries_behind:,} entries behind"
            typer.echo(f"{table.table}: {table.failure or behind}")
    if failure or found.gap or any(table.failure or table.entries_behind for table in told):
        raise typer.Exit(ExitCode.FOUND)


def _plain_table(table: TableStatistics) -> dict[str, Any]:
    return {
        "table": table.table,
        "entries_behind": None if table.failure else table.entries_behind,
        "error": table.failure or None,
    }


def _source(
    positions: Checkpoint,
    stream: str | None,
    aws: AwsOptions,
    kafka: ClusterOptions,
) -> Callable[[], dict[str, Backlog]] | None:
    """Return what asks the source for the lag; None where no option names the source."""
    if positions.source.startswith("kinesis:"):
        if stream is None:
            return None
        options = aws.stream(stream)

        def ask_kinesis() -> dict[str, Backlog]:
            from fanout.kinesis.doctor.diagnose import read_stream_lag  # noqa: PLC0415 - for help

            return run_coroutine(read_stream_lag(options, positions))

        return ask_kinesis
    if stream is not None:
        raise OptionError(f"the positions are of {positions.source}: leave {stream!r} out")
    if kafka.bootstrap_servers is None and kafka.command_config is None:
        return None
    cluster = kafka.cluster()

    def ask_kafka() -> dict[str, Backlog]:
        from fanout.kafka.doctor.diagnose import read_lag  # noqa: PLC0415 - for help

        return run_coroutine(read_lag(cluster, positions))

    return ask_kafka


def _lags(ask: Callable[[], dict[str, Backlog]]) -> tuple[dict[str, Backlog], str]:
    """Return the lag of each split, and why some are not known."""
    from fanout.core.findings import named  # noqa: PLC0415 - for help

    try:
        lags = ask()
    except FanOutError as error:
        return {}, in_words_of_options(error)
    failures = {lag.obstacle for lag in lags.values() if lag.obstacle}
    if expired := [id_ for id_, lag in lags.items() if lag.expired]:
        failures.add(f"the records that follow in {named(expired)} have expired")
    return lags, "; ".join(sorted(failures))


def _plain(
    found: CheckpointStatus,
    positions: Checkpoint | None,
    lags: Mapping[str, Backlog],
    failure: str,
) -> dict[str, Any]:
    batch, owner = found.batch, found.owner
    answer: dict[str, Any] = {
        "location": found.location,
        "landing": found.landing,
        "entries": found.entries,
        "lost_entries": found.gap and {"first": found.gap[0], "last": found.gap[-1]},
        "source": None if positions is None else positions.source,
        "batch": None,
        "owner": None,
        "pending": {"segments": found.pending.segments, "rows": found.pending.rows},
        "set_aside": {"batches": 0, "newest": None},
        "lag_error": failure or None,
        "splits": [],
    }
    if batch is not None:
        watermark = batch.entry.watermark
        answer["batch"] = {
            "id": batch.entry.batch_id,
            "rows": batch.rows,
            "written_at": moment(batch.written_at),
            "watermark": None if watermark is None else moment(watermark),
        }
    if (aside := found.set_aside) is not None:
        answer["set_aside"] = {
            "batches": aside.before + 1,
            "newest": {
                "id": aside.batch,
                "rows": aside.rows,
                "error": aside.error,
                "ranges": list(aside.places),
            },
        }
    if owner is not None:
        holder = owner.holder
        answer["owner"] = {
            "run": owner.run,
            "application": None if holder is None else holder.application,
            "host": None if holder is None else holder.host,
            "process": None if holder is None else holder.pid,
            "since": moment(owner.since),
            "running": owner.running,
        }
    for id_, at in _rows(positions, lags):
        lag = lags.get(id_)
        answer["splits"].append(
            {
                "split": id_,
                "position": None if at is None else _position(at),
                "ended": at is not None and at.ended,
                "newest": None if at is None or at.newest is None else moment(at.newest),
                "lag_records": None if lag is None else lag.records,
                "lag_ms": None if lag is None else lag.millis,
            }
        )
    return answer


def _print(
    found: CheckpointStatus,
    positions: Checkpoint | None,
    lags: Mapping[str, Backlog],
    failure: str,
) -> None:
    from fanout.landing.log.gaps import describe_gap  # noqa: PLC0415 - for help

    typer.echo(f"{found.location}: {'not begun' if positions is None else positions.source}")
    typer.echo(f"owner: {describe_owner(found.owner)}")
    noun = "entry" if found.landing else "batch"
    if (batch := found.batch) is None:
        typer.echo(f"{noun}: none yet")
    else:
        seconds = max(0.0, datetime.now(UTC).timestamp() - batch.written_at / 1000)
        written = f"{moment(batch.written_at)}, {seconds:,.0f} s ago"
        count = f"; {found.entries:,} entries are kept" if found.landing else ""
        rows = f"{batch.rows:,} rows"
        typer.echo(f"{noun}: {batch.entry.batch_id} with {rows}, written {written}{count}")
    if found.gap:
        typer.echo(describe_gap(found.location, found.gap))
    if found.pending.segments:
        pending = f"{found.pending.segments} segments with {found.pending.rows:,} rows"
        typer.echo(f"pending: {pending} that no batch has taken yet")
    if (aside := found.set_aside) is not None:
        what = f"{aside.batch} with {aside.rows:,} rows ({aside.error})"
        more = len(aside.places) - _NAMED_PLACES
        named = "; ".join(aside.places[:_NAMED_PLACES]) + (f" and {more} more" if more > 0 else "")
        typer.echo(f"set aside: {aside.before + 1} batches, the newest is {what}: {named}")
    table = []
    for id_, at in _rows(positions, lags):
        lag = lags.get(id_)
        position = "" if at is None else "read to its end" if at.ended else _position(at)
        newest = "" if at is None or at.newest is None else moment(at.newest)
        ended = at is not None and at.ended and bool(lags)
        table.append((id_, position, newest, *(_lag_cells(lag) if not ended else ("ended", ""))))
    print_table(("split", "after", "newest record", "lag: records", "lag: ms"), table)
    if failure:
        expired = any(lag.expired for lag in lags.values())
        typer.echo(failure if expired else f"the lag could not be read: {failure}")


def _rows(
    positions: Checkpoint | None, lags: Mapping[str, Backlog]
) -> list[tuple[str, SplitPosition | None]]:
    """Return the splits by name; the lag of a share group is that of partitions, not of members."""
    splits = {} if positions is None else positions.splits
    return [(id_, splits.get(id_)) for id_ in sorted({*splits, *lags})]


def _position(at: SplitPosition) -> str:
    from fanout.core.positions import WHOLE_RECORD, Cursor, Timestamp  # noqa: PLC0415 - for help

    match at.position:
        case Cursor(sequence, sub):
            return str(sequence) if sub == WHOLE_RECORD else f"{sequence} / {sub}"
        case Timestamp(millis):
            return moment(millis)
        case _:
            return "nothing yet"


def _lag_cells(lag: Backlog | None) -> tuple[str, str]:
    if lag is None:
        return "", ""
    if lag.gone:
        return "gone", ""
    if lag.expired:
        return "expired", ""
    records = "" if lag.records is None else f"{lag.records:,}"
    return records, "" if lag.millis is None else f"{lag.millis:,}"
