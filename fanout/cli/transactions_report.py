"""How `fanout transactions` says what it has found, and what it has done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from fanout.cli.common import print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from fanout.kafka.transactions.finish_transactions import Deed, Leftover

_COLUMNS = (
    "sink",
    "batch",
    "stands",
    "recorded (UTC)",
    "expires (UTC)",
    "brokers say",
    "marker",
    "transactional id",
)

_DONE = {"commit": "committed", "abort": "aborted"}


def report_list(checkpoint: str, found: Sequence[Leftover], *, running: bool, json: bool) -> bool:
    """Print where transactions stand, and return whether nothing needs anybody."""
    fine = not any(each.standing.verdict.needs_action for each in found)
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
        typer.echo("the job is running: what is open may be what it is writing")
    return fine


def report_deeds(
    checkpoint: str, verb: str, deeds: Sequence[Deed], *, yes: bool, json: bool
) -> bool:
    """Print what was done, or would be, and return whether all of it can be done."""
    done = [deed for deed in deeds if deed.failure is None]
    failed = [deed for deed in deeds if deed.failure is not None]
    for deed in failed:
        typer.echo(f"fanout transactions: {_name(deed.leftover)}: {deed.failure}", err=True)
    if json:
        print_json(
            {
                "checkpoint": checkpoint,
                "dry_run": not yes,
                "done": [_plain(deed.leftover) | {"why": deed.plan.why} for deed in done],
                "failed": [_plain(deed.leftover) | {"why": deed.failure} for deed in failed],
            }
        )
    elif not deeds:
        typer.echo(f"there is nothing to {verb} on {checkpoint}")
    for deed in done if not json else ():
        words = _DONE[verb] if yes else f"would be {_DONE[verb]}; say --yes to do it"
        typer.echo(f"{_name(deed.leftover)}: {words} ({deed.plan.why})")
    return not failed


def _name(leftover: Leftover) -> str:
    if leftover.standing.recorded:
        return f"{leftover.sink}, batch {leftover.standing.token.batch_id}"
    return f"{leftover.sink}, what is open"


def _row(leftover: Leftover) -> tuple[str, ...]:
    standing = leftover.standing
    token, description = standing.token, standing.description
    said = "(before Kafka 3.0)" if description is None else description.state.value
    if description is not None and description.incarnation is not None:
        said += f", id {description.incarnation.producer_id}, epoch {description.incarnation.epoch}"
    if description is not None and description.started_at is not None:
        said += f", since {_time(description.started_at)}"
    marker = "none" if standing.marked is None else f"batch {standing.marked}"
    return (
        leftover.sink,
        str(token.batch_id) if standing.recorded else "",
        standing.verdict.value,
        _time(token.created_at) if standing.recorded else "",
        _time(token.expires_at) if standing.recorded else "",
        said,
        f"{marker}, one is open" if standing.pending else marker,
        token.transactional_id,
    )


def _plain(leftover: Leftover) -> dict[str, Any]:
    standing = leftover.standing
    token, description = standing.token, standing.description
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
        "sink": leftover.sink,
        "stands": standing.verdict.value,
        "transactional_id": token.transactional_id,
        "topics": list(token.topics),
        "recorded": recorded if standing.recorded else None,
        "brokers": brokers,
        "marker_group": token.marker_group,
        "marker": standing.marked,
        "marker_open": standing.pending,
    }


def _time(time: datetime) -> str:
    return time.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
