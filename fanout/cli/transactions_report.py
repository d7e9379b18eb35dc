"""Print the findings and the results of `fanout transactions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from fanout.cli.common import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from fanout.spark.sinks.kafka.finish_transactions import FinishResult, SinkTransaction

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
