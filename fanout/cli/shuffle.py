"""The command `fanout shuffle`: describe the producers of a shuffle."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fanout.cli.command import ExitCode, fanout_command
from fanout.cli.common import Json, age, calling_the_service, print_json, print_table, run_coroutine
from fanout.cli.service_options import ClusterOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.kafka import Producers, ShuffleSource

_COLUMNS = ("partition", "watermark (UTC)", "generation", "producer", "state", "its watermark")

shuffle = typer.Typer(
    name="shuffle",
    no_args_is_help=True,
    help="Inspect the producers of a shuffle through Kafka, and their watermarks.",
    rich_markup_mode="markdown",
)


@shuffle.callback()
def _shuffle() -> None:
    """Keep `describe` a subcommand, although it is the only one."""


@shuffle.command()
@fanout_command("shuffle")
def describe(
    topic: Annotated[str, typer.Argument(help="The topic of the shuffle.")],
    *,
    kafka: ClusterOptions,
    since: Annotated[
        str,
        typer.Option(metavar="AGE", help="How far back to read, such as 90m, 12h, 7d or 2w."),
    ] = "1h",
    json: Json = False,
) -> None:
    """Show the producers of a shuffle, and the watermarks of its partitions.

    It reads all frames since then, records included; producers repeat their state at intervals. It
    commits nothing, and disturbs no reader or writer. The exit code is 1 if no producer has written
    since then.
    """
    start = datetime.now(UTC) - age(since)
    # Help and usage errors do not load Kafka's library.
    from fanout.kafka import KafkaSource, ShuffleSource  # noqa: PLC0415

    read = KafkaSource(cluster=kafka.cluster(), topics=topic, start=start)
    with calling_the_service():
        found = run_coroutine(_describe(ShuffleSource(read)))
    if json:
        print_json({"topic": topic, "partitions": [*map(_plain, found, found.values())]})
    else:
        rows = [row for name, producers in found.items() for row in _rows(name, producers)]
        print_table(_COLUMNS, rows)
    if not any(producers.seen for producers in found.values()):
        typer.echo(
            f"fanout shuffle: no producer has written to {topic} for {since}; --since reads "
            f"further back",
            err=True,
        )
        raise typer.Exit(ExitCode.FOUND)


async def _describe(source: ShuffleSource) -> Mapping[str, Producers]:
    from fanout.kafka.shuffle.source import describe_producers  # noqa: PLC0415 - see above

    return await describe_producers(source)


def _plain(partition: str, known: Producers) -> dict[str, Any]:
    return {
        "partition": partition,
        "watermark": known.watermark,
        "generation": known.generation,
        "announced": known.announced,
        "partition_count": known.partitions,
        "repeated": known.repeated,
        "outdated": known.outdated,
        "producers": [
            {"producer": number, "state": one.activity.name.lower(), "watermark": one.watermark}
            for number, one in sorted(known.seen.items())
        ],
    }


def _rows(partition: str, known: Producers) -> list[tuple[str, ...]]:
    """Return a row for each producer that was announced or seen, or one row if there is none."""
    numbers = sorted({*range(known.announced or 0), *known.seen})
    watermark = _time(known.watermark)
    generation = "" if known.generation is None else str(known.generation)
    if not numbers:
        return [(partition, watermark, generation, "", "no producer", "")]
    rows: list[tuple[str, ...]] = []
    for number in numbers:
        one = known.seen.get(number)
        state = "not seen" if one is None else one.activity.name.lower().replace("_", " ")
        own = _time(None if one is None else one.watermark)
        producer = f"{number} of {known.announced or '?'}"
        rows.append((partition, watermark, generation, producer, state, own))
    return rows


def _time(millis: int | None) -> str:
    if millis is None:
        return ""
    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=millis)
    except OverflowError:
        return f"{millis} ms"
    return at.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
