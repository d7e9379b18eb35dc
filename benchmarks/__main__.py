"""Measure fanout and the libraries that users would use instead, in the same run."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from rich.console import Console

from benchmarks import (
    check,
    consume_java,
    consume_kafka,
    consume_kinesis,
    consume_queue,
    consume_share,
    consume_typed,
    decode,
    decode_records,
    encode_records,
    land,
    land_typed,
    latency,
    pictures,
    report,
    scale,
    server,
    shards,
    shuffle,
    sink,
    soak,
    spark_kafka,
    spark_kinesis,
    writer,
)
from benchmarks.harness import table
from benchmarks.turns import OutOfTimeError, TimeLimit, check_time, limited, tell
from fanout.core.error_text import text_of
from fanout.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.harness import Report


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario with one source.

    Args:
        run: Measures it, in so many rounds.
        quick: Measures it in one round, with fewer records.
    """

    run: Callable[[int], Report]
    quick: Callable[[], Report]


SCENARIOS: Final[dict[str, dict[str, Scenario]]] = {
    "decode": {"kinesis": Scenario(decode.run, partial(decode.run, 1))},
    "decode-records": {
        "kafka": Scenario(decode_records.run, partial(decode_records.run, 1, (200,)))
    },
    "encode-records": {
        "kafka": Scenario(encode_records.run, partial(encode_records.run, 1, (200,)))
    },
    "consume": {
        "kinesis": Scenario(
            consume_kinesis.run, partial(consume_kinesis.run, 1, (1024,), (4,), {1024: 256})
        ),
        "kinesis-java": Scenario(consume_java.run, partial(consume_java.run, 1, {1024: 20_000})),
        "kinesis-queue": Scenario(consume_queue.run, partial(consume_queue.run, 1, {1024: 10_000})),
        "kafka": Scenario(consume_kafka.run, partial(consume_kafka.run, 1, {1024: 400_000})),
        "kafka-typed": Scenario(consume_typed.run, partial(consume_typed.run, 1, {1000: 40_000})),
        "kafka-share": Scenario(
            consume_share.run, partial(consume_share.run, 1, {1024: 50_000}, (1, 4))
        ),
    },
    "land": {
        "kinesis": Scenario(land.run, partial(land.run, 1, 256, 32 << 20, land.BRIEF_CONTENDERS)),
        "kinesis-typed": Scenario(
            land_typed.run_kinesis, partial(land_typed.run_kinesis, 1, 100, 8 << 20)
        ),
        "kafka-typed": Scenario(land_typed.run, partial(land_typed.run, 1, 100_000, 8 << 20)),
    },
    "scale": {
        "kinesis": Scenario(scale.run, partial(scale.compare, 1, (1, 2), events=400, many=100))
    },
    "server": {
        "kinesis": Scenario(server.run, partial(server.run, 1, puts=20, events=2_000, idle=100))
    },
    "shards": {"kinesis": Scenario(shards.run, partial(shards.run, 1, (10, 100)))},
    "shuffle": {"kafka": Scenario(shuffle.run, partial(shuffle.run, 1, {1024: 100_000}))},
    "writer": {"kafka": Scenario(writer.run, partial(writer.run, 1, {1024: 200_000}))},
    # Most of these start Spark, slowly. Where a quick look has no time for all, they are left out.
    "latency": {
        "kinesis": Scenario(latency.run_kinesis, partial(latency.run_kinesis, 1, (1000,), 5)),
        "kafka": Scenario(
            latency.run_kafka, partial(latency.run_kafka, 1, (1000,), 50, brief=True)
        ),
    },
    "spark": {
        "kinesis": Scenario(spark_kinesis.run, partial(spark_kinesis.run, 1, (1024,), brief=True)),
        "kafka": Scenario(
            spark_kafka.run, partial(spark_kafka.run, 1, {1024: 400_000}, brief=True)
        ),
    },
    "sink": {"kafka": Scenario(sink.run, partial(sink.run, 1, sink.BRIEF_BATCHES, brief=True))},
}

# What runs then is over after half a minute more.
_QUICK_MINUTES: Final = 4.5
# The name of all sources together.
_ALL: Final = "all"

