"""The command line: `fanout transactions`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fanout.cli.command import ExitCode, fanout_command
from fanout.cli.common import Json, calling_the_service, print_json, print_table, run_coroutine
from fanout.cli.service_options import ClusterOptions
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from fanout.kafka.cluster import Cluster
    from fanout.kafka.transactions.transactions import Transactions
    from fanout.landing.storage.local_storage import LocalStorage
    from fanout.spark.sinks.kafka.finish_transactions import (
        FinishResult,
        SinkToken,
        SinkTransaction,
    )

Answer = TypeVar("Answer")

# Seconds for which a call is retried: a user waits for the command.
_PATIENCE = 20.0

transactions = typer.Typer(
    name="transactions",
    no_args_is_help=True,
    help="List and finish the transactions that a Spark job has left open in Kafka.\n\n"
    "A job that writes exactly once makes one transaction of each batch, and stores a token for "
    "it in its checkpoint before it commits. Where the job dies in between, the transaction stays "
    "open, and readers with `isolation.level=read_committed` wait behind it until it expires. "
    "**Starting the job again finishes it**; these commands are for when that has to wait.\n\n"
    "Stop the job first. On the checkpoint of a running job `list` works, and the others refuse to "
    "change anything. On a copy of a checkpoint they cannot detect the job, and then its next "
    "commit fails.\n\n"
    "The exit code is 2 if nothing could be done, and 1 if a transaction is open, its outcome is "
    "unknown, or a part could not be done.",
    rich_markup_mode="markdown",
)

Checkpoint = Annotated[
    str,
    typer.Option(
        metavar="PATH",
        show_default=False,
        help="The checkpoint location of the job, on a local disk; of one elsewhere, a directory "
        "with a copy of its directory `fanout`.",
    ),
]
Sink = Annotated[
    str | None, typer.Option(help="The sink_name of one sink; all if left out.", show_default=False)
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it, rather than print what would be done.")]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Decide where brokers have forgotten the outcome: you have looked into the topics, "
        "and the records of the batch are there (commit), or are not (abort).",
    ),
]
_COLUMNS = (
    "sink",
    "batch",
    "state",
    "recorded (UTC)",
    "expires (UTC)",
    "state at brokers",
    "marker",
    "transactional id",
)

_DONE = {"commit": "committed", "abort": "aborted"}


@transactions.command("list")
@fanout_command("transactions")
def list_(
    *,
    checkpoint: Checkpoint,
    kafka: ClusterOptions,
    sink: Sink = None,
    json: Json = False,
) -> None:
    """Show the state of the newest transaction of each sink; nothing is changed.

    - **closed**: nothing is open.

    - **can be committed**: complete and recorded, but open. The job commits it when it starts, and
      so does `commit`.

    - **committed**: the job finds the marker when it starts.

    - **not committed**: it was aborted or has expired. The job writes the batch again when it
      starts.

    - **open, not recorded**: the job was writing it. The job aborts it when it starts, and so does
    `abort`.

    - **being ended**: brokers are ending it; run `list` again.

    - **nobody knows**: brokers have forgotten its outcome, after a week. Look whether the records
      of the batch are in the topics, and decide with `commit --force` or `abort --force`.

    A sink is listed from its first token on. The exit code is 1 if a transaction is open or being
    ended, or its outcome is unknown.
    """
    from fanout.landing.claims import is_claimed  # noqa: PLC0415 - for help
    from fanout.spark.sinks.kafka.finish_transactions import (  # noqa: PLC0415 - the same
        describe_transactions,
    )

    job = _Job(checkpoint, sink, kafka)
    storage, cluster = job.storage(), job.kafka.cluster()
    stored, running = job.stored(storage), is_claimed(storage)
    found = _ask(cluster, lambda calls: describe_transactions(calls, stored))
    if not report_list(checkpoint, found, running=running, json=json):
        raise typer.Exit(ExitCode.FOUND)


@transactions.command()
@fanout_command("transactions")
def commit(
    *,
    checkpoint: Checkpoint,
    yes: Yes = False,
    force: Force = False,
    kafka: ClusterOptions,
    sink: Sink = None,
    json: Json = False,
) -> None:
    """Commit recorded transactions, as the job does when it starts; without --yes, only print that.

    The marker is read first: a batch is never committed twice, and a transaction without a marker
    is never committed.
    """
    job = _Job(checkpoint, sink, kafka)
    _change("commit", job, yes=yes, force=force, json=json)


@transactions.command()
@fanout_command("transactions")
def abort(
    *,
    checkpoint: Checkpoint,
    yes: Yes = False,
    force: Force = False,
    kafka: ClusterOptions,
    sink: Sink = None,
    json: Json = False,
) -> None:
    """Abort open transactions, so that readers go on; without --yes, only print that.

    A recorded batch is not lost: its token is deleted, and the job writes the whole batch again
    when it starts, in a new transaction. A committed batch stays committed. The command begins a
    new incarnation of the transactional id, which also fences every producer that still uses it.
    """
    job = _Job(checkpoint, sink, kafka)
    _change("abort", job, yes=yes, force=force, json=json)


@dataclass(frozen=True, slots=True)
class _Job:
    """The options that name a job. Each method imports its modules itself, so that help is fast."""

    checkpoint: str
    sink: str | None
    kafka: ClusterOptions

    def storage(self) -> LocalStorage:
        from fanout.landing.log.checkpoint_status import local_path  # noqa: PLC0415 - see above
        from fanout.landing.log.entries import DIRECTORY  # noqa: PLC0415 - see above
        from fanout.landing.storage.local_storage import LocalStorage  # noqa: PLC0415 - see above

        root = local_path(self.checkpoint, "commit tokens") / DIRECTORY
        if not root.is_dir():
            raise OptionError(
                f"there is no checkpoint at {self.checkpoint}: name the checkpoint_location of a "
                f"job that has begun"
            )
        return LocalStorage(root)

    def stored(self, storage: LocalStorage) -> list[SinkToken]:
        from fanout.spark.sinks.kafka.finish_transactions import stored_tokens  # noqa: PLC0415 - see above

        stored = stored_tokens(storage)
        names = sorted({each.sink for each in stored})
        if self.sink is not None and self.sink not in names:
            known = f"it has {', '.join(names)}" if names else "no sink has stored a token there"
            raise OptionError(f"{self.checkpoint} has no sink {self.sink!r}: {known}")
        return [each for each in stored if self.sink in {None, each.sink}]


def _change(verb: str, job: _Job, *, yes: bool, force: bool, json: bool) -> None:
    from fanout.landing.claims import claim_stopped  # noqa: PLC0415 - for help
    from fanout.spark.sinks.kafka.finish_transactions import (  # noqa: PLC0415 - the same
        FinishAction,
        finish_transactions,
        record_result,
    )

    storage, cluster = job.storage(), job.kafka.cluster()
    with ExitStack() as resources:
        ownership = None
        if yes:
            claim = claim_stopped(storage, f"fanout transactions {verb}")
            ownership = resources.enter_context(claim)
        stored = job.stored(storage)

        async def command(calls: Transactions) -> list[FinishResult]:
            return await finish_transactions(
                calls, stored, FinishAction(verb), force=force, yes=yes
            )

        results = _ask(cluster, command)
        if ownership is not None:
            for result in results:
                record_result(storage, ownership, result)
    if not report_results(job.checkpoint, verb, results, yes=yes, json=json):
        raise typer.Exit(ExitCode.FOUND)


def _ask(cluster: Cluster, command: Callable[[Transactions], Awaitable[Answer]]) -> Answer:
    """Run the calls of a command; printing may block, so it comes after the event loop."""
    from fanout.kafka.transactions.transactions import open_transactions  # noqa: PLC0415 - see above

    async def main() -> Answer:
        async with open_transactions(cluster, patience=_PATIENCE) as calls:
            return await command(calls)

    with calling_the_service():
        return run_coroutine(main())


def report_list(
    checkpoint: str, found: Sequence[SinkTransaction], *, running: bool, json: bool
) -> bool:
    """Print the status of transactions; return whether none of them needs an action."""
    fine = not any(each.status.verdict.needs_action for each in found)
    if json:
        rows = [_plain(each) for each in found]
        print_json(
            {"checkpoint": checkpoint, "running": running, "open": not fine, "transactions": rows}
        )
        return fine
    if found:
        print_table(_COLUMNS, [_row(each) for each in found])
    else:
        typer.echo(f"no sink has stored a token in {checkpoint}")
    if running:
        typer.echo("the job is running: an open transaction may be the batch that it is writing")
    return fine


def report_results(
    checkpoint: str, verb: str, results: Sequence[FinishResult], *, yes: bool, json: bool
) -> bool:
    """Print the results of an action, carried out or planned; return whether none has failed."""
    done = [result for result in results if result.failure is None]
    failed = [result for result in results if result.failure is not None]
    for result in failed:
        typer.echo(f"fanout transactions: {_name(result.transaction)}: {result.failure}", err=True)
    if json:
        print_json(
            {
                "checkpoint": checkpoint,
                "dry_run": not yes,
                "done": [
                    _plain(result.transaction) | {"why": result.plan.reason} for result in done
                ],
                "failed": [
                    _plain(result.transaction) | {"why": result.failure} for result in failed
                ],
            }
        )
    elif not results:
        typer.echo(f"there is nothing to {verb} on {checkpoint}")
    for result in done if not json else ():
        words = _DONE[verb] if yes else f"would be {_DONE[verb]}; pass --yes to do it"
        typer.echo(f"{_name(result.transaction)}: {words} ({result.plan.reason})")
    return not failed


def _name(transaction: SinkTransaction) -> str:
    if transaction.status.recorded:
        return f"{transaction.sink}, batch {transaction.status.token.batch_id}"
    return f"{transaction.sink}, open transaction"


def _row(transaction: SinkTransaction) -> tuple[str, ...]:
    status = transaction.status
    token, description = status.token, status.description
    state = "(before Kafka 3.0)" if description is None else description.state.value
    if description is not None and description.incarnation is not None:
        state += (
            f", id {description.incarnation.producer_id}, epoch {description.incarnation.epoch}"
        )
    if description is not None and description.started_at is not None:
        state += f", since {_time(description.started_at)}"
    marker = "none" if status.marked is None else f"batch {status.marked}"
    return (
        transaction.sink,
        str(token.batch_id) if status.recorded else "",
        status.verdict.value,
        _time(token.created_at) if status.recorded else "",
        _time(token.expires_at) if status.recorded else "",
        state,
        f"{marker}, one is open" if status.pending else marker,
        token.transactional_id,
    )


def _plain(transaction: SinkTransaction) -> dict[str, Any]:
    status = transaction.status
    token, description = status.token, status.description
    recorded = {
        "batch": token.batch_id,
        "producer_id": token.incarnation.producer_id,
        "epoch": token.incarnation.epoch,
        "created_at": _time(token.created_at),
        "expires_at": _time(token.expires_at),
    }
    brokers = None
    if description is not None:
        who = description.incarnation
        brokers = {
            "state": description.state.value,
            "producer_id": None if who is None else who.producer_id,
            "epoch": None if who is None else who.epoch,
            "started_at": None if description.started_at is None else _time(description.started_at),
            "timeout": description.timeout,
        }
    return {
        "sink": transaction.sink,
        "stands": status.verdict.value,
        "transactional_id": token.transactional_id,
        "topics": list(token.topics),
        "recorded": recorded if status.recorded else None,
        "brokers": brokers,
        "marker_group": token.marker_group,
        "marker": status.marked,
        "marker_open": status.pending,
    }


def _time(time: datetime) -> str:
    return time.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
