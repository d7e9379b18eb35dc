"""The command line: `python -m tests.provers sim`."""

from __future__ import annotations

import logging
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fanout.cli.command import ExitCode
from fanout.cli.common import Json, print_json
from fanout.errors import FanOutError, OptionError, SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.provers.simulation.campaign.shrink import Shrunk
    from tests.provers.simulation.campaign.totals import Totals
    from tests.provers.simulation.plans import AnyPlan

__all__ = ("sim",)

_FAILED = 1


class _Source(StrEnum):
    """The source of a simulated job."""

    KINESIS = "kinesis"
    KAFKA = "kafka"
    LANDERS = "landers"


_SourceOption = Annotated[
    _Source, typer.Option("--source", help="What the simulated job reads from.")
]

# Real seconds for the search of the smallest plan of a failure in a campaign.
_UNASKED = 10.0

# How many failures are listed one by one.
_NAMED = 10

sim = typer.Typer(
    name="sim",
    no_args_is_help=True,
    help="Break a simulated stream under the library, by seed and in virtual time.\n\n"
    "The library runs as it is, against a model of Kinesis that refuses, stalls, cuts, damages and "
    "reshards, or of a Kafka cluster whose leaders move, whose brokers die and whose logs are cut, "
    "or of a coordinator and landers whose network is cut and whose processes die, in a process "
    "that crashes and starts again. Every record that it hands on is held against what was put. A "
    "seed gives the same run every time and everywhere.\n\n"
    "The exit code is 0 if every promise was kept, 1 if one was broken, 2 if nothing could be run, "
    "and 130 after Ctrl-C if nothing had been found until then.",
    rich_markup_mode="markdown",
)


