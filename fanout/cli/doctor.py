"""The command `fanout doctor`: check what a source, a sink and a checkpoint need."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final, final

import typer

from fanout.cli.checkpoint_files import examine_stored, is_local
from fanout.cli.command import ExitCode, fanout_command, in_words_of_options
from fanout.cli.common import Json, calling_the_service, print_json, run_coroutine
from fanout.cli.service_options import AwsOptions, ClusterOptions
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.core.checkpoint import Checkpoint
    from fanout.core.findings import Finding
    from fanout.kafka.doctor.diagnose import KafkaNeeds

_COLORS = {"ok": "green", "warning": "yellow", "problem": "bold red", "unknown": "dim"}
_PANEL: Final = "What is read from Kafka, or written to it"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsOptions:
    """The options that name what is needed of a cluster; typer shows each with its help."""

    topic: Annotated[
        list[str] | None,
        typer.Option(help="A topic that is read; may be repeated.", rich_help_panel=_PANEL),
    ] = None
    group: Annotated[
        str | None,
        typer.Option(help="The group_id of a KafkaSource.", rich_help_panel=_PANEL),
    ] = None
    share_group: Annotated[
        str | None,
        typer.Option(help="The group_id of a KafkaShareSource.", rich_help_panel=_PANEL),
    ] = None
    sink_topic: Annotated[
        list[str] | None,
        typer.Option(
            help="A topic that a sink writes to; may be repeated.", rich_help_panel=_PANEL
        ),
    ] = None
    transactional_id_prefix: Annotated[
        str,
        typer.Option(help="The sink's transactional_id_prefix.", rich_help_panel=_PANEL),
    ] = "fanout"
    transaction_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="The sink's transaction_timeout.", rich_help_panel=_PANEL
        ),
    ] = None

    @property
    def given(self) -> bool:
        """Whether one of them names a topic or a group."""
        return bool(self.topic or self.group or self.share_group or self.sink_topic)

    def needs(self) -> KafkaNeeds:
        """Return what the options name."""
        from fanout.kafka.doctor.diagnose import KafkaNeeds  # noqa: PLC0415 - for help

        return KafkaNeeds(
            topics=self.topic or (),
            group=self.group,
            share_group=self.share_group,
            sink_topics=self.sink_topic or (),
            transactional_id_prefix=self.transactional_id_prefix,
            transaction_timeout=self.transaction_timeout,
        )


@fanout_command("doctor")
def doctor(
    stream: Annotated[
        str | None,
        typer.Argument(
            help="The stream of Kinesis, by its name or ARN; several by commas.", show_default=False
        ),
    ] = None,
    consumer: Annotated[
        str | None,
        typer.Argument(
            help="The consumer's name or ARN; without one, reading by polling is checked.",
            show_default=False,
        ),
    ] = None,
    *,
    queue: Annotated[
        str | None,
        typer.Option(
            help="The name or ARN of a queue of the stream that is read in place of its shards."
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="LOCATION",
            help="Compare stored positions with the source: the checkpoint location of a query, a "
            "landing, or a local file with the value of `stream.positions`. The disk of a path is "
            "checked for free space. A checkpoint at another location than a path is also checked "
            "itself, through a Spark session.",
        ),
    ] = None,
    subscribe: Annotated[
        bool,
        typer.Option(
            "--subscribe",
            help="Subscribe to one shard for a moment, which interrupts a running reader of this "
            "consumer.",
        ),
    ] = False,
    landers: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="NUMBER",
            help="Check a query with so many landers, OnExecutors(landers=...): whether they suit "
            "what is read, and the checkpoint suits them.",
        ),
    ] = None,
    aws: AwsOptions,
    needs: NeedsOptions,
    kafka: ClusterOptions,
    json: Json = False,
) -> None:
    """Check what a source, a sink or a checkpoint needs, with advice for each finding.

    With a stream it checks Kinesis: credentials, permissions, clock, consumer, stream, key and the
    limits of this machine. With a queue it checks that instead: whether it exists and is active,
    permissions, visibility, and dead letters. With a topic or a group it checks Kafka: each broker
    and the address that it advertises, permissions, topics, groups, transactions, features and
    clock. With a checkpoint or a landing it checks how far the reader is behind, how long the
    unread records are kept, and the free space of its disk; a remote checkpoint also for its owner,
    and whether two writers exclude each other there, with a file that is removed again. Nothing
    else is registered, written or changed. For example:

    `fanout doctor orders orders-etl --checkpoint /var/lib/orders/checkpoint`

    `fanout doctor orders orders-etl --landers 8 --checkpoint s3a://lake/_chk/orders`

    `fanout doctor --topic orders --sink-topic billed --bootstrap-servers broker-1:9093`

    `fanout doctor --checkpoint s3a://lake/_chk/orders`

    The exit code is 1 if there is a problem, and 2 if a path or an option cannot be used; warnings
    and unknown findings leave it at 0.
    """
    _check_options(stream, consumer, needs, subscribe=subscribe, landers=landers)
    _check_queue(queue, stream, consumer, landers)
    options = None if stream is None else aws.stream(stream, consumer)
    cluster = kafka.cluster() if needs.given else None
    if options is None and cluster is None and checkpoint is None:
        raise OptionError(
            "name what to check: a stream of Kinesis, topics or groups of Kafka with --topic, "
            "--group, --share-group or --sink-topic, or a --checkpoint"
        )
    with calling_the_service():
        stored, findings = (None, []) if checkpoint is None else examine_stored(checkpoint)
        if stored is not None and options is None and cluster is None:
            findings.append(_unasked(stored))
        if landers is not None:
            findings.append(_place_of_landers(checkpoint))
        if stream is not None and queue is not None:
            from fanout.kinesis.doctor.queue import diagnose_queue  # noqa: PLC0415 - as below

            asked = diagnose_queue(aws.queue(stream, queue))
            findings = [*run_coroutine(asked), *findings]
        elif options is not None:
            from fanout.kinesis.doctor.diagnose import diagnose  # noqa: PLC0415 - loads the AWS SDK

            diagnosing = diagnose(options, checkpoint=stored, subscribe=subscribe, landers=landers)
            findings = [*run_coroutine(diagnosing), *findings]
        if cluster is not None:
            from fanout.kafka.doctor.diagnose import diagnose_cluster  # noqa: PLC0415 - for help

            needed = replace(needs.needs(), landers=landers)
            checking = diagnose_cluster(cluster, needed, checkpoint=stored)
            findings = [*run_coroutine(checking), *findings]
    findings = [
        replace(
            finding,
            detail=in_words_of_options(finding.detail),
            advice=in_words_of_options(finding.advice),
        )
        for finding in findings
    ]
    healthy = all(finding.status != "problem" for finding in findings)
    if json:
        print_json({"stream": stream, "healthy": healthy, "findings": list(map(asdict, findings))})
    else:
        _print(findings)
    if not healthy:
        raise typer.Exit(ExitCode.FOUND)


def _check_options(
    stream: str | None,
    consumer: str | None,
    needs: NeedsOptions,
    *,
    subscribe: bool,
    landers: int | None,
) -> None:
    """Refuse options that contradict each other."""
    if subscribe and consumer is None:
        raise OptionError("--subscribe needs a consumer: name one, or leave --subscribe out")
    if stream is not None and needs.given:
        raise OptionError(
            "name a stream of Kinesis, or topics and groups of Kafka with --topic, --group, "
            "--share-group and --sink-topic, not both"
        )
    if landers is not None and not (stream or needs.topic or needs.share_group):
        raise OptionError(
            "--landers needs what the landers read: name a stream of Kinesis, or a --topic"
        )


def _check_queue(
    queue: str | None, stream: str | None, consumer: str | None, landers: int | None
) -> None:
    if queue is not None and (stream is None or consumer or landers is not None):
        raise OptionError(
            "--queue needs the name of one stream, and has neither a consumer nor --landers"
        )


def _unasked(stored: Checkpoint) -> Finding:
    from fanout.core.findings import unknown  # noqa: PLC0415 - for help

    detail = f"{len(stored.splits)} splits of {stored.source}, which was not asked"
    return unknown("lag", detail, "name the stream, or a topic or group of Kafka, to find out")


def _place_of_landers(location: str | None) -> Finding:
    """Check whether executors on other machines can reach a checkpoint, and without a JVM."""
    from fanout.core.findings import fine, problem, unknown, warning  # noqa: PLC0415 - for help
    from fanout.landing.storage.object_location import is_object_location  # noqa: PLC0415 - for help

    check = "checkpoint of landers"
    move = (
        "put the checkpoint on object storage (s3a://, gs://, abfss://), or in a directory that "
        "all machines of the cluster have mounted"
    )
    if location is None:
        return unknown(check, "not named", "name it with --checkpoint to have it checked")
    if is_local(location):
        detail = f"{location} is a path, which may be another disk on each machine"
        return warning(check, detail, f"{move}; the query compares both sides when it starts")
    if is_object_location(location):
        return fine(check, f"executors write to {location} themselves, with their own credentials")
    return problem(check, f"landers have no JVM and cannot write to {location}", move)


def _print(findings: Sequence[Finding]) -> None:
    from rich.console import Console  # noqa: PLC0415 - help needs no tables
    from rich.table import Column, Table  # noqa: PLC0415 - help needs no tables
    from rich.text import Text  # noqa: PLC0415 - help needs no tables

    table = Table("", Column("check", overflow="fold"), Column("found", overflow="fold"))
    for finding in findings:
        found = Text(finding.detail)
        if finding.advice:
            found.append(f"\n→ {finding.advice}", style="bold")
        table.add_row(
            Text(finding.status, style=_COLORS[finding.status]), Text(finding.check), found
        )
    Console().print(table)
    counts = {status: sum(each.status == status for each in findings) for status in _COLORS}
    typer.echo(", ".join(f"{count} {status}" for status, count in counts.items() if count))
