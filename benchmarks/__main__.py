"""Measure fanout and the libraries that users would use instead, in the same run."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks import (
    consume_kafka,
    consume_kinesis,
    consume_share,
    decode,
    land,
    latency,
    scale,
    shuffle,
    sink,
    spark_kafka,
    spark_kinesis,
)
from benchmarks.harness import table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.harness import Report

SCENARIOS: dict[str, dict[str, Callable[[int], Report]]] = {
    "decode": {"kinesis": decode.run},
    "consume": {
        "kinesis": consume_kinesis.run,
        "kafka": consume_kafka.run,
        "kafka-share": consume_share.run,
    },
    "land": {"kinesis": land.run},
    "latency": {"kinesis": latency.run_kinesis, "kafka": latency.run_kafka},
    "scale": {"kinesis": scale.run},
    "spark": {"kinesis": spark_kinesis.run, "kafka": spark_kafka.run},
    "sink": {"kafka": sink.run},
    "shuffle": {"kafka": shuffle.run},
}

_HELP = """\
scenarios:
  decode   event bytes to Arrow, without a socket; the peer is botocore's event stream parser
  consume  SubscribeToShard to Arrow through fanout.open, over real sockets from a server in
           another process, 1, 4 and 64 shards; the peer is an aioboto3 loop
  land     SubscribeToShard to Parquet files on the local disk and on moto's S3, 4 shards; the
           peers are an aioboto3 loop with pyarrow and boto3, fanout.open, and obstore alone
  latency  from the put of a record to the consumer, at 10, 1,000 and 20,000 records a second; the
           peer is an aioboto3 loop
  scale    SubscribeToShard to the segments of batches, in one process and by 1, 2 and 4 landers, 4
           and 1000 shards; the driver's share of the CPU, the cost of a record, and how long the
           death of a lander stops its splits
  spark    SubscribeToShard to a foreachBatch handler, in batches of 100,000 records that are
           counted and summed, through foreach_batch and through a streaming DataFrame; the peer is
           an aioboto3 loop with createDataFrame

scenarios with --source kafka, on the real broker, 4 partitions:
  consume  a topic to Arrow through fanout.open; the peers are aiokafka and confluent-kafka
  latency  to a foreachBatch handler, through foreach_batch and a streaming DataFrame; the peer is
           Spark's own Kafka source
  spark    a topic to a foreachBatch handler, as above; the peer is Spark's own Kafka source

scenario with --source kafka-share, on the real broker, 4 partitions:
  consume  a topic through a share group to Arrow, with 1, 2, 4 and 8 consumers; the peer is a loop
           over one ShareConsumer of confluent-kafka

scenarios that write to the real broker, 4 partitions:
  sink     DataFrames of 50,000 records to a topic, exactly once and at least once; the peers are
           each other and Spark's own Kafka sink
  shuffle  records by key through a shuffle and back; the peers are aiokafka, and fanout's own
           writer and source without frames and watermarks

Contenders take turns, each run in a process of its own, and a figure is the median of its rounds.
A ratio is fanout's records per second divided by the peer's. On a machine that does other work
too, compare the CPU seconds rather than the rates, and raise --rounds.

examples:
  python -m benchmarks                                    all scenarios without Kafka
  python -m benchmarks consume --source kafka             one scenario
  python -m benchmarks consume spark --rounds 1           a quick look
  python -m benchmarks sink shuffle                       writing, which takes no --source
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
    parser.add_argument("--source", choices=sources, help="what to read from (default kinesis)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contender (default 5)")
    parser.add_argument("--json", action="store_true", help="print each report as a line of JSON")
    options = parser.parse_args(arguments)
    if unknown := set(options.scenarios) - set(SCENARIOS):
        parser.error(f"unknown scenario {', '.join(sorted(unknown))}: take {', '.join(SCENARIOS)}")
    source = options.source or "kinesis"
    readable = [name for name, runs in SCENARIOS.items() if source in runs]
    names = options.scenarios or readable
    if options.source and (unreadable := set(names) - set(readable)):
        parser.error(f"{', '.join(sorted(unreadable))}: not with --source {source}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    console = Console()
    for name in names:
        runs = SCENARIOS[name]
        # A scenario with one source needs no --source.
        report = runs.get(source, runs[min(runs)])(options.rounds)
        console.print(table(report))
        if options.json:
            print(json.dumps(report.as_json()), flush=True)  # noqa: T201  # rich would wrap it


if __name__ == "__main__":
    main()