_HELP = """\
scenarios:
  decode   event bytes to Arrow, without a socket; the peer is botocore's event stream parser
  decode-records
           JSON and Avro to Arrow, flat and nested; the peers are msgspec and fastavro, with
           from_pylist
  encode-records
           the other direction, with to_pylist
  consume  SubscribeToShard to Arrow through fanout.open, over real sockets from a server in
           another process, 1, 4 and 64 shards; the peer is an aioboto3 loop
  land     SubscribeToShard to Parquet files on the local disk and on moto's S3, 4 shards; the
           peers are an aioboto3 loop with pyarrow and boto3, fanout.open, and obstore alone;
           also with tables of Delta and Iceberg, and by two processes
  latency  from the put of a record to the consumer, at 10, 1,000 and 20,000 records a second; the
           peer is an aioboto3 loop
  scale    SubscribeToShard to the segments of batches, in one process and by 1, 2 and 4 landers, 4
           and 1000 shards; the driver's share of the CPU, the cost of a record, and how long the
           death of a lander stops its splits
  server   the embedded Kinesis itself: how soon it serves, PutRecords and the frames of a
           subscription over both protocols, the memory of idle subscriptions; the peer for puts is
           moto's own server
  shards   what a shard without new records costs: memory, sockets, the bytes of its position, and
           processor time to open it and while it is idle; 100 and 1000 shards
  spark    SubscribeToShard to a foreachBatch handler, in batches of 100,000 records that are
           counted and summed, through foreach_batch and through a streaming DataFrame; the peers
           are Spark's file source over a landing, and an aioboto3 loop with createDataFrame

scenario with --source kinesis-java, on the embedded Kinesis, 4 shards:
  consume  a stored stream to a count by enhanced fan-out; the peers are KCL 3 and Flink's source

scenario with --source kinesis-queue, from a server in another process, 16 calls at once:
  consume  a queue to Arrow through fanout.open; the peer is boto3 in as many threads

scenarios with --source kafka, on the real broker, 4 partitions:
  consume  a topic to Arrow through fanout.open; the peers are aiokafka and confluent-kafka
  latency  to a foreachBatch handler, through foreach_batch and a streaming DataFrame; the peer is
           Spark's own Kafka source
  spark    a topic to a foreachBatch handler, as above; the peer is Spark's own Kafka source

scenario with --source kafka-share, on the real broker, 4 partitions:
  consume  a topic through a share group to Arrow, with 1, 2, 4 and 8 consumers; the peer is a loop
           over one ShareConsumer of confluent-kafka

scenario with --source kinesis-typed, 4 shards:
  land     a stream of Avro to a table of Delta; the peer is aioboto3 with fastavro and
           write_deltalake

scenarios with --source kafka-typed, on the real broker, 4 partitions:
  consume  a topic of Avro to columns through fanout.open; the peers are fanout.open without a
           decoder, and confluent-kafka with fastavro and from_pylist
  land     a topic of Avro to a table of Delta; the peer is confluent-kafka with fastavro and
           write_deltalake

scenarios that write to the real broker, 4 partitions:
  sink     batches of 50,000 and 5,000 records to a topic, exactly once and at least once; the
           peers are each other and Spark's own Kafka sink
  shuffle  records by key through a shuffle and back; the peers are aiokafka, and fanout's own
           writer and source without frames and watermarks
  writer   record batches and rows to a topic from asyncio, through fanout.kafka.open_writer; the
           peers are aiokafka and confluent-kafka

python -m benchmarks soak [--minutes 30] runs a job on Kinesis and Kafka while shards are split and
merged, and ends with 1 if memory, threads, sockets or files grow after the warm-up.

python -m benchmarks check compares what pinned work costs with what is stored in git: `make
bench-check`. It ends with 1 if a cost has grown by more than 10 %.

python -m benchmarks report FILE... writes what scenarios with --json have printed as an HTML page.
python -m benchmarks pictures FILE... takes it over into docs/images, and draws the pictures there.

A scenario that fails, such as one whose jars cannot be fetched, stops no other one, and the exit
code is 1.

Contenders take turns, each run in a process of its own, and a figure is the median of its rounds.
Standard error has a line for each run as soon as it is over. At the end comes a table of ratios,
beside those of the run that docs/benchmarks.md has; `pictures` stores a new run there.
A ratio is fanout's records per second divided by the peer's. On a machine that does other work
too, compare the CPU seconds rather than the rates, and raise --rounds.

examples:
  python -m benchmarks                                    all scenarios without Kafka
  python -m benchmarks --source all                       all scenarios: `make bench`
  python -m benchmarks consume --source kafka             one scenario
  python -m benchmarks --quick                            a quick look at everything
  python -m benchmarks consume spark --quick              at two scenarios
  python -m benchmarks sink shuffle writer                writing, which takes no --source
  python -m benchmarks spark --json | tail -1 | jq .ratios
  python -m benchmarks --json | tee figures.txt; python -m benchmarks report figures.txt
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run scenarios and print a table of each; with --json also an object on the last line."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    others = {
        "check": check.main,
        "pictures": pictures.main,
        "report": report.main,
        "soak": soak.main,
    }
    if given and given[0] in others:
        sys.exit(others[given[0]](given[1:]))
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    sources = sorted({source for runs in SCENARIOS.values() for source in runs})
    parser.add_argument(
        "--source", choices=[*sources, _ALL], help="what to read from (default kinesis)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contender (default 5)")
    parser.add_argument(
        "--minutes",
        type=float,
        help="the time for all scenarios, after which no run begins: a quick look at each, then "
        "whole runs, of fewer rounds (default 4.5 with --quick, otherwise no limit)",
    )
    parser.add_argument("--json", action="store_true", help="print each report as a line of JSON")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one round with few records, of all sources unless --source names one",
    )
    options = parser.parse_args(given)
    if unknown := set(options.scenarios) - set(SCENARIOS):
        parser.error(f"unknown scenario {', '.join(sorted(unknown))}: take {', '.join(SCENARIOS)}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.source not in {None, _ALL} and (
        unreadable := [name for name in options.scenarios if options.source not in SCENARIOS[name]]
    ):
        parser.error(f"{', '.join(sorted(unreadable))}: not with --source {options.source}")
    chosen = _chosen(options.scenarios, options.source, quick=options.quick)
    minutes = options.minutes or (_QUICK_MINUTES if options.quick else None)
    failed = _measure(chosen, options, None if minutes is None else minutes * 60)
    for name, cause in failed.items():
        tell(f"{name} has failed: {text_of(cause)}")
    if failed:
        sys.exit(1)


def _measure(
    chosen: Mapping[str, Scenario], options: argparse.Namespace, seconds: float | None
) -> dict[str, Exception]:
    """Measure scenarios within some seconds, and print them; return the errors of those that fail.

    Where several have a limited time, there is a quick look at each first, so that none is missing.
    """
    reports: dict[str, Report] = {}
    failed: dict[str, Exception] = {}
    end = None if seconds is None else time.monotonic() + seconds
    if end is not None and len(chosen) > 1 and not options.quick:
        failed |= _look(chosen, options, end, reports, quick=True)
        chosen = {name: scenario for name, scenario in chosen.items() if name not in failed}
    failed |= _look(chosen, options, end, reports, quick=options.quick)
    if reports and not options.json:
        Console().print(pictures.changes([*reports.values()]))
    return failed


def _look(
    chosen: Mapping[str, Scenario],
    options: argparse.Namespace,
    end: float | None,
    reports: dict[str, Report],
    *,
    quick: bool,
) -> dict[str, Exception]:
    """Measure each scenario, and put its report in; return the errors of those that fail.

    Each gets the same share of the time that is left. What it does not use goes to the others.
    """
    failed: dict[str, Exception] = {}
    started = time.monotonic()
    for number, (name, scenario) in enumerate(chosen.items()):
        now = time.monotonic()
        share = None if end is None else now + (end - now) / (len(chosen) - number)
        limit = None if end is None or share is None else TimeLimit(share, end)
        look = "quick look, " if quick else ""
        minutes = (now - started) / 60
        tell(f"{name}: {look}{number + 1} of {len(chosen)}, after {minutes:.1f} minutes")
        try:
            with limited(limit):
                check_time()
                measured = scenario.quick() if quick else scenario.run(options.rounds)
        except OutOfTimeError:
            what = "has its quick look alone" if name in reports else "is left out"
            tell(f"{name} {what}: the time is over; name it, or pass more --minutes")
        except (ChildProcessError, SetupError) as error:  # what it needs is not here
            failed[name] = error
        except Exception as error:  # noqa: BLE001 - the other scenarios are measured all the same
            traceback.print_exception(error)
            failed[name] = error
        else:
            reports[name] = measured
            _print(measured, as_json=options.json)
    return failed


def _print(measured: Report, *, as_json: bool) -> None:
    Console().print(table(measured))
    if as_json:
        print(json.dumps(measured.as_json()), flush=True)  # noqa: T201  # rich would wrap it


def _chosen(names: Sequence[str], source: str | None, *, quick: bool) -> dict[str, Scenario]:
    """Return the scenarios that the command line names, by name and source."""
    chosen: dict[str, Scenario] = {}
    for name in names or SCENARIOS:
        sources = SCENARIOS[name]
        if source is not None and source != _ALL:
            wanted = [source] if source in sources else []
        elif quick or source == _ALL:
            wanted = list(sources)
        elif "kinesis" in sources:
            wanted = ["kinesis"]
        else:
            # A scenario that is named and has no Kinesis needs no --source.
            wanted = [min(sources)] if names else []
        chosen |= {f"{name} of {one}": sources[one] for one in wanted}
    return chosen


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)  # what was measured is on standard error