@sim.command()
def run(
    *,
    source: _SourceOption = _Source.KINESIS,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds are run.")] = 2000,
    first: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    processes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="How many run at once; 0 runs all in this process, where a debugger reaches.",
            show_default="one on each core",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run many seeds, and count what was lost, duplicated, altered, out of order, leaked or stuck.

    Each seed stands for a plan: shards, records, reshards, what goes wrong and when, and the order
    in which tasks run. Of a failure the command that replays it is shown, and a small plan that
    fails in the same way. Ctrl-C ends it with what was found until then. For example, other
    seeds:

    `python -m tests.provers sim run --first 5000000 --seeds 100000`
    """
    with _exit_codes():
        _prepare()
        totals, seconds, interrupted = _campaign(
            source, range(first, first + seeds), processes, json=json
        )
        _print_totals(source, totals, _smallest(totals), first=first, seconds=seconds, json=json)
    if totals.failures:
        raise typer.Exit(_FAILED)
    if interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)


@sim.command()
def replay(
    seed: Annotated[
        int | None, typer.Argument(help="The seed that is replayed.", show_default=False)
    ] = None,
    *,
    source: _SourceOption = _Source.KINESIS,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Replay a plan that was kept as JSON, and not a seed."),
    ] = None,
    shrink: Annotated[
        bool,
        typer.Option(
            "--shrink", help="If it fails, look first for the smallest plan that fails like it."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Run one seed again, and print its plan, what happened when, and what was broken.

    For example, the smallest plan of a failure, to be kept as a file:

    `python -m tests.provers sim replay 1234 --shrink --json | jq .plan`
    """
    with _exit_codes():
        _prepare()
        chosen = _chosen(source, seed, plan)
        if shrink:
            chosen = _shrunk(chosen)
        failed = _replay(chosen, json=json, plan_as_json=shrink)
    if failed:
        raise typer.Exit(_FAILED)


@contextmanager
def _exit_codes() -> Iterator[None]:
    try:
        yield
    except FanOutError as error:
        typer.echo(f"python -m tests.provers sim: {error}", err=True)
        raise typer.Exit(ExitCode.UNUSABLE) from error
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _prepare() -> None:
    """Check that the extra is there, and silence the log about what is broken on purpose."""
    # The simulated services raise what the AWS SDK and aiokafka raise.
    if find_spec("aioboto3") is None or find_spec("aiokafka") is None:
        raise SetupError("the simulator needs more: pip install 'fanout-streams[testing]'")
    # Most of what can go wrong does, and is logged; a replay shows it.
    logging.getLogger("fanout").addHandler(logging.NullHandler())


def _campaign(
    source: _Source, seeds: range, processes: int | None, *, json: bool
) -> tuple[Totals, float, bool]:
    """Run seeds; return what they came to, in how many seconds, and whether Ctrl-C ended it."""
    # Help and mistakes are answered without loading the AWS SDK.
    from rich.console import Console  # noqa: PLC0415

    from tests.provers.simulation.campaign.campaign import run_campaign  # noqa: PLC0415
    from tests.provers.simulation.campaign.display import shown  # noqa: PLC0415
    from tests.provers.simulation.campaign.failures import (  # noqa: PLC0415
        RunFailure,
        try_kafka_seed,
        try_kinesis_seed,
        try_landers_seed,
    )
    from tests.provers.simulation.campaign.totals import Totals  # noqa: PLC0415
    from tests.provers.simulation.plans import SourceName  # noqa: PLC0415

    attempts = {
        _Source.KINESIS: try_kinesis_seed,
        _Source.KAFKA: try_kafka_seed,
        _Source.LANDERS: try_landers_seed,
    }
    totals, interrupted = Totals(), False
    began = time.monotonic()
    try:
        with (
            closing(run_campaign(seeds, processes=processes, run=attempts[source])) as results,
            closing(shown(results, len(seeds), Console(stderr=True, quiet=json))) as watched,
        ):
            for result in watched:
                if isinstance(result, RunFailure):
                    totals += Totals.of(replace(result, source=SourceName(source)))
                else:
                    totals += Totals.of(result)
    except KeyboardInterrupt:
        interrupted = True
    return totals, time.monotonic() - began, interrupted


def _smallest(totals: Totals) -> Shrunk | None:
    """Shrink the plan of the first failure that can be run again here, for some seconds."""
    from tests.provers.simulation.campaign.shrink import shrink  # noqa: PLC0415
    from tests.provers.simulation.plans import draw_plan_of  # noqa: PLC0415

    for failure in totals.failures:
        if not failure.kind.of_the_process:
            try:
                return shrink(draw_plan_of(failure.source, failure.seed), max_seconds=_UNASKED)
            except KeyboardInterrupt:
                return None
    return None


def _print_totals(
    source: _Source,
    totals: Totals,
    smallest: Shrunk | None,
    *,
    first: int,
    seconds: float,
    json: bool,
) -> None:
    from rich.console import Console  # noqa: PLC0415 - help needs no tables

    from tests.provers.simulation.campaign.report import report, summary_table  # noqa: PLC0415 - the same
    from tests.provers.simulation.kafka.moments import KafkaSometimes  # noqa: PLC0415 - the same
    from tests.provers.simulation.landers.world import LandersSometimes  # noqa: PLC0415 - the same
    from tests.provers.simulation.moments.moments import KinesisSometimes  # noqa: PLC0415 - the same

    of_source: dict[_Source, type[StrEnum]] = {
        _Source.KINESIS: KinesisSometimes,
        _Source.KAFKA: KafkaSometimes,
        _Source.LANDERS: LandersSometimes,
    }
    moments = of_source[source]
    if json:
        print_json(report(totals, smallest, first=first, seconds=seconds, moments=moments))
        return
    Console().print(summary_table(totals, seconds=seconds, moments=moments))
    for failure in totals.failures[:_NAMED]:
        typer.echo(f"{failure.command}  # {failure.summary}")
    if smallest is not None:
        typer.echo(f"a small plan that fails like the first: {smallest.plan.to_json()}")


def _chosen(source: _Source, seed: int | None, path: Path | None) -> AnyPlan:
    """Return the plan that a command names.

    Raises:
        OptionError: If it names none or two, or what it names is none.
    """
    from tests.provers.simulation.plans import SourceName, draw_plan_of, read_plan  # noqa: PLC0415 - loads the AWS SDK

    match seed, path:
        case int(), None:
            return draw_plan_of(SourceName(source), seed)
        case None, Path():
            try:
                return read_plan(path.read_bytes())
            except OSError as error:
                raise OptionError(f"{path} cannot be read: {error.strerror}") from error
        case _:
            raise OptionError("name a seed, or a plan with --plan FILE")


def _shrunk(plan: AnyPlan) -> AnyPlan:
    """Return the smallest plan that fails as this one does; itself, if it does not fail."""
    from rich.console import Console  # noqa: PLC0415 - help needs no console

    from tests.provers.simulation.campaign.shrink import shrink  # noqa: PLC0415 - the same

    with Console(stderr=True).status("Shrinking..."):
        shrunk = shrink(plan)
    return plan if shrunk is None else shrunk.plan


def _replay(plan: AnyPlan, *, json: bool, plan_as_json: bool) -> bool:
    """Run a plan and print what happens; return whether it has failed."""
    import msgspec  # noqa: PLC0415 - help needs no JSON

    from tests.provers.simulation.campaign.replay import replay as run_again  # noqa: PLC0415 - heavy

    done = run_again(plan)
    failure = done.failure
    if json:
        seen = None if failure is None else {"kind": str(failure.kind), "error": failure.text}
        answer = {"seed": plan.seed, "digest": done.digest, "failure": seen}
        print_json({**answer, "plan": msgspec.to_builtins(plan), "trace": done.lines})
        return failure is not None
    text = msgspec.json.format(plan.to_json(), indent=2) if plan_as_json else str(plan)
    for line in (text, *done.lines):
        typer.echo(line)
    typer.echo("every promise was kept" if failure is None else failure.text)
    return failure is not None
