"""`python -m benchmarks [SCENARIO ...] [--rounds N] [--json]`."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks import decode, spark
from benchmarks.harness import table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.harness import Report

SCENARIOS: dict[str, Callable[[int], Report]] = {"decode": decode.run, "spark": spark.run}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run scenarios and print a table of each; with --json also an object on the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contender (default 5)")
    parser.add_argument("--json", action="store_true", help="print each report as a line of JSON")
    options = parser.parse_args(arguments)
    if unknown := set(options.scenarios) - set(SCENARIOS):
        parser.error(f"unknown scenario {', '.join(sorted(unknown))}: take {', '.join(SCENARIOS)}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    console = Console()
    for name in options.scenarios or SCENARIOS:
        report = SCENARIOS[name](options.rounds)
        console.print(table(report))
        if options.json:
            print(json.dumps(report.as_json()), flush=True)  # noqa: T201  # rich would wrap the line


if __name__ == "__main__":
    main()
