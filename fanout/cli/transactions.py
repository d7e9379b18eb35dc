"""The command line: `fanout transactions`."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from fanout.cli.command import ExitCode, fanout_command
from fanout.cli.common import Json, calling_the_service
from fanout.cli.kafka_options import ClusterOptions
from fanout.cli.transactions_report import report_list, report_results
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fanout.kafka.cluster import Cluster
    from fanout.kafka.transactions.transactions import Transactions
    from fanout.landing.storage.local_storage import LocalStorage
    from fanout.spark.sinks.kafka.finish_transactions import FinishResult, SinkToken

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
        return asyncio.run(main())
