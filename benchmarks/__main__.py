"""Measure fanout against what people would use instead, both in the same run."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks import consume, decode, spark
from benchmarks.harness import table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.harness import Report

SCENARIOS: dict[str, dict[str, Callable[[int], Report]]] = {
    "decode": {"kinesis": decode.run},
    "consume": {"kinesis": consume.run},
    "spark": {"kinesis": spark.run},
}

_HELP = """\
scenarios:
  decode   event bytes to Arrow, without a socket; the peer is botocore's event stream parser
  consume  SubscribeToShard to Arrow through fanout.open, over real sockets from a server in
           another process, 1, 4 and 64 shards; the peer is an aioboto3 loop
  spark    SubscribeToShard to a foreachBatch handler, in batches of 100,000 records that are
           counted and summed; the peer is an aioboto3 loop with createDataFrame

Contenders take turns, each run in a process of its own, and a figure is the median of its rounds.
A ratio is fanout's records per second divided by the peer's. On a machine that does other work
too, compare the CPU seconds rather than the rates, and raise --rounds.

examples:
  python -m benchmarks                                    everything
  python -m benchmarks consume --source kinesis           one scenario
  python -m benchmarks consume spark --rounds 1           a quick look
  python -m benchmarks spark --json | tail -1 | jq .ratios
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run scenarios and print a table of each; with --json also an object on the last line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    sources = sorted({source for runs in SCENARIOS.values() for source in runs})
    parser.add_argument("--source", choices=sources, help="what to read from (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contender (default 5)")
    parser.add_argument("--json", action="store_true", help="print each report as a line of JSON")
    options = parser.parse_args(arguments)
    if unknown := set(options.scenarios) - set(SCENARIOS):
        parser.error(f"unknown scenario {', '.join(sorted(unknown))}: take {', '.join(SCENARIOS)}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    console = Console()
    for name in options.scenarios or SCENARIOS:
        for source, run in SCENARIOS[name].items():
            if options.source not in {None, source}:
                continue
            report = run(options.rounds)
            console.print(table(report))
            if options.json:
                print(json.dumps(report.as_json()), flush=True)  # noqa: T201  # rich would wrap it


if __name__ == "__main__":
    main()
