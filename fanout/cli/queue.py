"""The command `fanout queue`: describe a queue of Kinesis, list and restore its dead letters."""

from __future__ import annotations

import base64
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fanout.cli.command import ExitCode, fanout_command
from fanout.cli.common import Json, calling_the_service, print_json, print_table, run_coroutine
from fanout.cli.service_options import AwsOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from fanout.kinesis.queue.dead_letters import OpenQueue
    from fanout.kinesis.queue.records import QueueRecord

_T = TypeVar("_T")

queue = typer.Typer(
    name="queue",
    no_args_is_help=True,
    help="Inspect a queue of Kinesis: its settings, and its dead letters.",
    rich_markup_mode="markdown",
)

Stream = Annotated[str, typer.Argument(help="The stream's name or ARN.", show_default=False)]
Queue = Annotated[str, typer.Argument(help="The queue's name or ARN.", show_default=False)]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="About how many dead letters.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it, rather than print what would be done.")]


@queue.command()
@fanout_command("queue")
def describe(stream: Stream, name: Queue, *, aws: AwsOptions, json: Json = False) -> None:
    """Show the status and the settings of a queue. It receives no record.

    The exit code is 2 if there is no such queue.
    """

    async def command(opened: OpenQueue) -> dict[str, Any]:
        return asdict(opened.description)

    found = _run(command, aws, stream, name)
    if json:
        print_json({"queue": found})
    else:
        print_table(("setting", "value"), [(key, str(value)) for key, value in found.items()])


@queue.command("dead-letters")
@fanout_command("queue")
def dead_letters(
    stream: Stream, name: Queue, *, aws: AwsOptions, limit: Limit = 100, json: Json = False
) -> None:
    """List dead letters: what was received too often without an acknowledgement.

    They stay dead letters; for a moment nobody else can receive them. With `--json` the data is
    there too, in base64.
    """
    found = _run(lambda opened: opened.dead_letters(limit), aws, stream, name)
    _show(found, "dead_letters", json=json)


@queue.command()
@fanout_command("queue")
def restore(
    stream: Stream,
    name: Queue,
    record: Annotated[
        list[str] | None,
        typer.Argument(help="The ids of dead letters; all of them if left out."),
    ] = None,
    *,
    aws: AwsOptions,
    limit: Limit = 1_000,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Make dead letters records of the queue again, so that they are delivered once more.

    The exit code is 1 if the service did not restore some of them.
    """
    if not yes:
        found = _run(lambda opened: opened.dead_letters(limit), aws, stream, name)
        chosen = [each for each in found if not record or each.record_id in record]
        _show(chosen, "would_restore", json=json)
        return
    restored, failed = _run(lambda opened: opened.restore(record or None, limit), aws, stream, name)
    _show(restored, "restored", json=json, failed=failed)
    if failed:
        raise typer.Exit(ExitCode.FOUND)


def _run(
    command: Callable[[OpenQueue], Awaitable[_T]], aws: AwsOptions, stream: str, name: str
) -> _T:
    # Help and usage errors do not load the AWS SDK.
    from fanout.kinesis.queue.dead_letters import open_queue  # noqa: PLC0415

    async def run() -> _T:
        async with open_queue(options) as opened:
            return await command(opened)

    options = aws.queue(stream, name)
    with calling_the_service():
        return run_coroutine(run())


def _show(letters: Sequence[QueueRecord], what: str, *, json: bool, **more: int) -> None:
    if json:
        print_json({what: [_to_json(each) for each in letters], **more})
        return
    rows = [
        (
            each.record_id,
            each.partition_key or "",
            _time(each.approximate_arrival_timestamp),
            str(each.receive_count),
            str(len(each.data)),
        )
        for each in letters
    ]
    typer.echo(f"{what.replace('_', ' ')}: {len(letters)}")
    print_table(("record", "partition key", "arrived (UTC)", "received", "bytes"), rows)


def _to_json(letter: QueueRecord) -> dict[str, Any]:
    return {
        "record_id": letter.record_id,
        "partition_key": letter.partition_key,
        "arrived": _time(letter.approximate_arrival_timestamp),
        "receive_count": letter.receive_count,
        "data": base64.b64encode(letter.data).decode(),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
